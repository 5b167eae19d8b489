"""Digits and letters from their makers' files: Fashion-MNIST, EMNIST, SVHN, and the archives of five digit domains."""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from flray.data.datasets.embedded import (
    DIGITS,
    PARTS,
    ChosenDomains,
    SampleCap,
    Seed,
    assemble,
    cap_samples,
    one_domain,
    select_domains,
)
from flray.data.loading import fit_to_shape
from flray.data.sources.archives import (
    Download,
    Files,
    Place,
    expect,
    labelled_images,
    register_source,
    whole_numbers,
)
from flray.data.sources.safe_unpickle import read_pickled_arrays
from flray.data.types import Array, Arrays, DataSet, Domain, Origin
from flray.errors import DataError
from flray.files.border import ARRAYS_BYTES, open_file, read_at_most
from flray.registry import register_dataset

Reader: TypeAlias = "Callable[[Path, Sequence[str]], list[Array]]"


def images_of(path: Path, values: ArrayLike) -> NDArray[np.uint8]:
    """Return images [n, 3, H, W] of 0 to 255 from an archive's array, grey or coloured, channels first or last."""
    array = np.asarray(values)
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[1] not in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    expect(
        path,
        array.ndim == 4 and array.shape[1] in (1, 3) and array.shape[2] == array.shape[3],
        f"images of {list(np.asarray(values).shape)}",
        "[n, H, H], [n, H, H, C] or [n, C, H, H]",
    )
    if array.dtype != np.uint8:
        floating = array.astype(np.float64)
        expect(
            path,
            bool(np.isfinite(floating).all()) and floating.min() >= 0 and floating.max() <= 255,
            f"values from {floating.min():g} to {floating.max():g}",
            "0 to 1 or 0 to 255",
        )
        array = np.rint(floating * (255 if floating.max() <= 1 else 1)).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(array, (len(array), 3, *array.shape[2:])))


def _pair(path: Path, images: ArrayLike, labels: ArrayLike) -> list[Array]:
    """Return images, and labels 0 to 9 from numbers (a zero may be written as 10) or one-hot rows."""
    x, y = images_of(path, images), np.asarray(labels)
    y = whole_numbers(path, y.argmax(1) if y.ndim == 2 and y.shape[1] == 10 else y.ravel())
    y = y if 0 in y else np.where(y == 10, 0, y)
    return list(labelled_images(path, x, y, x.shape[1:], 10))


def read_pickled_parts(folder: Path, names: Sequence[str]) -> list[Array]:
    """Return a domain's training and test images and labels; the last file is the test part."""
    pairs = []
    for name in names:
        content = read_pickled_arrays(folder / name)
        known = isinstance(content, (tuple, list)) and len(content) == 2
        expect(folder / name, known, type(content).__name__, "a pair of images and labels")
        pairs.append(_pair(folder / name, *content))
    return [*map(np.concatenate, zip(*pairs[:-1], strict=True)), *pairs[-1]]


def _read_matlab(path: Path, wanted: Mapping[str, Sequence[str]]) -> Arrays:
    """Return a MATLAB file's variables under flray's names; each may have one of several names in the file."""
    from scipy.io import loadmat

    content: Arrays = loadmat(path)
    found = {}
    for here, names in wanted.items():
        name = next((n for n in names if n in content), None)
        expect(
            path,
            name is not None,
            f"the variables {', '.join(k for k in content if not k.startswith('__'))}",
            f"{' or '.join(names)} among them",
        )
        found[here] = content[str(name)]
    return found


def _reader_of(train: Sequence[str], test: Sequence[str]) -> Reader:
    """Return the reader of one file with two parts, given the names of their images."""
    wanted = {
        "x": train,
        "y": ("label_train", "train_label"),
        "tx": test,
        "ty": ("label_test", "test_label"),
    }

    def read(folder: Path, names: Sequence[str]) -> list[Array]:
        path = folder / names[0]
        x, y, test_x, test_y = _read_matlab(path, wanted).values()
        return [*_pair(path, x, y), *_pair(path, test_x, test_y)]

    return read


def _read_svhn(folder: Path, names: Sequence[str]) -> list[Array]:
    parts: list[Array] = []
    for name in names:
        found = _read_matlab(folder / name, {"X": ("X",), "y": ("y",)})
        parts += _pair(folder / name, found["X"].transpose(3, 2, 0, 1), found["y"])
    return parts


def _read_usps(folder: Path, names: Sequence[str]) -> list[Array]:
    path = folder / names[0]
    dataset = _read_matlab(path, {"dataset": ("dataset",)})["dataset"]
    shape = getattr(dataset, "shape", ())
    expect(path, shape == (2, 2), f"dataset of {shape}", "2 by 2 cells")
    return [array for row in dataset for array in _pair(path, *row)]


MATLAB_READERS: dict[str, Reader] = {
    "mnist": _reader_of(("train_28", "train_32"), ("test_28", "test_32")),
    "svhn": _read_svhn,
    "usps": _read_usps,
    "synthdigits": _reader_of(("train_data",), ("test_data",)),
    "mnistm": _reader_of(("train",), ("test",)),
}


Size = Annotated[int, Field(ge=8, description="height and width to which all are resized")]
DOMAINS: dict[str, Origin] = {
    "mnist": "real",
    "svhn": "real",
    "usps": "real",
    "synthdigits": "rendered",
    "mnistm": "composed",
}
_FEDBN = {
    domain: [*(f"{folder}/partitions/train_part{i}.pkl" for i in range(10)), f"{folder}/test.pkl"]
    for domain, folder in zip(
        DOMAINS, ("MNIST", "SVHN", "USPS", "SynthDigits", "MNIST_M"), strict=True
    )
}
_MAT = {
    "mnist": ["mnist_data.mat"],
    "svhn": ["svhn_train_32x32.mat", "svhn_test_32x32.mat"],
    "usps": ["usps_28x28.mat"],
    "synthdigits": ["syn_number.mat"],
    "mnistm": ["mnistm_with_label.mat"],
}


def _files(
    name: str, where: str, *archives: dict[str, list[str]], have: Sequence[str] = tuple(DOMAINS)
) -> Files:
    """Register the files of some domains, of either archive."""

    def decode(folder: Path, names: Sequence[str]) -> Arrays:
        pickled = names[0].endswith(".pkl")
        arrays: Arrays = {}
        for domain in have:
            read = read_pickled_parts if pickled else MATLAB_READERS[domain]
            parts = read(folder, (_FEDBN if pickled else _MAT)[domain])
            arrays |= {f"{domain}_{part}": a for part, a in zip(PARTS, parts, strict=True)}
        return arrays

    layouts = [[file for domain in have for file in archive[domain]] for archive in archives]
    return register_source(Files(name, where, layouts, decode))


FEDBN_FILES = _files(
    "digits5", "the link in https://github.com/med-air/FedBN (digit_dataset)", _FEDBN
)
FIVE_FILES = _files(
    "digit-five",
    "the data sets of Moment Matching for Multi-Source Domain Adaptation (M3SDA), Digit-Five",
    _MAT,
)
MNISTM_FILES = _files(
    "mnist-m",
    "Digit-Five or FedBN's Digits-5, or http://yaroslav.ganin.net",
    _MAT,
    _FEDBN,
    have=("mnistm",),
)
SYNTHDIGITS_FILES = _files(
    "synthdigits", "Digit-Five or FedBN's Digits-5", _MAT, _FEDBN, have=("synthdigits",)
)


@register_dataset("digits5")
def digits5(
    root: Path,
    *,
    path: Place = None,
    seed: Seed = 0,
    domains: ChosenDomains = None,
    samples: SampleCap = None,
    size: Size = 28,
) -> DataSet:
    """Return FedBN's Digits-5 (MNIST, SVHN, USPS, SynthDigits, MNIST-M), 7,438 and about 1,860 colour images each."""
    return _dataset(FEDBN_FILES, root, path, seed, samples, size, domains)


@register_dataset("digit-five")
def digit_five(
    root: Path,
    *,
    path: Place = None,
    seed: Seed = 0,
    domains: ChosenDomains = None,
    samples: SampleCap = None,
    size: Size = 32,
) -> DataSet:
    """Return Digit-Five, the same five domains from their MATLAB files, in their original sizes and splits."""
    return _dataset(FIVE_FILES, root, path, seed, samples, size, domains)


@register_dataset("mnist-m")
def mnist_m(
    root: Path, *, path: Place = None, seed: Seed = 0, samples: SampleCap = None, size: Size = 28
) -> DataSet:
    """Return MNIST-M, MNIST's digits over photos, 3x28x28, from Digit-Five's or FedBN's files (composed)."""
    return _dataset(MNISTM_FILES, root, path, seed, samples, size, ["mnistm"])


@register_dataset("synthdigits")
def synthdigits(
    root: Path, *, path: Place = None, seed: Seed = 0, samples: SampleCap = None, size: Size = 32
) -> DataSet:
    """Return SynthDigits, rendered digits 3x32x32, from Digit-Five's or FedBN's files."""
    return _dataset(SYNTHDIGITS_FILES, root, path, seed, samples, size, ["synthdigits"])


def _dataset(
    files: Files,
    root: Path,
    path: str | None,
    seed: int,
    samples: int | None,
    size: int,
    domains: list[str] | None,
) -> DataSet:
    arrays, made = files.load(root, path), []
    for name in select_domains(files.name, tuple(DOMAINS), domains):
        parts = (arrays[f"{name}_{part}"] for part in PARTS)
        one = cap_samples(Domain(name, DOMAINS[name], *parts), samples, seed)
        x = (fit_to_shape(part, (3, size, size)) for part in (one.train_x, one.test_x))
        made.append(Domain(name, one.origin, next(x), one.train_y, next(x), one.test_y))
    return assemble(files.name, made, DIGITS)


_FASHION = "T-shirt/top trouser pullover dress coat sandal shirt sneaker bag ankle_boot"
FASHION = tuple(name.replace("_", " ") for name in _FASHION.split())
EMNIST = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt")
"""The 47 merged classes: lower-case letters that look like their capitals count as these."""


def _idx_names(before: str, *parts: str) -> list[str]:
    kinds = ("images-idx3-ubyte.gz", "labels-idx1-ubyte.gz")
    return [f"{before}{part}-{kind}" for part in parts for kind in kinds]


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


_IDX = _idx_names("", "train", "t10k")
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
            [f"{folder}{file}" for file in _idx_names(f"emnist-{split}-", "train", "test")]
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
