"""Digit data sets made of fetched sources: MNIST, USPS, and `digits5-local`, five domains of different digits.

In digits5-local `mnist`, `usps` and `optdigits` are real, `mnistm` is composed (real digits over
real photos) and `synth` is rendered. optdigits stands where Digits-5 has SVHN, and is not SVHN:
tables that print numbers of Digits-5 beside digits5-local compare two different data sets.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from flray.data.arrays import Array, Arrays
from flray.data.datasets.embedded import DIGITS, SampleCap, Seed, cap_samples, choose_domains
from flray.data.datasets.rendered_digits import render_digits
from flray.data.sources.cache import MANIFEST, read_arrays, write_arrays
from flray.data.sources.images import (
    channel_statistics,
    over_photos,
    photo_crops,
    resize,
    to_colour,
)
from flray.data.types import DataSet, Domain, Origin
from flray.errors import DataError
from flray.registry import register_dataset
from flray.rng import numpy_generator

ORIGINS: dict[str, Origin] = {
    "mnist": "real",
    "usps": "real",
    "optdigits": "real",
    "synth": "rendered",
    "mnistm": "composed",
}
DIGITS5_SOURCES = ("mnist", "usps", "optdigits")
PARTS = ("train_x", "train_y", "test_x", "test_y")
NUM_PUBLIC = 5000

# Part of the folder's name: raised whenever the recipe changes, so that no one trains on the old
# samples.
RECIPE = 1


@register_dataset("mnist")
def mnist(root: Path, *, seed: Seed = 0, samples: SampleCap = None) -> DataSet:
    """Return MNIST, 60,000 and 10,000 images 1x28x28, official split.

    Parameters
    ----------
    root : Path
        Data cache.
    seed : int
        Chooses the subset if `samples` is given.
    samples : int, optional
        At most this many training samples.

    Raises
    ------
    DataError
        If it was not fetched, or a file was altered.
    """
    return _single("mnist", read_arrays(root / "mnist", "mnist"), seed, samples)


@register_dataset("usps")
def usps(root: Path, *, seed: Seed = 0, samples: SampleCap = None) -> DataSet:
    """Return USPS, 9,298 images 1x16x16 split 80/20 by the seed (the source's own halves are not the official ones).

    Parameters
    ----------
    root : Path
        Data cache.
    seed : int
        Decides the split, and the subset if `samples` is given.
    samples : int, optional
        At most this many training samples.

    Raises
    ------
    DataError
        If it was not fetched, or a file was altered.
    """
    return _single("usps", split_usps(read_arrays(root / "usps", "usps"), seed), seed, samples)


@register_dataset("digits5-local")
def digits5_local(
    root: Path, *, seed: Seed = 0, domains: list[str] | None = None, samples: SampleCap = None
) -> DataSet:
    """Return five domains of digits, 3x32x32, with 7,438 training and 1,860 test samples each (optdigits 3,823/1,797).

    Built from the fetched sources at the first use of a seed (`flray data get digits5-local` builds
    seed 0) and kept. `public` are 5,000 crops of photos. Two machines may differ in single pixels
    of `synth`, `mnistm` and the crops, where another release of the font or JPEG library rounds
    differently; the fingerprint tells.

    Parameters
    ----------
    root : Path
        Data cache.
    seed : int
        Which digits are chosen, and how the composed and rendered domains are made.
    domains : list of str, optional
        Subset of mnist, usps, optdigits, synth, mnistm.
    samples : int, optional
        At most this many training samples per domain.

    Raises
    ------
    DataError
        If the sources were not fetched, or a file was altered.
    """
    arrays = load_or_build_digits5(root, seed)
    made = [
        Domain(name, origin, *(arrays[f"{name}_{part}"] for part in PARTS))
        for name, origin in ORIGINS.items()
    ]
    taken = [
        cap_samples(domain, samples, seed)
        for domain in choose_domains(made, domains, "digits5-local")
    ]
    mean, std = channel_statistics([domain.train_x for domain in taken])
    return DataSet("digits5-local", tuple(taken), DIGITS, mean, std, public=arrays["public"])


def load_or_build_digits5(root: Path, seed: int, *, mend: bool = False) -> Arrays:
    """Return the arrays of digits5-local, building and keeping them if this seed has not been built.

    Parameters
    ----------
    root : Path
        Data cache.
    seed : int
        The data set's seed.
    mend : bool
        Build again where a kept file turns out to be missing or altered, instead of raising.

    Raises
    ------
    DataError
        If the sources were not fetched, or a file was altered.
    """
    folder = root / "digits5-local" / f"recipe{RECIPE}-seed{seed}"
    if (folder / MANIFEST).exists():
        try:
            return read_arrays(folder, "digits5-local")
        except DataError:
            if not mend:
                raise
    sources = {name: read_arrays(root / name, "digits5-local") for name in DIGITS5_SOURCES}
    arrays = build_digits5(sources, seed)
    # Another process that was building the same seed may have been quicker and be reading it by
    # now.
    if mend or not (folder / MANIFEST).exists():
        write_arrays(folder, arrays)
    return arrays


def build_digits5(sources: Mapping[str, Arrays], seed: int) -> Arrays:
    """Make the five domains and the public crops.

    Parameters
    ----------
    sources : mapping of str to arrays
        ``mnist``, ``usps`` and ``optdigits``, each with ``train_x, train_y, test_x, test_y``. MNIST
        needs twice as many samples as USPS after its split: `mnist` and `mnistm` have different
        digits.
    seed : int
        The data set's seed.

    Returns
    -------
    dict
        ``{domain}_{train,test}_x`` of uint8 [n, 3, 32, 32], ``..._y`` of int64 [n], and ``public``.
    """
    arrays: Arrays = {}
    for part, values in split_usps(sources["usps"], seed).items():
        arrays[f"usps_{part}"] = _enlarge(values, 1) if part.endswith("x") else values
    for part, values in sources["optdigits"].items():
        arrays[f"optdigits_{part}"] = _enlarge(values, 255 / 16) if part.endswith("x") else values
    for part in ("train", "test"):
        n = len(arrays[f"usps_{part}_y"])
        images, labels = (sources["mnist"][f"{part}_{kind}"] for kind in "xy")
        if len(labels) < 2 * n:
            raise DataError(
                f"digits5-local: {len(labels)} {part} samples of MNIST for two domains of {n} "
                "samples each"
            )
        order = _generator(seed, f"mnist/{part}").permutation(len(labels))
        arrays[f"mnist_{part}_x"], arrays[f"mnist_{part}_y"] = (
            _enlarge(images[order[:n]], 1),
            labels[order[:n]],
        )
        other = order[n : 2 * n]
        composed = over_photos(
            images[other], photo_crops(n, 28, _generator(seed, f"mnistm/{part}"))
        )
        arrays[f"mnistm_{part}_x"], arrays[f"mnistm_{part}_y"] = resize(composed, 32), labels[other]
        generator = _generator(seed, f"synth/{part}")
        digits = generator.permutation(np.arange(n, dtype=np.int64) % 10)
        arrays[f"synth_{part}_x"], arrays[f"synth_{part}_y"] = (
            render_digits(digits, generator),
            digits,
        )
    arrays["public"] = photo_crops(NUM_PUBLIC, 32, _generator(seed, "public"))
    return arrays


def split_usps(halves: Arrays, seed: int) -> Arrays:
    """Pool the two halves and split them 80/20 by the seed."""
    x, y = (np.concatenate([halves[f"train_{kind}"], halves[f"test_{kind}"]]) for kind in "xy")
    order = _generator(seed, "usps").permutation(len(y))
    train, test = np.split(order, [int(0.8 * len(y))])
    return {"train_x": x[train], "train_y": y[train], "test_x": x[test], "test_y": y[test]}


def _single(
    name: Literal["mnist", "usps"], arrays: Arrays, seed: int, samples: int | None
) -> DataSet:
    parts = [arrays[part][:, None] if part.endswith("x") else arrays[part] for part in PARTS]
    domain = cap_samples(Domain(name, "real", *parts), samples, seed)
    return DataSet(name, (domain,), DIGITS, *channel_statistics([domain.train_x]))


def _enlarge(images: Array, factor: float) -> NDArray[np.uint8]:
    return to_colour(resize(images * factor, 32))


def _generator(seed: int, extra: str) -> np.random.Generator:
    return numpy_generator(seed, "data", extra=f"digits5/{extra}")
