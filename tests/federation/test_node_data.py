"""Data that every node reads itself: the same bits, mapped once per node; a node without them is named."""

import socket
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flray import registry
from flray.config.loader import load
from flray.data import loading
from flray.data.sources.cache import data_root, decoded
from flray.data.types import Pooled
from flray.federation.building import build_spec
from flray.federation.ray_backend.pool import node_samples
from flray.ray_session import ray_session
from flray.runs import runner
from tests.helpers import Settings
from tests.messages import refused


@pytest.fixture(autouse=True)
def shared(tmp_cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A shared folder with a small MNIST."""
    monkeypatch.setenv("FLRAY_DATA", str(tmp_cwd / "shared"))
    generator, arrays = np.random.default_rng(0), {}
    for part, count in (("train", 300), ("test", 60)):
        arrays[f"{part}_x"] = generator.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        arrays[f"{part}_y"] = generator.integers(0, 10, count)
    decoded(data_root() / "mnist", lambda _: arrays)
    loading._loaded.clear()


def settings(digits: Settings, **resources: Any) -> Settings:
    world = {"data": "mnist", "partition": {"name": "iid", "clients": 3}}
    return {**digits, **world, "rounds": 2, "resources": resources}


def test_samples_are_the_same_and_mapped(digits: Settings) -> None:
    config = load({"experiment": settings(digits, data="node")}).experiment
    fingerprint = build_spec(config).data.fingerprint
    found = node_samples(config, fingerprint)
    whole = Pooled.of(loading.load_dataset("mnist", config.data.options))
    assert np.array_equal(found.x, whole.x) and np.array_equal(found.y, whole.y)
    assert found.x.strides == whole.x.strides  # channels last in memory
    assert isinstance(found.x.base, np.memmap) and not found.x.flags.writeable
    (folder,) = (data_root() / "pooled" / socket.gethostname()).glob("[!.]*")
    before = folder.stat().st_mtime_ns
    node_samples(config, fingerprint)
    assert folder.stat().st_mtime_ns == before
    (folder / "x.npy").unlink()
    (folder / "x.npy").write_bytes(b"damaged")
    assert np.array_equal(node_samples(config, fingerprint).x, whole.x)


def test_no_data_is_named(digits: Settings, tmp_cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load({"experiment": settings(digits, data="node")}).experiment
    refused(node_samples, config, "0" * 64)
    monkeypatch.setenv("FLRAY_DATA", str(tmp_cwd / "empty"))
    refused(node_samples, config, "1" * 64)


def test_a_part_of_the_data_and_public_samples_are_the_same(digits: Settings) -> None:
    public = {"name": "photos", "samples": 20, "crops": 40}
    content = {**settings(digits, data="node"), "subset": 50, "public": public}
    config = load({"experiment": content}).experiment
    data = build_spec(config).data
    found = node_samples(config, data.fingerprint)
    assert np.array_equal(found.x, data.x) and np.array_equal(found.y, data.y)
    assert data.public is not None and np.array_equal(found.public, data.public)


def test_data_unregistered_there(digits: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load({"experiment": settings(digits, data="node")}).experiment
    monkeypatch.delitem(registry.datasets._entries, "mnist")
    refused(node_samples, config, "0" * 64)


@pytest.mark.slow
def test_a_run_with_data_from_the_nodes(digits: Settings, tmp_cwd: Path) -> None:
    """On a Ray that is started here, whose processes have this environment; public data too."""
    public = {"name": "photos", "samples": 20, "crops": 40}
    digits |= {"public": public, "algorithm": "fccl"}
    inline = runner.run({"experiment": settings(digits, executor="inline")})
    assert "train/public_loss" in inline.history
    content = {"experiment": settings(digits, data="node", actors=1)}
    with ray_session(None):
        assert runner.run(content).sha256 == inline.sha256
        (tmp_cwd / "shared").rename("none")  # the driver has the data in memory
        refused(runner.run, content)
