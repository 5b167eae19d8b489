"""EEG-shaped noise with two classes: for tests and for trying the way from trials to vectors without data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from flray.data.datasets.embedded import Seed
from flray.data.datasets.tangent_space import (
    covariances,
    log_euclidean_mean,
    pad_vectors,
    tangent_vectors,
)
from flray.data.types import DataSet, Domain
from flray.registry import register_dataset
from flray.rng import numpy_generator

CHANNELS = {"A": 8, "B": 11, "C": 15, "D": 7}
CLASSES = ("feet", "right hand")
_TIMES = 128


@register_dataset("eeg-synthetic")
def eeg_synthetic(
    root: Path,
    *,
    seed: Seed = 0,
    samples: Annotated[
        int, Field(ge=10, description="trials of each source; a fifth of them for test")
    ] = 150,
    strength: Annotated[
        float, Field(ge=0, description="how far the two classes' sources differ in power")
    ] = 0.2,
) -> DataSet:
    """Return four sources of generated trials with 8, 11, 15 and 7 channels, as zero-padded tangent vectors (binary).

    A trial mixes as many independent sources as there are channels, by a matrix of its domain; in
    each class other sources are strong. Its covariance goes into the tangent space at the mean of
    its domain's training trials. Origin: random.

    Parameters
    ----------
    root : Path
        Data cache; not used.
    seed : int
        Of everything.
    samples : int
        Trials of each source.
    strength : float
        0: the classes do not differ.
    """
    length = max(CHANNELS.values()) * (max(CHANNELS.values()) + 1) // 2
    domains = []
    for name, channels in CHANNELS.items():
        generator = numpy_generator(seed, "data", extra=f"eeg-synthetic/{name}")
        y = np.arange(samples, dtype=np.int64) % 2
        x = covariances(trials(y, channels, strength, generator))
        cut = samples - samples // 5
        vectors = pad_vectors(tangent_vectors(x, log_euclidean_mean(x[:cut])), length)
        domains.append(Domain(name, "random", vectors[:cut], y[:cut], vectors[cut:], y[cut:]))
    return DataSet("eeg-synthetic", tuple(domains), CLASSES, (0.0,), (1.0,), task="binary")


def trials(
    labels: NDArray[np.int64], channels: int, strength: float, generator: np.random.Generator
) -> NDArray[np.float64]:
    """Return generated trials [n, channels, 128]."""
    mixing = generator.standard_normal((channels, channels)) + 2 * np.eye(channels)
    power = np.exp(strength * generator.standard_normal((2, channels)))
    jitter = np.exp(0.3 * generator.standard_normal((len(labels), channels)))
    sources = (
        generator.standard_normal((len(labels), channels, _TIMES))
        * (power[labels] * jitter)[..., None]
    )
    mixed: NDArray[np.float64] = mixing @ sources
    return mixed
