"""Data sets from their makers' files: every form of them, and one clear message for each flaw."""

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat

from flray.data.inventory import FETCHABLE, get
from flray.data.loading import load_dataset
from flray.data.sources.archives import FILES, read_pickled_arrays
from flray.errors import FlrayError
from tests.data.writers import cifar100_pickles, jpeg_archive, pixels, python_cifar10
from tests.messages import refused


def test_files_that_change_are_decoded_again(tmp_path: Path) -> None:
    python_cifar10(tmp_path / "archives/cifar-10")
    before = load_dataset("cifar-10", root=tmp_path).fingerprint
    path = tmp_path / "archives/cifar-10/test_batch"
    content = read_pickled_arrays(path)
    content["labels"][0] = 9
    path.write_bytes(pickle.dumps(content, protocol=2))
    os.utime(path, (1, 1))
    assert load_dataset("cifar-10", root=tmp_path).fingerprint != before


def test_cifar100_knows_its_superclasses_and_serves_pachinko(tmp_path: Path) -> None:
    _, fine = cifar100_pickles(tmp_path / "archives/cifar-100/cifar-100-python")
    dataset = load_dataset("cifar-100", root=tmp_path)
    assert dataset.coarse == tuple(c // 5 for c in range(100))
    assert np.array_equal(dataset.domains[0].train_y, fine)
    coarse = load_dataset("cifar-100", {"labels": "coarse"}, tmp_path)
    assert np.array_equal(coarse.domains[0].test_y, fine // 5)


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-300])


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 3] ^= 0xFF
    path.write_bytes(raw)


def with_array(name: str, values: Any) -> Any:
    def change(path: Path) -> None:
        array = np.array(values, dtype=object if values is None else None)
        np.savez(path, **{**np.load(path), name: array})

    return change


@pytest.mark.parametrize(
    "damage",
    [
        cut_short,
        flip,
        with_array("classes", None),
        with_array("label", [12] * 20),
        with_array("label", [-1] * 20),
        with_array("label", [0.5] * 20),
        with_array("label", [[1]] * 20),
        with_array("offset", [0, 5, 9]),
        with_array("is_test", [True]),
        with_array("classes", ["dodo"]),
    ],
)
def test_a_damaged_archive_of_jpegs_is_named(damage: Any, tmp_path: Path) -> None:
    path = tmp_path / "c.npz"
    jpeg_archive(path)
    damage(path)
    refused(load_dataset, "cifar10-jpeg", {"path": str(path)}, tmp_path)


@pytest.mark.parametrize("label", [0.5, -1.0])
def test_labels_of_matlab_files_are_digits(label: float, tmp_path: Path) -> None:
    x, y = pixels(10, 28, 28, 3), np.arange(1.0, 11.0)
    y[3] = label
    for name in ("train_32x32.mat", "test_32x32.mat"):
        savemat(tmp_path / name, {"X": pixels(32, 32, 3, 10), "y": y[:, None]})
    content = {"train": x, "label_train": y[:, None], "test": x, "label_test": y[:, None]}
    savemat(tmp_path / "mnistm_with_label.mat", content)
    for name in ("svhn", "mnist-m"):
        refused(load_dataset, name, {"path": str(tmp_path)}, tmp_path)


@pytest.mark.parametrize("name", sorted(FILES.keys() - FETCHABLE.keys()))
def test_what_is_absent_is_named_with_where_to_get_it(name: str, tmp_path: Path) -> None:
    with pytest.raises(FlrayError) as error:
        load_dataset(name, {"path": str(tmp_path)}, tmp_path)
    assert len(str(error.value).splitlines()) == 1
    words = ("cifar-100" if name == "fc100" else name, str(tmp_path), "comes from", "data.path")
    assert all(word in str(error.value) for word in words)


@pytest.mark.parametrize(
    "content",
    [
        None,
        {"data": pixels(10, 3072), "labels": [10, *range(9)]},
        {"data": pixels(10, 3072)},
        {"data": pixels(9, 3072), "labels": [*range(10)]},
        {"data": pixels(10, 3070), "labels": [*range(10)]},
    ],
)
def test_a_damaged_file_is_named_in_one_line(content: Any, tmp_path: Path) -> None:
    python_cifar10(tmp_path / "archives/cifar-10")
    path = tmp_path / "archives/cifar-10/data_batch_2"
    path.write_bytes(path.read_bytes()[:-100] if content is None else pickle.dumps(content, 2))
    refused(load_dataset, "cifar-10", root=tmp_path)
    assert not list(tmp_path.glob("cifar-10/*"))


def test_fc100_is_fetched_as_cifar100(tmp_path: Path) -> None:
    cifar100_pickles(tmp_path / "archives/cifar-100")
    lines: list[str] = []
    get("fc100", tmp_path, lines.append)
    assert lines == [f"fc100: ready in {tmp_path}"]
    assert len(load_dataset("fc100", root=tmp_path).domains[0].train_y) == 60 * 4
