"""Fashion-MNIST, EMNIST and SVHN from their makers' files."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from flray.data.datasets.embedded import DIGITS, SampleCap, Seed, cap_samples
from flray.data.sources.archives import (
    Download,
    Files,
    Place,
    check_labels,
    expect,
    register_source,
    whole_numbers,
)
from flray.data.sources.images import channel_statistics
from flray.data.types import Arrays, DataSet, Domain
from flray.errors import DataError
from flray.files.border import ARRAYS_BYTES, open_file, read_at_most
from flray.registry import register_dataset

FASHION = (
    "T-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)
EMNIST = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt")
"""The 47 merged classes: lower-case letters that look like their capitals count as these."""
_IDX = (
    "train-images-idx3-ubyte.gz",
    "train-labels-idx1-ubyte.gz",
    "t10k-images-idx3-ubyte.gz",
    "t10k-labels-idx1-ubyte.gz",
)


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Return the array of an IDX file of bytes, compressed or not.

    Raises
    ------
    DataError
        If it is truncated or not such a file.
    """
    try:
        with open_file(path) as file, gzip.open(file) if path.suffix == ".gz" else file as stream:
            raw = read_at_most(stream, path, ARRAYS_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{path}: cannot be decompressed ({error}); fetch the file again") from None
    expect(
        path,
        len(raw) >= 4 and raw[:3] == b"\0\0\x08" and len(raw) >= 4 + 4 * raw[3],
        "another kind of file",
        "an IDX file of bytes",
    )
    rank = raw[3]
    shape = struct.unpack(f">{rank}I", raw[4 : 4 + 4 * rank])
    expect(
        path,
        len(raw) == 4 + 4 * rank + math.prod(shape),
        f"{len(raw)} bytes",
        f"{4 + 4 * rank + math.prod(shape)} for {list(shape)}",
    )
    return np.frombuffer(raw, dtype=np.uint8, offset=4 + 4 * rank).reshape(shape)


def _idx_pairs(folder: Path, names: Sequence[str], classes: int) -> Arrays:
    arrays: Arrays = {}
    for part, images, labels in (("train", names[0], names[1]), ("test", names[2], names[3])):
        x, y = read_idx(folder / images), read_idx(folder / labels)
        expect(
            folder / labels,
            y.ndim == 1 and len(y) == len(x),
            f"{len(y)} labels for {len(x)} images",
            "as many",
        )
        check_labels(folder / labels, y.astype(np.int64), classes)
        arrays |= {f"{part}_x": np.ascontiguousarray(x[:, None]), f"{part}_y": y.astype(np.int64)}
    return arrays


def _fashion(folder: Path, names: Sequence[str]) -> Arrays:
    return _idx_pairs(folder, names, len(FASHION))


def _emnist(folder: Path, names: Sequence[str]) -> Arrays:
    arrays = _idx_pairs(folder, names, len(EMNIST))
    # EMNIST stores its images turned: rows and columns change places.
    return {
        part: a.swapaxes(2, 3).copy() if part.endswith("x") else a for part, a in arrays.items()
    }


def _svhn(folder: Path, names: Sequence[str]) -> Arrays:
    from scipy.io import loadmat

    arrays: Arrays = {}
    for part, name in zip(("train", "test"), names, strict=True):
        content: Arrays = loadmat(folder / name)
        expect(folder / name, {"X", "y"} <= content.keys(), "other variables", "X and y")
        x, y = (
            content["X"].transpose(3, 2, 0, 1),
            whole_numbers(folder / name, content["y"].ravel()),
        )
        y = np.where(y == 10, 0, y)  # how a zero is written
        expect(
            folder / name,
            x.shape[1:] == (3, 32, 32) and len(x) == len(y),
            f"{list(x.shape)} and {len(y)} labels",
            "[n, 3, 32, 32] and n labels",
        )
        check_labels(folder / name, y, 10)
        arrays |= {f"{part}_x": np.ascontiguousarray(x), f"{part}_y": y}
    return arrays


def _fashion_downloads() -> Sequence[Download]:
    from torchvision.datasets import FashionMNIST

    return [Download(FashionMNIST.mirrors[0] + name, md5) for name, md5 in FashionMNIST.resources]


def _emnist_downloads() -> Sequence[Download]:
    from torchvision import datasets

    return (Download(datasets.EMNIST.url, datasets.EMNIST.md5, unpack=True),)


def _svhn_downloads() -> Sequence[Download]:
    from torchvision.datasets import SVHN

    return [
        Download(SVHN.split_list[part][0], SVHN.split_list[part][2]) for part in ("train", "test")
    ]


def _emnist_names(split: str) -> list[str]:
    return [
        f"emnist-{split}-{part}-{kind}"
        for part in ("train", "test")
        for kind in ("images-idx3-ubyte.gz", "labels-idx1-ubyte.gz")
    ]


FASHION_FILES = register_source(
    Files(
        "fashion-mnist",
        [_IDX, [f"FashionMNIST/raw/{name}" for name in _IDX], [name[:-3] for name in _IDX]],
        _fashion,
        "https://github.com/zalandoresearch/fashion-mnist or the Debian package "
        "dataset-fashion-mnist",
        _fashion_downloads,
        elsewhere=(Path("/usr/share/datasets/fashion-mnist"),),
    )
)
EMNIST_FILES = {
    split: Files(
        name,
        [
            [f"{folder}{file}" for file in _emnist_names(split)]
            for folder in ("gzip/", "", "EMNIST/raw/")
        ],
        _emnist,
        "https://www.nist.gov/itl/products-and-services/emnist-dataset",
        _emnist_downloads,
    )
    for split, name in (("bymerge", "emnist"), ("balanced", "emnist"))
}
register_source(EMNIST_FILES["bymerge"])
SVHN_FILES = register_source(
    Files(
        "svhn",
        [["train_32x32.mat", "test_32x32.mat"]],
        _svhn,
        "http://ufldl.stanford.edu/housenumbers",
        _svhn_downloads,
    )
)


@register_dataset("fashion-mnist")
def fashion_mnist(
    root: Path, *, path: Place = None, seed: Seed = 0, samples: SampleCap = None
) -> DataSet:
    """Return Fashion-MNIST, 60,000 and 10,000 images 1x28x28, official split."""
    return _dataset("fashion-mnist", FASHION_FILES.load(root, path), FASHION, seed, samples)


@register_dataset("emnist")
def emnist(
    root: Path,
    *,
    path: Place = None,
    seed: Seed = 0,
    samples: SampleCap = None,
    split: Annotated[
        Literal["bymerge", "balanced"], Field(description="all images, or equally many per class")
    ] = "bymerge",
) -> DataSet:
    """Return EMNIST's 47 merged classes of letters and digits, 1x28x28, official split (by merge 697,932 + 116,323)."""
    return _dataset("emnist", EMNIST_FILES[split].load(root, path), EMNIST, seed, samples)


@register_dataset("svhn")
def svhn(root: Path, *, path: Place = None, seed: Seed = 0, samples: SampleCap = None) -> DataSet:
    """Return SVHN, 73,257 and 26,032 cropped house numbers 3x32x32, official split."""
    return _dataset("svhn", SVHN_FILES.load(root, path), DIGITS, seed, samples)


def _dataset(
    name: str, arrays: Arrays, classes: tuple[str, ...], seed: int, samples: int | None
) -> DataSet:
    domain = cap_samples(
        Domain(name, "real", *(arrays[p] for p in ("train_x", "train_y", "test_x", "test_y"))),
        samples,
        seed,
    )
    return DataSet(name, (domain,), classes, *channel_statistics([domain.train_x]))
