"""Planted objects in a sweep's folder and in a trial's, and every command that reads them."""

import os
import shutil
from pathlib import Path

import pytest
import yaml

from flray.cli.main import invoke
from flray.records import directory
from tests.border import planted
from tests.border.test_planted import OFTEN, listener, over_run, place, world, wrong
from tests.hostile.values import GOOD

__all__ = ["listener", "place", "world"]
SWEEP = Path("runs/w/001")
TRIAL = SWEEP / "trials" / "0001"
MADE: dict[str, Path] = {}
"""The sweep's copy, by the folder in which it was made."""
CASES = [
    (where, name)
    for where in ("sweep", "trial")
    for name in planted.FOLDERS
    if not name.startswith(("checkpoint", "diagnostics"))
    and (name in OFTEN or os.environ.get("FLRAY_HOSTILE_ALL"))
]
"""A sweep has no checkpoint of its own; scripts/hostile meets all objects, the tests those that are met often."""


@pytest.fixture
def sweep(
    ray_here: dict[str, float], place: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """A sweep of two trials in the current folder, interrupted when both had finished."""
    if not MADE:
        settings = {"name": "w", "model": "linear", "checkpoint": {"min_seconds": 0}}
        settings |= {"data": {"name": "digits-sklearn", "samples": 96}}
        settings |= {"tracking": {"uri": "sqlite:///mlflow.db"}}
        content = {"experiment": GOOD["experiment"] | settings, "sweep": {"seeds": [0, 1]}}
        Path("w.yaml").write_text(yaml.safe_dump(content))
        assert invoke(["tune", "w.yaml"]) == 0
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


@pytest.mark.slow
@pytest.mark.parametrize(("where", "name"), CASES)
def test_in_a_sweep(where: str, name: str, sweep: None, place: Path, listener: list[bytes]) -> None:
    own = SWEEP / "sweep.json", SWEEP / "run.json"
    if where == "sweep":
        own[0].rename(own[1])
    planted.FOLDERS[name](SWEEP if where == "sweep" else TRIAL)
    if where == "sweep":
        own[1].rename(own[0])
    again = ["tune", "w.yaml", "name=again"]
    assert wrong([["ls"], *over_run("w/001")[:-1], again, ["rm", "w/001", "--yes"]]) == []
    assert not listener
