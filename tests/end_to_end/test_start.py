"""``experiment.start``: training goes on from the global model of another run, or from a file."""

import shutil
from pathlib import Path

import pytest
import safetensors.torch
import torch

from flray.cli.main import invoke
from flray.config.loader import load
from flray.federation import load_start
from flray.records import directory
from flray.runs import runner
from tests.end_to_end.pool import Pools
from tests.helpers import INLINE, Settings, built
from tests.messages import refused


@pytest.fixture
def first(tmp_cwd: Path, digits: Settings) -> Path:
    digits |= {**INLINE, "rounds": 2}
    return runner.run({"experiment": digits}).folder


def weights(run: Path) -> dict[str, torch.Tensor]:
    assert invoke(["export", str(run)]) == 0
    return safetensors.torch.load_file(run / "export" / "global.safetensors")


def test_the_first_model_is_that_of_the_run_or_file(first: Path, digits: Settings) -> None:
    left = weights(first)
    shutil.copy(first / "export" / "global.safetensors", "server-1.safetensors")
    for start in ("digits/001", str(first), "server-1.safetensors"):
        settings = {**digits, "name": "more", "local": {"epochs": 0}, "rounds": 1, "start": start}
        found = weights(runner.run({"experiment": settings}).folder)
        assert found.keys() == left.keys()
        assert all(torch.equal(found[name], left[name]) for name in left)


def test_actors_start_from_it_too(first: Path, digits: Settings, pools: Pools) -> None:
    settings = {**digits, "start": str(first), "algorithm": "fedbn"}
    inline = runner.run({"experiment": settings})
    assert pools[2].run_federation(built(settings)).sha256() == inline.sha256
    assert runner.run({"experiment": {**settings, "start": None}}).sha256 != inline.sha256


def test_a_killed_run_needs_the_file_it_began_with(first: Path, digits: Settings) -> None:
    weights(first)
    shutil.copy(first / "export" / "global.safetensors", "w.safetensors")
    run = runner.run({"experiment": {**digits, "start": "w.safetensors"}})
    directory.update(run.folder, status="interrupted")
    kept = Path("w.safetensors").read_bytes()
    Path("w.safetensors").unlink()
    refused(runner.resume, run.folder)
    Path("w.safetensors").write_bytes(kept[:-1] + bytes([kept[-1] ^ 1]))
    refused(runner.resume, run.folder)
    Path("w.safetensors").write_bytes(kept)
    assert runner.resume(run.folder).sha256 == run.sha256


def test_networks_of_one_name_are_taken_by_their_shapes() -> None:
    """They are numbered by their clients' order, which another seed may deal anew."""
    small, large, fresh = torch.nn.Linear(3, 2), torch.nn.Linear(4, 2), torch.nn.Linear(4, 2)
    load_start(fresh, "mlp", {"mlp": small.state_dict(), "mlp-2": large.state_dict()})
    assert torch.equal(fresh.weight, large.weight)


def test_a_run_s_name_stands_for_its_newest_run(first: Path, digits: Settings) -> None:
    begun = {**digits, "name": "second", "start": "digits"}
    named = runner.run({"experiment": begun})
    newest = max(path.parent for path in Path("runs/digits").glob("*/run.json"))
    assert named.sha256 == runner.run({"experiment": {**begun, "start": str(newest)}}).sha256


def test_a_run_is_looked_for_in_the_output_folder(first: Path, digits: Settings) -> None:
    """There, before runs/; where it lacks the run, in runs/."""
    there = {**digits, "output": "elsewhere"}
    other = runner.run({"experiment": {**there, "seed": 7}}).folder
    for name in ("digits/001", "digits"):
        found = load({"experiment": {**there, "start": name}}).experiment.start
        assert found is not None and Path(found.weights).is_relative_to(other.resolve())
    shutil.rmtree(other.parent)
    found = load({"experiment": {**there, "start": "digits/001"}}).experiment.start
    assert found is not None and Path(found.weights).is_relative_to(first.resolve())


def test_what_holds_no_such_weights_is_refused(first: Path, digits: Settings) -> None:
    runner.run({"experiment": {**digits, "name": "own", "algorithm": "local", "rounds": 1}})
    Path("bad.safetensors").write_bytes(b"no weights")
    Path("runs/empty").mkdir()
    for number, files in enumerate(("null", "[1]", '"server-1"')):  # another program's manifest
        shutil.copytree(first, (damaged := Path(f"runs/damaged/00{number}")))
        newest = max(damaged.glob("checkpoint/round-*.json"))
        newest.write_text(f'{{"files": {files}}}')
    before = sorted(Path("runs").rglob("*"))
    starts = ["nowhere/001", "own/001", "own", "empty", "bad.safetensors", "bad.safetensors.d"]
    starts += ["damaged/000", "damaged/001", "damaged/002"]
    for start, model in (*((start, digits["model"]) for start in starts), ("digits/001", "mlp")):
        refused(runner.run, {"experiment": {**digits, "start": start, "model": model}})
        assert sorted(Path("runs").rglob("*")) == before
