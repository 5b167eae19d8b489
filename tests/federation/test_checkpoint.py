"""Checkpoints on disk: their order, what damage costs, and what a manifest may name."""

import json
import resource
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flray import trees
from flray.federation import FederationSpec, checkpoint
from flray.federation.federation import Federation, inline_federation
from flray.federation.worker.client_runner import InlineExecutor
from flray.federation.worker.diagnostics import encode, save_encoded
from flray.files import write_atomically
from flray.records import Journal, directory
from flray.runs.loop import RoundLoop, RoundRecorder
from flray.runs.progress import Progress
from tests.helpers import Clock, Settings, built, cases
from tests.messages import refused


@pytest.fixture
def spec(digits: Settings) -> FederationSpec:
    return built(digits, model="linear", local={"lr": 0.05})


def federation_of(spec: FederationSpec, rounds_done: int) -> Federation:
    federation = inline_federation(spec, print)
    federation.server.round = rounds_done
    return federation


def test_the_newest_checkpoint_has_the_highest_number(spec: FederationSpec, tmp_path: Path) -> None:
    for number in (999_998, 999_999, 1_000_000, 1_000_001):
        checkpoint.save(federation_of(spec, number), tmp_path, keep=2)
    names = [path.name for path in checkpoint.manifests(tmp_path)]
    assert names == ["round-1000000.json", "round-1000001.json"]
    assert checkpoint.restore(federation_of(spec, 0), tmp_path) == 1_000_001


def test_no_damaged_checkpoint_outlives_a_whole_one(spec: FederationSpec, tmp_path: Path) -> None:
    for done in (2, 4):
        checkpoint.save(federation_of(spec, done), tmp_path)
    max(tmp_path.glob("server-000004*")).write_bytes(b"torn")
    federation = federation_of(spec, 0)
    assert checkpoint.restore(federation, tmp_path) == 2
    federation.server.round = 3
    checkpoint.save(federation, tmp_path, keep=1)
    assert checkpoint.restore(federation_of(spec, 0), tmp_path) == 3


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "3", '{"format": 1, "files": []}', '{"format": 1, "files": {"a": 1}}'],
)
def test_an_old_manifest_is_harmless(spec: FederationSpec, tmp_path: Path, content: str) -> None:
    checkpoint.save(federation_of(spec, 1), tmp_path)
    (tmp_path / "round-000001.json").write_text(content)
    checkpoint.save(federation_of(spec, 2), tmp_path)
    assert checkpoint.restore(federation_of(spec, 0), tmp_path) == 2
    (tmp_path / "round-000003.json").write_text(content)
    said: list[str] = []
    assert checkpoint.restore(federation_of(spec, 0), tmp_path, said.append) == 2
    assert len(said) == 1 and "round-000003.json" in said[0] and "round-000002.json" in said[0]


def test_a_manifest_names_files_of_its_folder_only(spec: FederationSpec, tmp_path: Path) -> None:
    path = checkpoint.save(federation_of(spec, 1), tmp_path / "here")
    manifest = json.loads(path.read_text())
    ((name, digest),) = manifest["files"].items()
    (tmp_path / "here" / name).rename(tmp_path / name)
    path.write_text(json.dumps({**manifest, "files": {f"../{name}": digest}}))
    refused(checkpoint.restore, federation_of(spec, 0), tmp_path / "here")


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a", b"old")
    with pytest.raises(TypeError):
        write_atomically(tmp_path / "a", "no bytes")  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"


def test_a_full_disk_tears_neither_the_partition_nor_diagnostics(tmp_path: Path) -> None:
    """A torn partition.json would keep the run from being resumed, and torn diagnostics would stay."""
    diagnostics = encode({"a": np.arange(9)})
    writers = [lambda: directory.save_partition({"classes": ["0", "1"]}, tmp_path)]
    writers += [lambda: save_encoded(diagnostics, tmp_path / directory.FINAL_DIAGNOSTICS)]
    _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
    for write in writers:
        resource.setrlimit(resource.RLIMIT_FSIZE, (10, most))
        try:
            with pytest.raises(OSError, match="too large"):
                write()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
    assert list(tmp_path.iterdir()) == []


@pytest.fixture
def with_states(digits: Settings) -> FederationSpec:
    """Six clients that keep their whole model."""
    settings = {"model": "linear", "rounds": 9, "local": {"lr": 0.05}}
    return built(digits, **settings, algorithm="local", partition={"name": "iid", "clients": 6})


def trained(federation: Federation, clients: list[int]) -> Federation:
    """Do as if a round had replaced these clients' states."""
    federation.server.round += 1
    for client in clients:
        values = {"weights": {"a": torch.full((50,), float(client + 10 * federation.server.round))}}
        federation.states[client] = trees.pack(values)
        federation.versions[client] = federation.server.round
    return federation


def files_of(folder: Path) -> dict[str, list[str]]:
    """Return the clients of each file of the newest manifest."""
    manifest = json.loads(checkpoint.manifests(folder)[-1].read_text())
    found: dict[str, list[str]] = {}
    for client, name in manifest["clients"].items():
        found.setdefault(name, []).append(client)
    assert set(found) == {name for name in manifest["files"] if name.startswith("clients-")}
    return found


def test_states_lie_together_and_only_new_ones_are_written_until_most_are_old(
    with_states: FederationSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    federation = trained(inline_federation(with_states, print), [0, 1, 2, 3, 4])
    checkpoint.save(federation, tmp_path, keep=1)
    assert [*files_of(tmp_path).values()] == [["0", "1", "2", "3", "4"]]
    checkpoint.save(trained(federation, [1, 5]), tmp_path, keep=1)
    assert sorted(files_of(tmp_path).values()) == [["0", "2", "3", "4"], ["1", "5"]]
    before = federation.sha256()
    # of five in the first file three are left, then two: these two are written again
    checkpoint.save(trained(federation, [0]), tmp_path, keep=1)
    assert len(files_of(tmp_path)) == 3
    restored = inline_federation(with_states, print)
    checkpoint.restore(restored, tmp_path)
    assert restored.sha256() == federation.sha256() != before
    for one in (federation, restored):  # one that was restored knows as much
        folder = tmp_path.with_name(f"{tmp_path.name}-{id(one)}")
        shutil.copytree(tmp_path, folder)
        checkpoint.save(trained(one, [2]), folder, keep=1)
        assert sorted(files_of(folder).values()) == [["0"], ["1", "5"], ["2", "3", "4"]]
        assert len(list(folder.glob("clients-*"))) == 3
    monkeypatch.setattr(checkpoint, "PACK_BYTES", 500)  # two states of 200 bytes
    checkpoint.save(trained(federation, [0, 1, 2, 3, 4, 5]), tmp_path, keep=1)
    assert sorted(files_of(tmp_path).values()) == [["0", "1"], ["2", "3"], ["4", "5"]]


def test_a_damaged_file_is_no_stored_state(with_states: FederationSpec, tmp_path: Path) -> None:
    federation = trained(inline_federation(with_states, print), [0, 1, 2, 3, 4, 5])
    checkpoint.save(federation, tmp_path)
    checkpoint.save(trained(federation, [4, 5]), tmp_path)
    (newest,) = (name for name, held in files_of(tmp_path).items() if held == ["4", "5"])
    (tmp_path / newest).write_bytes(b"damaged")
    again = inline_federation(with_states, print)
    assert checkpoint.restore(again, tmp_path) == 1
    checkpoint.save(trained(again, [4, 5]), tmp_path)
    last = inline_federation(with_states, print)
    assert checkpoint.restore(last, tmp_path) == 2 and last.sha256() == federation.sha256()


def test_a_manifest_of_no_such_client_is_told(with_states: FederationSpec, tmp_path: Path) -> None:
    federation = trained(inline_federation(with_states, print), [0, 1])
    path = checkpoint.save(federation, tmp_path)
    manifest = json.loads(path.read_text())
    for file in (manifest["clients"]["0"], "clients-of-no-file.safetensors"):
        clients = {**manifest["clients"], "3": file}
        path.write_text(json.dumps({**manifest, "clients": clients}))
        refused(checkpoint.restore, inline_federation(with_states, print), tmp_path)


@cases("case", "[0.001, 1.0, [1, 4]], [0, 0.1, [1, 2, 3, 4]], [600, 0.0, [4]]")
def test_writing_takes_a_tenth_of_the_time_at_most(
    digits: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, case: Any
) -> None:
    min_seconds, writing, saved = case
    clock, found = Clock(), list[int]()
    monkeypatch.setattr("flray.runs.loop.time", clock)
    spec = built(digits, model="linear", rounds=4, checkpoint={"min_seconds": min_seconds})

    class SlowlySaved(Federation):
        def save(self, folder: Path, keep: int) -> None:
            clock.now += writing
            super().save(folder, keep)
            found.append(self.rounds_done)

    with Journal(tmp_path / "journal.jsonl") as journal:
        recorder = RoundRecorder(journal, spec.config, name="", group="", metric="", say=print)
        RoundLoop(spec, SlowlySaved(spec, InlineExecutor(spec)), recorder, Progress()).run()
    assert found == saved
