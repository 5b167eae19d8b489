"""Checkpoints on disk: their order, what damage costs, and what a manifest may name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from flray.config.loader import load
from flray.federation import checkpoint
from flray.federation.building import build_spec
from flray.federation.federation import Federation, inline_federation
from flray.federation.spec import FederationSpec
from flray.files.atomic import write_atomically


@pytest.fixture
def spec(digits: dict[str, Any]) -> FederationSpec:
    return build_spec(
        load({"experiment": {**digits, "model": "linear", "local": {"lr": 0.05}}}).experiment
    )


def federation_of(spec: FederationSpec, rounds_done: int) -> Federation:
    federation = inline_federation(spec, print)
    federation.server.round = rounds_done
    return federation


def test_the_newest_checkpoint_is_the_one_with_the_highest_number(
    spec: FederationSpec, tmp_path: Path
) -> None:
    for number in (999_998, 999_999, 1_000_000, 1_000_001):
        checkpoint.save(federation_of(spec, number), tmp_path, keep=2)
    assert [path.name for path in checkpoint.manifests(tmp_path)] == [
        "round-1000000.json",
        "round-1000001.json",
    ]
    assert checkpoint.restore(federation_of(spec, 0), tmp_path) == 1_000_001


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", "3", '{"format": 1, "files": []}', '{"format": 1, "files": {"a": 1}}'],
)
def test_a_damaged_older_manifest_is_in_nobody_s_way(
    spec: FederationSpec, tmp_path: Path, content: str
) -> None:
    checkpoint.save(federation_of(spec, 1), tmp_path)
    (tmp_path / "round-000001.json").write_text(content)
    checkpoint.save(federation_of(spec, 2), tmp_path)
    assert checkpoint.restore(federation_of(spec, 0), tmp_path) == 2
    (tmp_path / "round-000003.json").write_text(content)
    said: list[str] = []
    assert checkpoint.restore(federation_of(spec, 0), tmp_path, said.append) == 2
    assert len(said) == 1 and "round-000003.json" in said[0] and "round-000002.json" in said[0]


def test_a_manifest_names_files_of_its_own_folder_only(
    spec: FederationSpec, tmp_path: Path
) -> None:
    path = checkpoint.save(federation_of(spec, 1), tmp_path / "here")
    manifest = json.loads(path.read_text())
    ((name, digest),) = manifest["files"].items()
    (tmp_path / "here" / name).rename(tmp_path / name)
    path.write_text(json.dumps({**manifest, "files": {f"../{name}": digest}}))
    with pytest.raises(checkpoint.DamagedCheckpointError, match="list of files is damaged"):
        checkpoint.restore(federation_of(spec, 0), tmp_path / "here")


def test_a_file_that_cannot_be_written_leaves_nothing_behind(tmp_path: Path) -> None:
    write_atomically(tmp_path / "a", b"old")
    with pytest.raises(TypeError):
        write_atomically(tmp_path / "a", "no bytes")  # type: ignore[arg-type]
    assert [path.name for path in tmp_path.iterdir()] == ["a"]
    assert (tmp_path / "a").read_bytes() == b"old"
