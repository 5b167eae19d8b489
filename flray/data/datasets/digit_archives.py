"""The two archives of five digit domains that the papers use: FedBN's Digits-5 and Digit-Five."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field

from flray.data.arrays import Arrays
from flray.data.datasets.digit_readers import MATLAB_READERS, read_pickled_parts
from flray.data.datasets.embedded import (
    DIGITS,
    ChosenDomains,
    SampleCap,
    Seed,
    cap_samples,
    choose_domains,
)
from flray.data.public import fit_to_shape
from flray.data.sources.archives import Files, Place, register_source
from flray.data.sources.images import channel_statistics
from flray.data.types import DataSet, Domain, Origin
from flray.registry import register_dataset

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
