"""Fashion-MNIST, EMNIST and SVHN from their makers' files."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from flray.data.datasets.digit_archives import MATLAB_READERS
from flray.data.datasets.embedded import DIGITS, PARTS, SampleCap, Seed, one_domain
from flray.data.sources.archives import (
    Download,
    Files,
    Place,
    expect,
    labelled_images,
    register_source,
)
from flray.data.types import Arrays, DataSet
from flray.errors import DataError
from flray.files.border import ARRAYS_BYTES, open_file, read_at_most
from flray.registry import register_dataset

_FASHION = "T-shirt/top trouser pullover dress coat sandal shirt sneaker bag ankle_boot"
FASHION = tuple(name.replace("_", " ") for name in _FASHION.split())
EMNIST = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt")
"""The 47 merged classes: lower-case letters that look like their capitals count as these."""
_IDX = [
    f"{part}-{kind}-ubyte.gz"
    for part in ("train", "t10k")
    for kind in ("images-idx3", "labels-idx1")
]


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
    size = 4 + 4 * rank + math.prod(shape)
    expect(path, len(raw) == size, f"{len(raw)} bytes", f"{size} for {list(shape)}")
    return np.frombuffer(raw, dtype=np.uint8, offset=4 + 4 * rank).reshape(shape)


def _idx_pairs(folder: Path, names: Sequence[str], classes: int, turned: bool) -> Arrays:
    """Return both parts; EMNIST stores its images turned: rows and columns change places."""
    arrays: Arrays = {}
    for part, images, labels in (("train", names[0], names[1]), ("test", names[2], names[3])):
        x = read_idx(folder / images)[:, None]
        path, y = folder / labels, read_idx(folder / labels)
        x = x.swapaxes(2, 3) if turned else x
        arrays[f"{part}_x"], arrays[f"{part}_y"] = labelled_images(path, x, y, (1, 28, 28), classes)
    return arrays


def _svhn(folder: Path, names: Sequence[str]) -> Arrays:
    return dict(zip(PARTS, MATLAB_READERS["svhn"](folder, names), strict=True))


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
        "https://github.com/zalandoresearch/fashion-mnist or the Debian package "
        "dataset-fashion-mnist",
        [_IDX, [f"FashionMNIST/raw/{name}" for name in _IDX], [name[:-3] for name in _IDX]],
        partial(_idx_pairs, classes=len(FASHION), turned=False),
        _fashion_downloads,
        elsewhere=(Path("/usr/share/datasets/fashion-mnist"),),
    )
)
EMNIST_FILES = {
    split: Files(
        "emnist",
        "https://www.nist.gov/itl/products-and-services/emnist-dataset",
        [
            [f"{folder}{file}" for file in _emnist_names(split)]
            for folder in ("gzip/", "", "EMNIST/raw/")
        ],
        partial(_idx_pairs, classes=len(EMNIST), turned=True),
        _emnist_downloads,
    )
    for split in ("bymerge", "balanced")
}
register_source(EMNIST_FILES["bymerge"])
SVHN_FILES = register_source(
    Files(
        "svhn",
        "http://ufldl.stanford.edu/housenumbers",
        [["train_32x32.mat", "test_32x32.mat"]],
        _svhn,
        _svhn_downloads,
    )
)


@register_dataset("fashion-mnist")
def fashion_mnist(
    root: Path, *, path: Place = None, seed: Seed = 0, samples: SampleCap = None
) -> DataSet:
    """Return Fashion-MNIST, 60,000 and 10,000 images 1x28x28, official split."""
    return one_domain("fashion-mnist", FASHION_FILES.load(root, path), FASHION, seed, samples)


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
    return one_domain("emnist", EMNIST_FILES[split].load(root, path), EMNIST, seed, samples)


@register_dataset("svhn")
def svhn(root: Path, *, path: Place = None, seed: Seed = 0, samples: SampleCap = None) -> DataSet:
    """Return SVHN, 73,257 and 26,032 cropped house numbers 3x32x32, official split."""
    return one_domain("svhn", SVHN_FILES.load(root, path), DIGITS, seed, samples)
