"""Planted objects and every command over each: nothing is written elsewhere, executed or sent; nothing hangs."""

import json
import os
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from flray.cli.main import invoke
from flray.errors import NO_TEXT
from flray.records import directory
from tests.border import planted
from tests.helpers import told
from tests.hostile.asking import answer, listing
from tests.hostile.values import GOOD
from tests.tuning.conftest import ONE

RUN = planted.RUN
OFTEN = {"git", "journal: UTF-16", "run.json: escapes", "checkpoint: a link", "key: upwards"}
OFTEN |= {"code", "tracking.uri: a server"}
"""Objects that are met in every run of the tests; the others are slow together: scripts/hostile, scripts/test --all."""
OVER_ALL = (["ls"], ["ls", "--json"], ["list", "datasets"], ["data", "list"], ["doctor", "--json"])
"""Commands that name no run."""


def some(names: Iterable[str]) -> list[Any]:
    """Return the names as parameters of a test, of which those that are not met often are slow."""
    return [pytest.param(one, marks=() if one in OFTEN else pytest.mark.slow) for one in names]


def over_run(run: str, *more: str) -> list[list[str]]:
    """Return the commands that name a run."""
    reports = ["compare", run, "ok/001", *more], ["report", run, "--keep", "kept.csv", *more]
    others = ["export", run, "--all", *more], ["sync", run, *more], ["resume", run, *more]
    return [*reports, *others]


def wrong(commands: Sequence[list[str]]) -> list[str]:
    """Return what is wrong with how command lines end in the current folder of `place`."""
    found, before = [], away()
    for command in commands:
        code, *texts = answer(command)
        shown = [line for text in texts for line in text.splitlines()]
        said = texts[1].removesuffix("\n").split("\n")
        if isinstance(code, str) or code not in (0, 1, 2) or (code and len(said) != 1):
            found.append(f"{command}: {code}, {said}")
        found += [f"{command}: shows {line!r}" for line in shown if NO_TEXT.search(line)]
    left = away()
    found += [f"written: {name}" for name, content in left.items() if before.get(name) != content]
    found += [f"removed: {name}" for name in before.keys() - left.keys()]
    return found


def away() -> dict[str, bytes]:
    """Return the files outside the current folder, and what was executed in it."""
    files = [path for path in Path("..").rglob("*") if path.is_file() and not path.is_symlink()]
    found = [path for path in files if path.parts[1] != "here" or path.name == "PWNED"]
    return {str(path): path.read_bytes() for path in found}


def put(key: str, *folders: str) -> None:
    """Put folders of runs/ below a key of the bucket; without any, an object under that key."""
    import boto3

    store = boto3.client("s3")
    for path in [one for name in folders for one in Path("runs", name).rglob("*") if one.is_file()]:
        name = path.relative_to("runs").as_posix()
        store.put_object(Bucket="flray-test", Key=f"{key}/{name}", Body=path.read_bytes())
    if not folders:
        store.put_object(Bucket="flray-test", Key=key, Body=b"planted")


def put_planted(name: str, prefix: str, chosen: Path, folders: list[Path]) -> str:
    """Put runs with an object in one of them below a key of the bucket, and return the address of that key."""
    plant, output = planted.BUCKETS[name], f"s3://flray-test/{prefix}"
    for folder in folders:
        planted.edit("config.yaml", "experiment", "output", value=output)(folder)
    if callable(plant):
        plant(chosen)
    put(prefix, *(f"{one.parent.name}/{one.name}" for one in Path("runs").glob("*/*")))
    if isinstance(plant, str):
        put(f"{prefix}/{chosen.relative_to('runs')}/{plant}")
    return output


def refusal(name: str) -> str:
    part = name.partition(":")[0]
    return "it holds '" if part == "key" else f"experiment.{part} names "


@pytest.mark.parametrize("name", some(planted.FOLDERS))
def test_in_the_folder_of_a_run(name: str, place: Path, listener: list[bytes]) -> None:
    planted.FOLDERS[name](RUN)
    assert wrong([*OVER_ALL[:2], *over_run("m/001"), ["run", "x.yaml", "name=again"]]) == []
    assert not listener
    assert name != "run.json: of another program" or RUN.is_dir()


@pytest.mark.parametrize("name", some(planted.BUCKETS))
@pytest.mark.usefixtures("bucket", "place")
def test_in_a_bucket(name: str, listener: list[bytes]) -> None:
    output = put_planted(name, name.replace(" ", "-").replace(":", ""), RUN, [RUN])
    shutil.rmtree(RUN)
    assert wrong(over_run("m", "--output", output)[:-1]) == [] and not listener
    assert refusal(name) in told(2, "resume", "m", "--output", output)


@pytest.mark.parametrize("name", some(planted.TABLES))
def test_in_a_table(name: str, place: Path) -> None:
    planted.TABLES[name](Path("x.csv"))
    data = {"name": "table", "path": "x.csv", "label": "y", "by": "h"}
    settings = {"data": data, "model": "mlp", "name": "t", "algorithm": "local"}
    content = GOOD["experiment"] | settings
    Path("t.yaml").write_text(yaml.safe_dump({"experiment": content}))
    before = listing()
    commands = [["run", "t.yaml"], ["tune", "t.yaml", "--plan"], ["data", "show", "t.yaml"]]
    assert wrong(commands) == []
    assert name != "code" or Path("runs/t/001").exists()
    if Path("runs/t/001").exists():
        assert wrong([["export", "t", "--all"], ["ls"], ["report", "t"]]) == []
        for code in Path("runs/t/001/export").glob("*.py"):
            exec(compile(code.read_text(), code.name, "exec"), {})
            assert planted.CLIENT not in code.read_text()
        assert not Path("PWNED").exists()
    else:
        assert listing() == before


@pytest.mark.parametrize("name", some(planted.KEPT))
def test_in_a_file_of_kept_results(name: str, place: Path) -> None:
    invoke(["report", "ok/001", "--keep", "kept.csv"])
    planted.KEPT[name](Path("kept.csv"))
    assert wrong([["report", "kept.csv"], ["report", "ok/001", "--keep", "kept.csv"]]) == []


@pytest.mark.parametrize("name", some(planted.IMAGES))
def test_in_a_folder_of_images(name: str, place: Path) -> None:
    for kind in ("a", "b"):
        for number in range(8):
            path = Path("pictures", "site", kind, f"{number}.png")
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (number, 0, 0)).save(path)
    planted.IMAGES[name](Path("pictures/site/a/0.png"))
    data = "data={name: folder, path: pictures, size: 8}"
    assert wrong([["run", "x.yaml", data, "name=f"], ["data", "show", "x.yaml", data]]) == []
    assert name == "escapes" or not Path("runs/f").exists()


@pytest.mark.parametrize("setting", ["start", "model.weights"])
def test_in_weights(setting: str, place: Path) -> None:
    os.mkfifo("w.safetensors")
    model = ["model={name: torchvision, network: resnet18, weights: w.safetensors}"]
    typed = ["start=w.safetensors"] if setting == "start" else model
    assert wrong([["run", "x.yaml", *typed], ["tune", "x.yaml", "--plan", *typed]]) == []
    assert invoke(["run", "x.yaml", *typed]) == 2


@pytest.mark.parametrize("name", ["files elsewhere", "a pipe", "a list"])
def test_in_a_run_to_start_from(name: str, place: Path) -> None:
    planted.FOLDERS[f"checkpoint: {name}"](RUN)
    assert wrong([["run", "x.yaml", "start=m/001", "name=s"]]) == [] and not Path("runs/s").exists()


def test_commands_that_name_no_run(place: Path) -> None:
    """Every object that does not take the others' place, in a folder of its own."""
    for number, plant in enumerate(planted.FOLDERS.values(), 2):
        shutil.copytree(RUN, run := RUN.with_name(f"{number:03d}"))
        plant(run)
    assert wrong(OVER_ALL) == []


def test_a_data_cache_there(bucket: None, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLRAY_DATA", "s3://flray-test/data")
    for key in ("manifest.json", "x.npy", "../../../../outside/rc"):
        put(f"data/decoded/cifar10/{key}")
    data = ["run", "x.yaml", "data={name: cifar10}"]
    assert wrong([data, ["data", "get", "cifar10"], ["data", "list"]]) == []


def test_finished_trials_in_a_bucket(bucket: None, place: Path) -> None:
    import boto3

    store = boto3.client("s3")
    deep = json.dumps({"status": "finished"}).encode()
    for key in ("run.json", "x/run.json", "a/1/trials/0/run.json"):
        store.put_object(Bucket="flray-test", Key=f"tuned/{key}", Body=deep)
    plan = ["tune", "x.yaml", "--plan", "output=s3://flray-test/tuned"]
    assert wrong([plan]) == [] and invoke(plan) == 0
    put("tuned/a/../../../outside/rc")
    assert wrong([plan]) == [] and invoke(plan) == 2


SWEEP = Path("runs/w/001")
TRIAL = SWEEP / "trials" / "0001"
CHECKPOINT = SWEEP / "tune" / "001" / "0001" / "round_000001"
MADE: dict[str, Path] = {}  # the sweep's copy, by the folder in which it was made
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
    trial = "w/001/trials/0001"
    commands = [
        *(["compare", "w/001", "w/002"], ["compare", "w/001/trials/0000", trial]),
        *(["report", "w/001", "--keep", "kept.csv", "--to", "made"], ["report", trial]),
        *(["export", "w/001"], ["export", trial, "--all", "--to", "model"]),
        *(["sync", "w/001"], ["sync", trial]),
    ]
    return [*OVER_ALL[:2], *([*words, *more] for words in commands)]


@pytest.fixture
def sweep(
    ray_here: Any, place: Path, tmp_path_factory: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two sweeps of two trials in the current folder; the first was interrupted when both had finished."""
    if not EVERY:  # reports are written, and save most of their time
        monkeypatch.setattr("flray.drawing.canvas.render", lambda *_: b"<svg >")
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
    commands += [["resume", "w/001"], ["report", "again"]]
    assert wrong(commands) == [] and not listener


@pytest.mark.slow
@pytest.mark.parametrize(("where", "name"), [one for one in PLACES if one[1] in planted.BUCKETS])
@pytest.mark.usefixtures("bucket", "sweep", "place")
def test_a_sweep_in_a_bucket(where: str, name: str, listener: list[bytes]) -> None:
    shutil.rmtree("runs/m")
    shutil.rmtree("runs/ok")
    prefix = f"{where}-{name.replace(' ', '-').replace(':', '')}"
    folders = [SWEEP, SWEEP.with_name("002"), *SWEEP.parent.glob("*/trials/*")]
    output = put_planted(name, prefix, SWEEP if where == "sweep" else TRIAL, folders)
    shutil.rmtree("runs/w")
    named = [one for one in over_sweep("--output", output) if one[0] != "ls"]
    assert wrong([*named, ["tune", "w.yaml", f"output={output}", "--plan"]]) == [] and not listener
    if where == "sweep":
        assert refusal(name) in told(2, "resume", "w/001", "--output", output)
