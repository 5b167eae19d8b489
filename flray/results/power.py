"""Evidence that seeds can give: the sign-flip test, the power of t-tests, and the seeds that a difference needs."""

import functools
import math
from bisect import bisect_left

import numpy as np
from numpy.typing import NDArray

from flray.results.sequential import half_width

ALPHA, POWER = 0.05, 0.8
"""The chance that any of the pairs' intervals misses its mean; how likely a difference is to be seen that is
called detectable."""
UNSURE = 0.1, 0.9
"""Chances that fewer seeds are enough, of the two numbers that advice on seeds lies between."""
_MOST_SEEDS, _EXACT = 1000, 14
_QUANTILES = (np.arange(2000) + 0.5) / 2000


def sign_flip_p(differences: NDArray[np.float64]) -> float:
    """Return the two-sided p-value of a mean of zero if each difference may as well have the other sign.

    Exact up to `_EXACT` differences; with more of them 20,000 sign patterns are drawn.

    Parameters
    ----------
    differences : ndarray [n]
        Without any, the result is NaN.
    """
    count = len(differences)
    if not count:
        return math.nan
    sums = np.abs(_signs(count) @ differences)
    return float(np.mean(sums >= abs(differences.sum()) * (1 - 1e-12)))


@functools.lru_cache(maxsize=8)
def _signs(count: int) -> NDArray[np.int8]:
    """Return rows of signs, 1 and -1: all that there are for few differences, else many that are drawn."""
    if count <= _EXACT:
        patterns = (np.arange(2**count)[:, None] >> np.arange(count)) & 1
    else:
        patterns = np.random.default_rng(0).integers(0, 2, size=(20_000, count))
        patterns[0] = 1
    return (2 * patterns - 1).astype(np.int8)


def seeds_of_signs(level: float) -> int:
    """Return the fewest seeds that the sign-flip test can decide with at a level."""
    return math.ceil(1 - math.log2(level))


def power(std: float, difference: float, seeds: int, alpha: float = ALPHA) -> float:
    """Return the probability that a paired t-test sees a difference, with the right sign.

    Parameters
    ----------
    std : float
        Standard deviation of the differences.
    difference : float
        Their mean.
    seeds : int
        Two at least.
    alpha : float
        Level of the test.
    """
    from scipy import special

    # The mean over the distribution of the estimated deviation: SciPy's noncentral t has no value
    # for many samples.
    freedom = seeds - 1
    estimated = np.sqrt(2 * special.gammaincinv(freedom / 2, _QUANTILES) / freedom)
    critical = float(special.stdtrit(freedom, 1 - alpha / 2))
    shift = abs(difference) / std * math.sqrt(seeds)
    return float(special.ndtr(shift - critical * estimated).mean())


def detectable_difference(std: float, seeds: int, alpha: float = ALPHA) -> float:
    """Return the smallest difference that a paired t-test sees with probability `POWER`.

    Parameters
    ----------
    std : float
        Standard deviation of the differences.
    seeds : int
        How many there are; with fewer than two nothing can be seen, which is NaN.
    alpha : float
        Level of the test.
    """
    if seeds < 2 or math.isnan(std):
        return math.nan
    if std == 0:
        return 0.0
    return std * _detectable_deviations(seeds, alpha)


@functools.cache
def _detectable_deviations(seeds: int, alpha: float) -> float:
    low, high = 0.0, 1.0
    while power(1.0, high, seeds, alpha) < POWER:
        low, high = high, 2 * high
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if power(1.0, middle, seeds, alpha) < POWER else (low, middle)
    return high


def seeds_to_detect(std: float, difference: float, alpha: float = ALPHA) -> int | None:
    """Return the number of seeds, fixed beforehand, that show a difference with probability `POWER`.

    Parameters
    ----------
    std, difference, alpha : float
        As of `power`.

    Returns
    -------
    int or None
        None if a thousand seeds are too few.
    """
    if std == 0:
        return 2
    if power(std, difference, _MOST_SEEDS, alpha) < POWER:
        return None
    return bisect_left(
        range(_MOST_SEEDS + 1), POWER, lo=2, key=lambda n: power(std, difference, n, alpha)
    )


def uncertain_std(std: float, freedom: int, chance: float) -> float:
    """Return the deviation that the true one is below with a probability, given an estimated one.

    Parameters
    ----------
    std : float
        The estimate.
    freedom : int
        Its degrees of freedom.
    chance : float
        The probability.
    """
    from scipy import special

    return std * math.sqrt(freedom / float(special.chdtri(freedom, chance)))


def seeds_needed(std: float, difference: float, alpha: float = ALPHA) -> int | None:
    """Return the number of seeds that show a difference with probability `POWER`, with a look after each.

    If seeds are added to existing ones, somebody has looked at the results before. So the test is
    that of `flray.results.sequential`.

    Parameters
    ----------
    std : float
        Standard deviation of the differences.
    difference : float
        The difference to detect.
    alpha : float
        Level of the test.

    Returns
    -------
    int or None
        None if a thousand seeds are too few, or the deviation is not known.
    """
    from scipy import special

    counts = np.arange(2, _MOST_SEEDS + 1)
    error = std / np.sqrt(counts)
    enough = half_width(std, counts, alpha) + special.ndtri(POWER) * error <= abs(difference)
    return int(counts[enough.argmax()]) if enough.any() else None
