"""Decoded images stay on disk where they are large: never copied, seen by every process, the same values."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

from flray.data.federated import federate
from flray.data.loading import load_dataset
from flray.data.sources import image_sets
from flray.data.types import DataSet, Pooled, backing_file
from flray.errors import FlrayError
from tests.data.pictures import trees


@pytest.fixture
def pacs(tmp_path: Path) -> Path:
    classes = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
    return trees(
        tmp_path / "pacs",
        {d: dict.fromkeys(classes, 4) for d in ("photo", "art_painting", "cartoon", "sketch")},
    )


def load(path: Path, root: Path, mapped: bool | None) -> DataSet:
    return load_dataset("pacs", {"path": str(path), "size": 8, "mapped": mapped}, root)


def test_mapped_or_not_the_data_are_the_same(pacs: Path, tmp_path: Path) -> None:
    mapped, loaded = (load(pacs, tmp_path, way) for way in (True, False))
    assert mapped.fingerprint == loaded.fingerprint
    assert np.array_equal(Pooled.of(mapped).x, Pooled.of(loaded).x)
    assert (mapped.mean, mapped.std) == (loaded.mean, loaded.std)


@pytest.mark.parametrize("way", [True, False])
def test_pooling_copies_nothing(pacs: Path, tmp_path: Path, way: bool) -> None:
    dataset = load(pacs, tmp_path, way)
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
        assert np.array_equal(Pooled.of(other).x, np.concatenate(parts))
        assert not np.shares_memory(Pooled.of(other).x, dataset.domains[0].train_x)


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
    with pytest.raises(FlrayError, match=r"x\.npy: cannot be read on this node.*data\.mapped"):
        pickle.loads(sent)


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
    with pytest.raises(FlrayError, match=r"x\.npy was altered"):
        load(pacs, tmp_path, True)


def test_a_domain_is_split_alike_whatever_domains_are_taken(pacs: Path, tmp_path: Path) -> None:
    alone = load_dataset(
        "pacs", {"path": str(pacs), "size": 8, "domains": ["cartoon"]}, tmp_path
    ).domains[0]
    among = load(pacs, tmp_path, False).domains[2]
    assert among.name == "cartoon"
    assert np.array_equal(alone.test_x, among.test_x)
