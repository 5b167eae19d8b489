"""Data sets that are always there: scikit-learn's digits as four domains, crops of photos, and random numbers."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from flray.data.sources import images
from flray.data.types import Array, Arrays, DataSet, Domain, Origin
from flray.errors import ConfigError, nearest
from flray.registry import register_dataset
from flray.rng import numpy_generator

PARTS = ("train_x", "train_y", "test_x", "test_y")
DIGITS = tuple(str(digit) for digit in range(10))
Seed = Annotated[int, Field(ge=0, description="seed of the choice and composition of samples")]
ChosenDomains = Annotated[list[str] | None, Field(description="domains to take, default all")]
SampleCap = Annotated[
    int | None,
    Field(ge=1, description="at most this many training samples per domain, default all"),
]
SKLEARN_DOMAINS = ("plain", "inverted", "rotated", "photo")


@register_dataset("digits-sklearn")
def digits_sklearn(
    root: Path, *, seed: Seed = 0, domains: ChosenDomains = None, samples: SampleCap = None
) -> DataSet:
    """Return the 1,797 digits that scikit-learn carries, split into four domains of different digits, 3x32x32.

    ``plain`` has the original digits (8x8 enlarged; origin real). The others are composed: ``inverted``
    is black on white, ``rotated`` by a quarter turn, ``photo`` the absolute difference to a photo crop.
    Each domain has about 360 training and 90 test samples.

    Parameters
    ----------
    root : Path
        Data cache; not used, the digits come with scikit-learn.
    seed : int
        Decides the domain and part of each digit.
    domains : list of str, optional
        Subset of the four names.
    samples : int, optional
        At most this many training samples per domain.
    """
    # Imported here, as in the other data modules: every worker process imports this package, and it
    # would cost 1.5 s.
    from sklearn.datasets import load_digits

    bunch = load_digits()
    order = numpy_generator(seed, "data", extra="digits-sklearn").permutation(len(bunch.target))
    crops = numpy_generator(seed, "data", extra="digits-sklearn/photo")
    parts = []
    for name, rows in zip(
        SKLEARN_DOMAINS, np.array_split(order, len(SKLEARN_DOMAINS)), strict=True
    ):
        digits = images.resize(bunch.images[rows] * (255 / 16), 32)
        origin: Origin = "real" if name == "plain" else "composed"
        if name == "inverted":
            digits = 255 - digits
        elif name == "rotated":
            digits = np.ascontiguousarray(np.rot90(digits, axes=(1, 2)))
        x = (
            images.over_photos(digits, images.photo_crops(len(rows), 32, crops))
            if name == "photo"
            else images.to_colour(digits)
        )
        y, cut = bunch.target[rows].astype(np.int64), round(0.8 * len(rows))
        parts.append(Domain(name, origin, x[:cut], y[:cut], x[cut:], y[cut:]))
    public = images.photo_crops(
        1000, 32, numpy_generator(seed, "data", extra="digits-sklearn/public")
    )
    return assemble("digits-sklearn", parts, DIGITS, seed, samples, domains, public=public)


@register_dataset("random")
def random(
    root: Path,
    *,
    samples: Annotated[
        int, Field(ge=1, description="training samples; a fifth as many test samples")
    ] = 10_000,
    shape: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...],
        Field(min_length=1, description="shape of one sample"),
    ] = (3, 32, 32),
    classes: Annotated[int, Field(ge=2)] = 10,
    seed: Seed = 0,
) -> DataSet:
    """Return standard normal samples with labels that mean nothing, for benchmarks.

    Parameters
    ----------
    root : Path
        Data cache; not used.
    samples : int
        Training samples; there are a fifth as many test samples, at least one per class.
    shape : tuple of int
        Shape of one float32 sample.
    classes : int
        Classes take turns, so that all are equally frequent.
    seed : int
        Seed of the samples.
    """
    generator = numpy_generator(seed, "data", extra="random")
    arrays: list[Array] = []
    for n in (samples, max(samples // 5, classes)):
        arrays += [
            generator.standard_normal((n, *shape), dtype=np.float32),
            np.arange(n, dtype=np.int64) % classes,
        ]
    domain = Domain("random", "random", *arrays)
    names, channels = tuple(map(str, range(classes))), shape[0]
    return DataSet("random", (domain,), names, (0.0,) * channels, (1.0,) * channels)


def select_domains(name: str, have: Sequence[str], wanted: Sequence[str] | None) -> tuple[str, ...]:
    """Return the wanted domains in the set's order, or all.

    Raises
    ------
    ConfigError
        If one is unknown or named twice, or none is wanted.
    """
    if wanted is None:
        return tuple(have)
    setting = f"dataset.{name}.domains"
    if not wanted:
        raise ConfigError(setting, "an empty list", f"some of {', '.join(have)}")
    for domain in wanted:
        if domain not in have or list(wanted).count(domain) > 1:
            near = nearest(domain, set(have) - {domain})
            raise ConfigError(
                setting, repr(domain), f"each of {', '.join(have)} at most once{near}"
            )
    return tuple(domain for domain in have if domain in wanted)


def assemble(
    name: str,
    domains: Sequence[Domain],
    classes: tuple[str, ...],
    seed: int = 0,
    samples: int | None = None,
    chosen: Sequence[str] | None = None,
    **more: Any,
) -> DataSet:
    """Return a data set of some domains.

    Parameters
    ----------
    name : str
        The data set's.
    domains : sequence of Domain
        Those that it may have.
    classes : tuple of str
        As in `DataSet`.
    seed, samples : int, int or None
        As for `cap_samples`.
    chosen : sequence of str, optional
        As for `select_domains`.
    **more : Any
        Further arguments of `DataSet`.
    """
    names = select_domains(name, [domain.name for domain in domains], chosen)
    taken = tuple(cap_samples(d, samples, seed) for d in domains if d.name in names)
    return DataSet(
        name, taken, classes, *images.channel_statistics([d.train_x for d in taken]), **more
    )


def one_domain(
    name: str, arrays: Arrays, classes: tuple[str, ...], seed: int, samples: int | None, **more: Any
) -> DataSet:
    """Return a data set of a single domain from the arrays of its two parts."""
    domain = Domain(name, "real", *(arrays[part] for part in PARTS))
    return assemble(name, [domain], classes, seed, samples, **more)


def cap_samples(domain: Domain, samples: int | None, seed: int) -> Domain:
    """Return the domain with at most `samples` training samples, a subset chosen by the seed.

    Parameters
    ----------
    domain : Domain
        The domain; its test part does not change.
    samples : int or None
        The limit; None keeps the whole training part.
    seed : int
        The data set's seed; a larger subset contains every smaller one.
    """
    if samples is None or samples >= len(domain.train_y):
        return domain
    rows = numpy_generator(seed, "data", extra=f"samples/{domain.name}").permutation(
        len(domain.train_y)
    )[:samples]
    return replace(domain, train_x=domain.train_x[rows], train_y=domain.train_y[rows])


@register_dataset("photos")
def photos(
    root: Path,
    *,
    seed: Seed = 0,
    crops: Annotated[int, Field(ge=1, description="training images")] = 5000,
    size: Annotated[int, Field(ge=8, le=128, description="side of a crop in pixels")] = 32,
) -> DataSet:
    """Return crops of the photos that scikit-learn and matplotlib carry, 3 x size x size, of one class: public data.

    Parameters
    ----------
    root : Path
        Data cache; not used.
    seed : int
        Decides the crops.
    crops : int
        Training images; there are a fifth as many test images.
    size : int
        Side of a crop in pixels.
    """
    parts: list[Array] = []
    for part, count in (("train", crops), ("test", max(1, crops // 5))):
        generator = numpy_generator(seed, "data", extra=f"photos/{part}")
        # Few pixels averaged to one where a crop is large: the smallest photo has some 400 rows.
        parts += [
            images.photo_crops(count, size, generator, max_scale=max(1, min(8, 400 // size))),
            np.zeros(count, dtype=np.int64),
        ]
    return assemble("photos", [Domain("photos", "real", *parts)], ("photo",))
