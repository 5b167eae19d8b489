"""Digits and letters from their makers' files: Fashion-MNIST, EMNIST, SVHN, and the archives of five digit domains."""

import gzip
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from flray.data.datasets import embedded
from flray.data.datasets.embedded import DIGITS, ChosenDomains, SampleCap, Seed, one_domain
from flray.data.loading import fit_to_shape
from flray.data.sources.archives import Files, Place, register_source
from flray.data.sources.safe_unpickle import read_pickled_arrays
from flray.data.types import Array, Arrays, DataSet, Domain, Origin
from flray.files.border import ARRAYS_BYTES, read_at_most
from flray.registry import register_dataset


def _pair(images: ArrayLike, labels: ArrayLike) -> tuple[Array, Array]:
    """Return images [n, 3, H, W] of 0 to 255, from grey or coloured ones of 0 to 1 or 255, and labels 0 to 9.

    Labels are numbers, of which a zero may be written as 10, or one-hot rows.
    """
    x, y = np.asarray(images), np.asarray(labels)
    if x.ndim == 3:
        x = x[:, None]
    elif x.shape[1] not in (1, 3):
        x = x.transpose(0, 3, 1, 2)
    if x.dtype != np.uint8:
        x = np.rint(x.astype(np.float64) * (255 if x.max() <= 1 else 1))
        if not 0 <= x.min() <= x.max() <= 255:
            raise ValueError("pixels that are not all of 0 to 1 or 0 to 255")
    y = y.argmax(1) if y.ndim == 2 and y.shape[1] == 10 else y.ravel()
    y = y if 0 in y else np.where(y == 10, 0, y)
    return np.broadcast_to(x.astype(np.uint8), (len(x), 3, *x.shape[2:])), y


def _read_fedbn(folder: Path, names: Sequence[str]) -> list[Array]:
    """Return a domain's training and test images and labels; the last file is the test part."""
    pairs = [_pair(*read_pickled_arrays(folder / name)) for name in names]
    return [*map(np.concatenate, zip(*pairs[:-1], strict=True)), *pairs[-1]]


def _read_matlab(folder: Path, names: Sequence[str]) -> list[Array]:
    """Return the same of one MATLAB file, or of two for SVHN."""
    from scipy.io import loadmat

    found: Arrays = loadmat(folder / names[0])
    if "dataset" in found:  # USPS, two rows of cells
        return [array for row in found["dataset"] for array in _pair(*row)]
    if len(names) == 2:
        both = (found, loadmat(folder / names[1]))
        return [a for one in both for a in _pair(one["X"].transpose(3, 2, 0, 1), one["y"])]

    def first(*names: str) -> Array:
        return found[next((name for name in names if name in found), names[0])]

    return [
        array
        for part in ("train", "test")
        for array in _pair(
            first(part, f"{part}_data", f"{part}_28", f"{part}_32"),
            first(f"label_{part}", f"{part}_label"),
        )
    ]


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


def _register_digits(
    name: str,
    where: str,
    *archives: dict[str, list[str]],
    title: str,
    usual: int,
    have: Sequence[str] = tuple(DOMAINS),
) -> None:
    """Register a set of some domains, whose files are those of either archive."""

    def decode(folder: Path, names: Sequence[str]) -> Arrays:
        archive, read = (_FEDBN, _read_fedbn) if names[0].endswith(".pkl") else (_MAT, _read_matlab)
        return {
            f"{domain}_{part}": array
            for domain in have
            for part, array in zip(embedded.PARTS, read(folder, archive[domain]), strict=True)
        }

    layouts = [[file for domain in have for file in archive[domain]] for archive in archives]
    files = register_source(Files(name, where, layouts, decode, 10))

    def dataset(
        root: Path,
        *,
        path: Place = None,
        seed: Seed = 0,
        domains: ChosenDomains = None,
        samples: SampleCap = None,
        size: Size = usual,
    ) -> DataSet:
        arrays, made = files.load(root, path), []
        for domain in embedded.select_domains(name, have, domains):
            parts = (arrays[f"{domain}_{part}"] for part in embedded.PARTS)
            one = embedded.cap_samples(Domain(domain, DOMAINS[domain], *parts), samples, seed)
            x = (fit_to_shape(part, (3, size, size)) for part in (one.train_x, one.test_x))
            made.append(Domain(domain, one.origin, next(x), one.train_y, next(x), one.test_y))
        return embedded.assemble(name, made, DIGITS)

    dataset.__doc__ = title
    register_dataset(name)(dataset)


_register_digits(
    "digits5",
    "the link in https://github.com/med-air/FedBN (digit_dataset)",
    _FEDBN,
    title="Return FedBN's Digits-5 (MNIST, SVHN, USPS, SynthDigits, MNIST-M), 7,438 and about 1,860 "
    "colour images each.",
    usual=28,
)
_register_digits(
    "digit-five",
    "the data sets of Moment Matching for Multi-Source Domain Adaptation (M3SDA), Digit-Five",
    _MAT,
    title="Return Digit-Five, the same five domains from their MATLAB files, in their original sizes and "
    "splits.",
    usual=32,
)
_register_digits(
    "mnist-m",
    "Digit-Five or FedBN's Digits-5, or http://yaroslav.ganin.net",
    _MAT,
    _FEDBN,
    title="Return MNIST-M, MNIST's digits over photos, 3x28x28, from Digit-Five's or FedBN's files "
    "(composed).",
    usual=28,
    have=("mnistm",),
)
_register_digits(
    "synthdigits",
    "Digit-Five or FedBN's Digits-5",
    _MAT,
    _FEDBN,
    title="Return SynthDigits, rendered digits 3x32x32, from Digit-Five's or FedBN's files.",
    usual=32,
    have=("synthdigits",),
)


_FASHION = "T-shirt/top trouser pullover dress coat sandal shirt sneaker bag ankle_boot"
FASHION = tuple(name.replace("_", " ") for name in _FASHION.split())
EMNIST = tuple("0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabdefghnqrt")
"""The 47 merged classes: lower-case letters that look like their capitals count as these."""


def _idx_names(before: str, *parts: str) -> list[str]:
    kinds = ("images-idx3-ubyte.gz", "labels-idx1-ubyte.gz")
    return [f"{before}{part}-{kind}" for part in parts for kind in kinds]


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Return the array of an IDX file of bytes, compressed or not."""
    with path.open("rb") as file, gzip.open(file) if path.suffix == ".gz" else file as stream:
        raw = read_at_most(stream, path, ARRAYS_BYTES)
    if raw[:3] != b"\0\0\x08":
        raise ValueError(f"{path.name} is no IDX file of bytes")
    shape = np.frombuffer(raw, ">u4", raw[3], offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)


def _idx_pairs(folder: Path, names: Sequence[str], turned: bool) -> Arrays:
    """Return both parts; EMNIST stores its images turned: rows and columns change places."""
    x, y, test_x, test_y = (read_idx(folder / name) for name in names)
    return {
        "train_x": x.swapaxes(1, 2)[:, None] if turned else x[:, None],
        "train_y": y,
        "test_x": test_x.swapaxes(1, 2)[:, None] if turned else test_x[:, None],
        "test_y": test_y,
    }


def _svhn(folder: Path, names: Sequence[str]) -> Arrays:
    return dict(zip(embedded.PARTS, _read_matlab(folder, names), strict=True))


_IDX = _idx_names("", "train", "t10k")
_ZALANDO = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
FASHION_FILES = register_source(
    Files(
        "fashion-mnist",
        "https://github.com/zalandoresearch/fashion-mnist or the Debian package "
        "dataset-fashion-mnist",
        [_IDX, [f"FashionMNIST/raw/{name}" for name in _IDX], [name[:-3] for name in _IDX]],
        partial(_idx_pairs, turned=False),
        len(FASHION),
        {
            f"{_ZALANDO}/train-images-idx3-ubyte.gz": "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            f"{_ZALANDO}/train-labels-idx1-ubyte.gz": "25c81989df183df01b3e8a0aad5dffbe",
            f"{_ZALANDO}/t10k-images-idx3-ubyte.gz": "bef4ecab320f06d8554ea6380940ec79",
            f"{_ZALANDO}/t10k-labels-idx1-ubyte.gz": "bb300cfdad3c16e7a12a480ee83cd310",
        },
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
        partial(_idx_pairs, turned=True),
        len(EMNIST),
        {
            "https://biometrics.nist.gov/cs_links/EMNIST/gzip.zip": "58c8d27c78d21e728a6bc7b3cc06412e"
        },
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
        10,
        {
            "http://ufldl.stanford.edu/housenumbers/train_32x32.mat": "e26dedcc434d2e4c54c9b2d4a06d8373",
            "http://ufldl.stanford.edu/housenumbers/test_32x32.mat": "eb5a983be6a315427106f1b164d9cef3",
        },
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
