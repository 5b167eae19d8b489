"""The large array lies by pixel, is shared without a copy, and stays on disk where it is large."""

import pickle
from pathlib import Path

import numpy as np
import pytest

from flray.data.datasets.class_folders import PACS
from flray.data.federated import federate
from flray.data.loading import load_dataset
from flray.data.sources import image_sets
from flray.data.types import DataSet, Domain, Pooled, backing_file
from tests.data.pictures import trees
from tests.messages import refused


def dataset() -> DataSet:
    x = np.random.default_rng(0).integers(0, 256, (12, 3, 4, 5), dtype=np.uint8)
    y = np.arange(12, dtype=np.int64) % 2
    domains = (
        Domain("a", "real", x[:6], y[:6], x[6:8], y[6:8]),
        Domain("b", "real", x[8:10], y[8:10], x[10:], y[10:]),
    )
    return DataSet("d", domains, ("0", "1"), (0.5,) * 3, (0.5,) * 3)


def test_it_travels_out_of_band_and_arrives_as_it_was() -> None:
    data = federate(dataset(), "domains", {}, seed=0)
    buffers: list[pickle.PickleBuffer] = []
    stream = pickle.dumps(data, protocol=5, buffer_callback=buffers.append)
    assert any(b.raw().nbytes == data.x.nbytes for b in buffers)
    arrived = pickle.loads(stream, buffers=buffers)
    assert np.array_equal(arrived.x, data.x) and arrived.x.strides == data.x.strides
    assert np.shares_memory(arrived.x, data.x)
    assert arrived.partition_fingerprint == data.partition_fingerprint


def test_features_that_are_no_images_stay_as_they_are() -> None:
    x = np.arange(12.0, dtype=np.float32).reshape(6, 2)
    y = np.zeros(6, dtype=np.int64)
    domain = Domain("a", "random", x[:4], y[:4], x[4:], y[4:])
    flat = DataSet("f", (domain,), ("0",), (0.0,), (1.0,))
    assert np.array_equal(Pooled.of(flat).x, x)
    assert Pooled.of(flat).x.flags.c_contiguous


@pytest.fixture
def pacs(tmp_path: Path) -> Path:
    return trees(tmp_path / "pacs", dict.fromkeys(PACS.domains, dict.fromkeys(PACS.classes, 4)))


def load(path: Path, root: Path, mapped: bool | None) -> DataSet:
    return load_dataset("pacs", {"path": str(path), "size": 8, "mapped": mapped}, root)


def test_mapped_or_not_the_data_are_the_same_and_pooling_copies_nothing(
    pacs: Path, tmp_path: Path
) -> None:
    sets = [load(pacs, tmp_path, way) for way in (True, False)]
    assert sets[0].fingerprint == sets[1].fingerprint
    assert (sets[0].mean, sets[0].std) == (sets[1].mean, sets[1].std)
    for dataset, way in zip(sets, (True, False), strict=True):
        pooled = Pooled.of(dataset)
        assert np.shares_memory(pooled.x, dataset.domains[0].train_x)
        assert (backing_file(np.moveaxis(pooled.x, 1, -1)) is not None) is way
        parts = [d.train_x for d in dataset.domains] + [d.test_x for d in dataset.domains]
        assert np.array_equal(pooled.x, np.concatenate(parts))


def test_parts_in_another_order_or_incomplete_are_copied(pacs: Path, tmp_path: Path) -> None:
    dataset = load(pacs, tmp_path, True)
    swapped = DataSet("x", dataset.domains[::-1], dataset.classes, dataset.mean, dataset.std)
    some = DataSet("x", dataset.domains[:3], dataset.classes, dataset.mean, dataset.std)
    for other in (swapped, some):
        parts = [d.train_x for d in other.domains] + [d.test_x for d in other.domains]
        x = Pooled.of(other).x
        assert np.array_equal(x, np.concatenate(parts))
        assert np.moveaxis(x, 1, -1).flags.c_contiguous
        assert not np.shares_memory(x, dataset.domains[0].train_x)


def test_mapped_images_travel_as_their_files_name(pacs: Path, tmp_path: Path) -> None:
    data = federate(load(pacs, tmp_path, True), "domains", {}, seed=0)
    for thing in (data, Pooled.of(load(pacs, tmp_path, True))):
        sent = pickle.dumps(thing)
        assert len(sent) < data.x.nbytes / 2
        arrived = pickle.loads(sent)
        assert np.array_equal(arrived.x, data.x)
        assert backing_file(np.moveaxis(arrived.x, 1, -1)) == backing_file(
            np.moveaxis(data.x, 1, -1)
        )
    (file,) = tmp_path.rglob("x.npy")
    file.unlink()
    refused(pickle.loads, sent)


def test_images_larger_than_a_quarter_of_the_free_memory_are_mapped(
    pacs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 112 * 8 * 8 * 3
    for free, way in ((4 * size, False), (4 * size - 1, True)):
        monkeypatch.setattr(image_sets, "_free_memory", lambda free=free: free)
        x = Pooled.of(load(pacs, tmp_path, None)).x
        assert (backing_file(np.moveaxis(x, 1, -1)) is not None) is way


def test_an_altered_cache_is_noticed(pacs: Path, tmp_path: Path) -> None:
    load(pacs, tmp_path, True)
    (file,) = tmp_path.rglob("x.npy")
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    refused(load, pacs, tmp_path, True)
