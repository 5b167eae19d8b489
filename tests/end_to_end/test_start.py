"""``experiment.start``: training goes on from the global model of another run, or from a file."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from flray.cli.main import invoke
from flray.config.loader import load
from flray.errors import ConfigError, ConfigErrors
from flray.federation.building import build_spec
from flray.records import directory
from flray.runs import runner
from tests.end_to_end.pool import Pools
from tests.helpers import INLINE


@pytest.fixture
def first(tmp_cwd: Path, digits: dict[str, Any]) -> Path:
    digits |= {**INLINE, "rounds": 2}
    return runner.run({"experiment": digits}).folder


def weights(run: Path) -> dict[str, torch.Tensor]:
    assert invoke(["export", str(run)]) == 0
    return safetensors.torch.load_file(run / "export" / "global.safetensors")


def test_the_first_model_is_the_last_one_of_the_run_or_of_a_file(
    first: Path, digits: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    left = weights(first)
    for start in ("digits/001", str(first), f"{first}/export/global.safetensors"):
        settings = {**digits, "name": "more", "local": {"epochs": 0}, "rounds": 1, "start": start}
        more = runner.run({"experiment": settings})
        found = weights(more.folder)
        assert found.keys() == left.keys()
        assert all(torch.equal(found[name], left[name]) for name in left)


def test_other_processes_start_from_it_too(
    first: Path, digits: dict[str, Any], pools: Pools
) -> None:
    settings = {**digits, "start": str(first), "algorithm": "fedbn"}
    inline = runner.run({"experiment": settings})
    spec = build_spec(load({"experiment": settings}).experiment)
    assert pools[2].run_federation(spec).sha256() == inline.sha256
    fresh = runner.run({"experiment": {**settings, "start": None}})
    assert fresh.sha256 != inline.sha256


def test_a_killed_run_needs_the_file_that_it_began_with(
    first: Path, digits: dict[str, Any]
) -> None:
    weights(first)
    shutil.copy(first / "export" / "global.safetensors", "w.safetensors")
    run = runner.run({"experiment": {**digits, "start": "w.safetensors"}})
    directory.update(run.folder, status="interrupted")
    kept = Path("w.safetensors").read_bytes()
    Path("w.safetensors").unlink()
    with pytest.raises(ConfigError, match=r"experiment\.start: found .*w\.safetensors; it cannot"):
        runner.resume(run.folder)
    Path("w.safetensors").write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    with pytest.raises(ConfigError, match="not the file that was there at the beginning"):
        runner.resume(run.folder)
    Path("w.safetensors").write_bytes(kept)
    assert runner.resume(run.folder).sha256 == run.sha256


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("nowhere/001", {}, "no weights are there; needed is a run, for example demo/001"),
    ("own/001", {}, "local has no global model; flray export RUN --client NAME"),
    ("digits/001", {"model": "mlp"}, "mlp has none: weights of the same network are needed"),
    ("bad.safetensors", {}, "it holds no weights; a safetensors file is needed"),
    ("bad.safetensors.d", {}, "no weights are there"),
]


def test_what_holds_no_such_weights_is_refused(first: Path, digits: dict[str, Any]) -> None:
    runner.run({"experiment": {**digits, "name": "own", "algorithm": "local", "rounds": 1}})
    Path("bad.safetensors").write_bytes(b"no weights")
    before = sorted(Path("runs").rglob("*"))
    for start, changes, said in REFUSED:
        with pytest.raises((ConfigError, ConfigErrors), match=said) as caught:
            runner.run({"experiment": {**digits, **changes, "start": start}})
        assert len(str(caught.value).splitlines()) == 1
        assert sorted(Path("runs").rglob("*")) == before
