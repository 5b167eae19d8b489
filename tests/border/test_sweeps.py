"""Planted objects in a sweep's folder, a trial's and a bucket's, and every command that reads them."""

import os
import shutil
from pathlib import Path

import pytest
import yaml

from flray.cli.main import invoke
from flray.records import directory
from tests.border import planted
from tests.border.test_planted import OVER_ALL, put_planted, refusal, wrong
from tests.hostile.values import GOOD
from tests.tuning.conftest import ONE

SWEEP = Path("runs/w/001")
TRIAL = SWEEP / "trials" / "0001"
CHECKPOINT = SWEEP / "tune" / "001" / "0001" / "round_000001"
MADE: dict[str, Path] = {}
"""The sweep's copy, by the folder in which it was made."""
EVERY = bool(os.environ.get("FLRAY_HOSTILE_ALL"))
SOME = {
    *(("sweep", "git"), ("sweep", "journal: UTF-16"), ("sweep", "tracking.uri: a server")),
    *(("trial", "run.json: escapes"), ("trial", "checkpoint: a link"), ("trial", "key: upwards")),
}
"""What the tests meet; scripts/hostile meets all."""
PLACES = [
    (where, name)
    for where in ("sweep", "trial")
    for name in (*planted.FOLDERS, *planted.BUCKETS)
    # A sweep has no checkpoint of its own.
    if (where == "trial" or not name.startswith(("checkpoint", "diagnostics")))
    and ((where, name) in SOME or EVERY)
]


def over_sweep(*more: str) -> list[list[str]]:
    """Return the commands that read the sweep w/001, beside the whole one w/002."""
    return [
        *OVER_ALL[:2],
        ["compare", "w/001", "w/002", *more],
        ["compare", "w/001/trials/0000", "w/001/trials/0001", *more],
        ["report", "w/001", "--keep", "kept.csv", "--to", "made", *more],
        ["report", "w/001/trials/0001", *more],
        ["export", "w/001", *more],
        ["export", "w/001/trials/0001", "--all", "--to", "model", *more],
        ["sync", "w/001", *more],
        ["sync", "w/001/trials/0001", *more],
        ["rm", "w/001/trials/0001", "--yes", *more],
    ]


@pytest.fixture
def sweep(
    ray_here: dict[str, float],
    place: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Two sweeps of two trials in the current folder; the first was interrupted when both had finished."""
    if not EVERY:  # reports are written, and save most of their time
        monkeypatch.setattr("flray.drawing.canvas.save_figure", lambda *_: None)
    if not MADE:
        settings = {"name": "w", "model": "linear", "checkpoint": {"min_seconds": 0}}
        settings |= {"data": {"name": "digits-sklearn", "samples": 96}}
        settings |= {"tracking": {"uri": "sqlite:///mlflow.db"}}
        content = {"experiment": GOOD["experiment"] | settings, "sweep": {"seeds": [0, 1], **ONE}}
        Path("w.yaml").write_text(yaml.safe_dump(content))
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("flray.tuning.sweep.add_report", lambda *_: None)  # for its time
            assert invoke(["tune", "w.yaml"]) == 0
        shutil.copytree(SWEEP, SWEEP.with_name("002"))
        directory.update(SWEEP, status="interrupted")
        MADE[str(Path.cwd())] = tmp_path_factory.mktemp("sweep")
        shutil.copytree(".", *MADE.values(), dirs_exist_ok=True)
    ((before, kept),) = MADE.items()
    for name in ("w.yaml", "mlflow.db"):
        shutil.copy(kept / name, name)
    shutil.copytree(kept / "runs/w", "runs/w", dirs_exist_ok=True)
    for file in Path("runs/w").rglob("*.*"):
        if file.name in ("config.yaml", "tracking.json"):
            file.write_text(file.read_text().replace(before, str(Path.cwd())))


def plant(where: str, name: str) -> None:
    """Plant an object as into a run; a trial's checkpoint lies beside the trials."""
    if name.startswith("checkpoint"):
        apart = Path("apart", "checkpoint")
        apart.parent.mkdir()
        CHECKPOINT.rename(apart)
        planted.FOLDERS[name](apart.parent)
        apart.rename(CHECKPOINT)
        return
    own = SWEEP / "sweep.json", SWEEP / "run.json"
    if where == "sweep":
        own[0].rename(own[1])
    planted.FOLDERS[name](SWEEP if where == "sweep" else TRIAL)
    if where == "sweep":
        own[1].rename(own[0])


@pytest.mark.slow
@pytest.mark.parametrize(("where", "name"), [one for one in PLACES if one[1] in planted.FOLDERS])
def test_in_a_sweep(where: str, name: str, sweep: None, place: Path, listener: list[bytes]) -> None:
    plant(where, name)
    shutil.rmtree("runs/w/002/trials/0001")  # so that the planted one would be taken over
    again = ["tune", "w.yaml", "name=again"]
    commands = [*over_sweep(), ["verify", "kept.csv", "--rows", "1"], [*again, "--plan"], again]
    commands += [["resume", "w/001"], ["report", "again"], ["rm", "w/001", "--yes"]]
    assert wrong(commands) == []
    assert not listener


@pytest.mark.slow
@pytest.mark.parametrize(("where", "name"), [one for one in PLACES if one[1] in planted.BUCKETS])
def test_in_a_bucket(
    where: str,
    name: str,
    bucket: None,
    sweep: None,
    place: Path,
    listener: list[bytes],
    capsys: pytest.CaptureFixture[str],
) -> None:
    shutil.rmtree("runs/m")
    shutil.rmtree("runs/ok")
    prefix = f"{where}-{name.replace(' ', '-').replace(':', '')}"
    folders = [SWEEP, SWEEP.with_name("002"), *SWEEP.parent.glob("*/trials/*")]
    output = put_planted(name, prefix, SWEEP if where == "sweep" else TRIAL, folders)
    shutil.rmtree("runs/w")
    named = [one for one in over_sweep("--output", output) if one[0] != "ls"]
    assert wrong([*named, ["tune", "w.yaml", f"output={output}", "--plan"]]) == []
    assert not listener
    capsys.readouterr()
    if where == "sweep":
        assert invoke(["resume", "w/001", "--output", output]) == 2
        assert refusal(name) in capsys.readouterr().err
