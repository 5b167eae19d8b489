"""Data sets that are always there: scikit-learn's digits as four domains, crops of photos, and random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from flray.data.sources.images import (
    channel_statistics,
    over_photos,
    photo_crops,
    resize,
    to_colour,
)
from flray.data.types import Array, DataSet, Domain, Origin
from flray.errors import ConfigError, nearest
from flray.registry import register_dataset
from flray.rng import numpy_generator

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

    `plain` has them as they are (8x8 enlarged; origin real). The others are composed: `inverted`
    black on white, `rotated` by a quarter turn, `photo` as the absolute difference to a photo crop.
    About 360 training and 90 test samples each.

    Parameters
    ----------
    root : Path
        Data cache; not used, the digits come with scikit-learn.
    seed : int
        Which digit goes where.
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
        digits = resize(bunch.images[rows] * (255 / 16), 32)
        origin: Origin = "real" if name == "plain" else "composed"
        if name == "inverted":
            digits = 255 - digits
        elif name == "rotated":
            digits = np.ascontiguousarray(np.rot90(digits, axes=(1, 2)))
        x = (
            over_photos(digits, photo_crops(len(rows), 32, crops))
            if name == "photo"
            else to_colour(digits)
        )
        y, cut = bunch.target[rows].astype(np.int64), round(0.8 * len(rows))
        parts.append(Domain(name, origin, x[:cut], y[:cut], x[cut:], y[cut:]))
    taken = [
        cap_samples(part, samples, seed)
        for part in choose_domains(parts, domains, "digits-sklearn")
    ]
    mean, std = channel_statistics([part.train_x for part in taken])
    public = photo_crops(1000, 32, numpy_generator(seed, "data", extra="digits-sklearn/public"))
    return DataSet("digits-sklearn", tuple(taken), DIGITS, mean, std, public=public)


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
    return DataSet(
        "random",
        (domain,),
        tuple(str(c) for c in range(classes)),
        (0.0,) * shape[0],
        (1.0,) * shape[0],
    )


def choose_domains(
    domains: Sequence[Domain], names: Sequence[str] | None, dataset: str
) -> list[Domain]:
    """Return the named domains in the data set's own order, or all.

    Raises
    ------
    ConfigError
        If a name is unknown, given twice, or the list is empty.
    """
    have = [domain.name for domain in domains]
    wanted = have if names is None else list(names)
    for name in wanted:
        if name not in have or wanted.count(name) > 1:
            raise ConfigError(
                f"dataset.{dataset}.domains",
                repr(name),
                f"each of {', '.join(have)} at most once{nearest(name, set(have) - {name})}",
            )
    if not wanted:
        raise ConfigError(
            f"dataset.{dataset}.domains", "an empty list", f"some of {', '.join(have)}"
        )
    return [domain for domain in domains if domain.name in wanted]


def cap_samples(domain: Domain, samples: int | None, seed: int) -> Domain:
    """Return the domain with at most `samples` training samples, a subset chosen by the seed.

    Parameters
    ----------
    domain : Domain
        Its test part is left as it is.
    samples : int or None
        None leaves the training part as it is, too.
    seed : int
        The data set's seed; a larger subset contains every smaller one.
    """
    if samples is None or samples >= len(domain.train_y):
        return domain
    rows = numpy_generator(seed, "data", extra=f"samples/{domain.name}").permutation(
        len(domain.train_y)
    )[:samples]
    return Domain(
        domain.name,
        domain.origin,
        domain.train_x[rows],
        domain.train_y[rows],
        domain.test_x,
        domain.test_y,
    )


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
        Which crops.
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
            photo_crops(count, size, generator, max_scale=max(1, min(8, 400 // size))),
            np.zeros(count, dtype=np.int64),
        ]
    mean, std = channel_statistics([parts[0]])
    return DataSet("photos", (Domain("photos", "real", *parts),), ("photo",), mean, std)
