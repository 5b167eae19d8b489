"""Motor imagery EEG of four laboratories (MOABB): right hand or feet, from covariances in the tangent space."""

import hashlib
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field

from flray.data.datasets.embedded import ChosenDomains, Seed, select_domains
from flray.data.sources.cache import decoded
from flray.data.types import Array, Arrays, DataSet, Domain, Flags, Floats, Ints, Origin
from flray.errors import DataError, explained
from flray.registry import register_dataset
from flray.rng import numpy_generator


def covariances(trials: Array, shrinkage: float = 1e-3) -> Floats:
    """Return each trial's covariance over time.

    Parameters
    ----------
    trials : ndarray [n, channels, times]
    shrinkage : float
        Share of the mean variance on the diagonal, so that short or re-referenced trials give
        definite matrices.

    Returns
    -------
    ndarray of float64 [n, channels, channels]
    """
    centred = np.asarray(trials, dtype=np.float64)
    centred = centred - centred.mean(-1, keepdims=True)
    raw = centred @ centred.swapaxes(1, 2) / centred.shape[-1]
    level = np.trace(raw, axis1=1, axis2=2)[:, None, None] / raw.shape[1]
    shrunk: Floats = (1 - shrinkage) * raw + shrinkage * level * np.eye(raw.shape[1])
    return shrunk


def log_euclidean_mean(matrices: Floats) -> Floats:
    """Return ``exp(mean(log C))`` of symmetric positive definite matrices [n, d, d]."""
    return _apply(np.exp, _apply(np.log, matrices).mean(0))


def tangent_vectors(matrices: Floats, reference: Floats) -> Floats:
    """Return ``upper(log(R^-1/2 C R^-1/2))``, off-diagonal entries times the square root of 2.

    The vector's length is the Riemannian distance of a matrix from the reference R.

    Parameters
    ----------
    matrices : ndarray [n, d, d]
        Symmetric positive definite.
    reference : ndarray [d, d]
        Where the tangent space touches: the mean of the training trials.

    Returns
    -------
    ndarray of float64 [n, d (d + 1) / 2]
        Row by row of the upper triangle.
    """
    whitener = _apply(lambda values: 1 / np.sqrt(values), reference)
    logs = _apply(np.log, whitener @ matrices @ whitener)
    rows, columns = np.triu_indices(matrices.shape[-1])
    return logs[..., rows, columns] * np.where(rows == columns, 1.0, np.sqrt(2.0))


def _apply(function: Callable[[Floats], Floats], matrices: Floats) -> Floats:
    """Return a function of symmetric matrices, applied to their eigenvalues."""
    values, vectors = np.linalg.eigh((matrices + matrices.swapaxes(-1, -2)) / 2)
    result: Floats = (vectors * function(values)[..., None, :]) @ vectors.swapaxes(-1, -2)
    return result


SOURCES = ("AlexMI", "BNCI2014_001", "BNCI2015_004", "Zhou2016")
EVENTS = ("feet", "right_hand")
CLASSES = ("feet", "right hand")
Trials = tuple[Floats, Ints]
Frequency = Annotated[float, Field(gt=0, description="in hertz")]


@register_dataset("eeg")
def eeg(
    root: Path,
    *,
    seed: Seed = 0,
    domains: ChosenDomains = None,
    low: Frequency = 8.0,
    high: Frequency = 32.0,
) -> DataSet:
    """Return four sources of EEG trials, right hand against feet, as zero-padded tangent vectors (binary).

    MOABB fetches the trials into MNE's folder (``~/mne_data``) and filters them; the cache keeps
    their covariances. A fifth of each source's trials is for test, by class and seed. A covariance is
    mapped into the tangent space at the mean of its source's training trials. The set is that of
    LG-Mix, Table 10. The paper does not state its preprocessing; 8 to 32 Hz are MOABB's defaults for
    motor imagery.

    Parameters
    ----------
    root : Path
        Data cache.
    seed : int
        Decides the split.
    domains : list of str, optional
        Subset of AlexMI, BNCI2014_001, BNCI2015_004, Zhou2016.
    low, high : float
        Limits of the passband, Hz.

    Raises
    ------
    FlrayError
        If MOABB is not installed or cannot fetch a source.
    """
    wanted = select_domains("eeg", SOURCES, domains)
    return dataset_of("eeg", {name: _cached_trials(root, name, low, high) for name in wanted}, seed)


def dataset_of(name: str, sources: dict[str, Trials], seed: int) -> DataSet:
    """Return a data set of covariances by source.

    Parameters
    ----------
    name : str
        The data set's.
    sources : dict of str to (ndarray [n, c, c], ndarray of int64 [n])
        Covariances, with as many channels as the source has, and labels 0 (feet) or 1 (right hand).
    seed : int
        Decides which fifth of each class is for test.
    """
    length = max(x.shape[1] for x, _ in sources.values())
    domains = []
    for source, (x, y) in sources.items():
        missing = [event for label, event in enumerate(EVENTS) if (y == label).sum() < 2]
        if missing:
            raise DataError(
                f"{name}: {source} has fewer than two trials of {' and '.join(missing)}"
            )
        generator = numpy_generator(seed, "data", extra=f"{name}/{source}")
        test = np.zeros(len(y), dtype=bool)
        for label in (0, 1):
            rows = generator.permutation(np.flatnonzero(y == label))
            test[rows[: max(1, len(rows) // 5)]] = True
        domains.append(_domain(source, "real", x, y, test, length))
    return DataSet(name, tuple(domains), CLASSES, (0.0,), (1.0,), task="binary")


def _domain(
    name: str, origin: Origin, matrices: Floats, labels: Ints, test: Flags, channels: int
) -> Domain:
    """Return covariances as tangent vectors at the mean of the training ones, as long as those of so many channels."""
    vectors = tangent_vectors(matrices, log_euclidean_mean(matrices[~test]))
    lacking = channels * (channels + 1) // 2 - vectors.shape[1]  # LG-Mix, appendix
    vectors = np.pad(vectors, ((0, 0), (0, lacking))).astype(np.float32)
    return Domain(name, origin, vectors[~test], labels[~test], vectors[test], labels[test])


def imagery_trials(dataset: Any, paradigms: Any, low: float, high: float) -> Trials:
    """Return a MOABB data set's trials of right hand and feet."""
    paradigm = paradigms.MotorImagery(
        events=list(EVENTS), n_classes=len(EVENTS), fmin=low, fmax=high
    )
    with explained(
        Exception,
        f"eeg: MOABB could not provide {type(dataset).__name__}",
        "fetch it on a machine with a network and copy MNE's data folder (~/mne_data)",
    ):
        x, names, _ = paradigm.get_data(dataset)
    labels = np.array([EVENTS.index(name) for name in names], dtype=np.int64)
    return np.asarray(x, dtype=np.float64), labels


def _cached_trials(root: Path, source: str, low: float, high: float) -> Trials:
    def decode(_: Path) -> Arrays:
        with explained(ImportError, "data set eeg needs MOABB", "pip install 'flray[eeg]'"):
            datasets, paradigms = (
                importlib.import_module(f"moabb.{part}") for part in ("datasets", "paradigms")
            )
        x, y = imagery_trials(getattr(datasets, source)(), paradigms, low, high)
        return {"x": covariances(x), "y": y}

    key = hashlib.sha256(f"{source}|{low}|{high}".encode()).hexdigest()[:16]
    arrays = decoded(root / "eeg" / f"{source}-{key}", decode)
    return arrays["x"], arrays["y"]


CHANNELS = {"A": 8, "B": 11, "C": 15, "D": 7}
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
        The seed of everything.
    samples : int
        Trials of each source.
    strength : float
        0: the classes do not differ.
    """
    domains = []
    for name, channels in CHANNELS.items():
        generator = numpy_generator(seed, "data", extra=f"eeg-synthetic/{name}")
        y = np.arange(samples, dtype=np.int64) % 2
        x = covariances(trials(y, channels, strength, generator))
        test = np.arange(samples) >= samples - samples // 5
        domains.append(_domain(name, "random", x, y, test, max(CHANNELS.values())))
    return DataSet("eeg-synthetic", tuple(domains), CLASSES, (0.0,), (1.0,), task="binary")


def trials(labels: Ints, channels: int, strength: float, generator: np.random.Generator) -> Floats:
    """Return generated trials [n, channels, 128]."""
    mixing = generator.standard_normal((channels, channels)) + 2 * np.eye(channels)
    power = np.exp(strength * generator.standard_normal((2, channels)))
    jitter = np.exp(0.3 * generator.standard_normal((len(labels), channels)))
    sources = (
        generator.standard_normal((len(labels), channels, _TIMES))
        * (power[labels] * jitter)[..., None]
    )
    mixed: Floats = mixing @ sources
    return mixed
