"""The two archives of five digit domains that the papers use: FedBN's Digits-5 and Digit-Five."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from flray.data.datasets.embedded import (
    DIGITS,
    ChosenDomains,
    SampleCap,
    Seed,
    cap_samples,
    choose_domains,
)
from flray.data.loading import fit_to_shape
from flray.data.sources.archives import (
    Files,
    Place,
    check_labels,
    expect,
    register_source,
    whole_numbers,
)
from flray.data.sources.images import channel_statistics
from flray.data.sources.safe_unpickle import read_pickled_arrays
from flray.data.types import Array, Arrays, DataSet, Domain, Origin
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


def labels_of(path: Path, values: ArrayLike, count: int) -> NDArray[np.int64]:
    """Return labels 0 to 9 from numbers (a zero may be written as 10) or one-hot rows."""
    array = np.asarray(values)
    if array.ndim == 2 and array.shape[1] == 10:
        array = array.argmax(1)
    labels = whole_numbers(path, array.ravel())
    if 0 not in labels:
        labels = np.where(labels == 10, 0, labels)
    expect(path, len(labels) == count, f"{len(labels)} labels for {count} images", "as many")
    check_labels(path, labels, 10)
    return labels


def _validate_pair(
    path: Path, images: ArrayLike, labels: ArrayLike
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    x = images_of(path, images)
    return x, labels_of(path, labels, len(x))


def read_pickled_parts(folder: Path, names: Sequence[str]) -> list[Array]:
    """Return a domain's training and test images and labels; the last file is the test part."""
    pairs = []
    for name in names:
        content = read_pickled_arrays(folder / name)
        expect(
            folder / name,
            isinstance(content, (tuple, list)) and len(content) == 2,
            type(content).__name__,
            "a pair of images and labels",
        )
        pairs.append(_validate_pair(folder / name, *content))
    return [
        np.concatenate([x for x, _ in pairs[:-1]]),
        np.concatenate([y for _, y in pairs[:-1]]),
        *pairs[-1],
    ]


def _read_matlab(path: Path, wanted: Mapping[str, Sequence[str]]) -> Arrays:
    """Return a MATLAB file's variables by what they are here; each may have one of several names."""
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

    def read(folder: Path, names: Sequence[str]) -> list[Array]:
        path = folder / names[0]
        found = _read_matlab(
            path,
            {
                "x": train,
                "y": ("label_train", "train_label"),
                "tx": test,
                "ty": ("label_test", "test_label"),
            },
        )
        return [
            *_validate_pair(path, found["x"], found["y"]),
            *_validate_pair(path, found["tx"], found["ty"]),
        ]

    return read


def _read_svhn(folder: Path, names: Sequence[str]) -> list[Array]:
    parts: list[Array] = []
    for name in names:
        found = _read_matlab(folder / name, {"X": ("X",), "y": ("y",)})
        parts += _validate_pair(folder / name, found["X"].transpose(3, 2, 0, 1), found["y"])
    return parts


def _read_usps(folder: Path, names: Sequence[str]) -> list[Array]:
    path = folder / names[0]
    dataset = _read_matlab(path, {"dataset": ("dataset",)})["dataset"]
    expect(
        path,
        getattr(dataset, "shape", ()) == (2, 2),
        f"dataset of {getattr(dataset, 'shape', ())}",
        "2 by 2 cells",
    )
    return [
        *_validate_pair(path, dataset[0][0], dataset[0][1]),
        *_validate_pair(path, dataset[1][0], dataset[1][1]),
    ]


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
FOLDERS = {
    "mnist": "MNIST",
    "svhn": "SVHN",
    "usps": "USPS",
    "synthdigits": "SynthDigits",
    "mnistm": "MNIST_M",
}
_FOUR = ("train_x", "train_y", "test_x", "test_y")
_FEDBN = {
    domain: [
        f"{sub}/{name}"
        for name in (*(f"partitions/train_part{i}.pkl" for i in range(10)), "test.pkl")
    ]
    for domain, sub in FOLDERS.items()
}
_MAT = {
    "mnist": ("mnist_data.mat",),
    "svhn": ("svhn_train_32x32.mat", "svhn_test_32x32.mat"),
    "usps": ("usps_28x28.mat",),
    "synthdigits": ("syn_number.mat",),
    "mnistm": ("mnistm_with_label.mat",),
}


def _decode_fedbn(folder: Path, names: Sequence[str]) -> Arrays:
    return {
        f"{domain}_{part}": array
        for domain in FOLDERS
        for part, array in zip(_FOUR, read_pickled_parts(folder, _FEDBN[domain]), strict=True)
    }


def _decode_five(folder: Path, names: Sequence[str]) -> Arrays:
    return {
        f"{domain}_{part}": array
        for domain, read in MATLAB_READERS.items()
        for part, array in zip(_FOUR, read(folder, _MAT[domain]), strict=True)
    }


FEDBN_FILES = register_source(
    Files(
        "digits5",
        [[name for names in _FEDBN.values() for name in names]],
        _decode_fedbn,
        "the link in https://github.com/med-air/FedBN (digit_dataset)",
    )
)
FIVE_FILES = register_source(
    Files(
        "digit-five",
        [[name for names in _MAT.values() for name in names]],
        _decode_five,
        "the data sets of Moment Matching for Multi-Source Domain Adaptation (M3SDA), Digit-Five",
    )
)


def _alone(name: str, domain: str, where: str) -> Files:
    """Return the files of one domain, of either archive."""

    def decode(folder: Path, names: Sequence[str]) -> Arrays:
        read = read_pickled_parts if names[0].endswith(".pkl") else MATLAB_READERS[domain]
        return {
            f"{domain}_{part}": array
            for part, array in zip(_FOUR, read(folder, names), strict=True)
        }

    return register_source(Files(name, [_MAT[domain], _FEDBN[domain]], decode, where))


MNISTM_FILES = _alone(
    "mnist-m", "mnistm", "Digit-Five or FedBN's Digits-5, or http://yaroslav.ganin.net"
)
SYNTHDIGITS_FILES = _alone("synthdigits", "synthdigits", "Digit-Five or FedBN's Digits-5")


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
    return _dataset("digits5", FEDBN_FILES.load(root, path), seed, domains, samples, size)


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
    """Return Digit-Five, the same five domains from their MATLAB files, at their own sizes and official splits."""
    return _dataset("digit-five", FIVE_FILES.load(root, path), seed, domains, samples, size)


@register_dataset("mnist-m")
def mnist_m(
    root: Path, *, path: Place = None, seed: Seed = 0, samples: SampleCap = None, size: Size = 28
) -> DataSet:
    """Return MNIST-M, MNIST's digits over photos, 3x28x28, from Digit-Five's or FedBN's files (composed)."""
    return _dataset(
        "mnist-m", MNISTM_FILES.load(root, path), seed, None, samples, size, ("mnistm",)
    )


@register_dataset("synthdigits")
def synthdigits(
    root: Path, *, path: Place = None, seed: Seed = 0, samples: SampleCap = None, size: Size = 32
) -> DataSet:
    """Return SynthDigits, rendered digits 3x32x32, from Digit-Five's or FedBN's files."""
    return _dataset(
        "synthdigits",
        SYNTHDIGITS_FILES.load(root, path),
        seed,
        None,
        samples,
        size,
        ("synthdigits",),
    )


def _dataset(
    name: str,
    arrays: Arrays,
    seed: int,
    domains: list[str] | None,
    samples: int | None,
    size: int,
    have: Sequence[str] = tuple(DOMAINS),
) -> DataSet:
    made = []
    for domain in choose_domains(
        [Domain(d, DOMAINS[d], *(arrays[f"{d}_{p}"] for p in _FOUR)) for d in have], domains, name
    ):
        taken = cap_samples(domain, samples, seed)
        made.append(
            Domain(
                taken.name,
                taken.origin,
                fit_to_shape(taken.train_x, (3, size, size)),
                taken.train_y,
                fit_to_shape(taken.test_x, (3, size, size)),
                taken.test_y,
            )
        )
    return DataSet(name, tuple(made), DIGITS, *channel_statistics([d.train_x for d in made]))
