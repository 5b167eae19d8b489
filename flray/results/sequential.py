"""Paired comparisons that may be looked at after every seed: a confidence sequence for the mean difference.

The interval is that of the mixture of t-tests over Gaussian effect sizes, which is an e-process
under the right Haar prior on the deviation (Lai 1976; Wang and Ramdas 2023, "Anytime-valid t-tests
and confidence sequences for Gaussian means with unknown variance"): whatever the number of looks,
and whatever decides when to stop, the probability that it ever misses the mean is at most alpha,
for normal differences, as in a t-test.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

METHOD = (
    "confidence sequences of paired differences (Gaussian mixture of t-tests), valid after every "
    "seed, corrected after Bonferroni for all pairs that are compared"
)
PRIOR = 9.0
"""Variance of the effect sizes over which tests are mixed: differences of about three deviations
are seen soonest, others a little later; it is valid with any."""

Verdict = Literal["better", "worse", "equivalent", "contradictory", "withheld", ""]
"""Of the first of a pair; empty while it is not decided. *Contradictory*: the intervals after some seeds exclude
those after others, which normal and independent differences do in a share of alpha of the cases. *Withheld*: the seeds
that both have would decide, in favour of one that failed at others."""


def half_width(std: ArrayLike, count: ArrayLike, alpha: float) -> NDArray[np.float64]:
    """Return half the width of the interval of a mean difference, infinite while there are too few.

    Parameters
    ----------
    std : array
        Standard deviations of the differences (n - 1).
    count : array
        The number of differences.
    alpha : float
        Probability that the interval misses the mean at any time.
    """
    n = np.asarray(count, dtype=float)
    freedom = np.maximum(n - 1, 1)
    spread = 1 + n * PRIOR
    # log of (sqrt(spread) / alpha) ** (2 / n), the ratio that the statistic must not pass
    ratio = np.exp((np.log(spread) - 2 * math.log(alpha)) / n)
    known = (ratio < spread) & (n > 1)
    squared = freedom * (ratio - 1) / np.where(known, 1 - ratio / spread, 1.0)
    return np.where(known, np.sqrt(squared / n) * np.asarray(std, dtype=float), np.inf)


def p_value(mean: float, std: float, count: int) -> float:
    """Return the anytime-valid p-value of a mean difference of zero at one look, at most 1.

    Parameters
    ----------
    mean, std : float
        Mean and deviation of the differences; without any spread the result is 1.
    count : int
        The number of differences.
    """
    if count < 2 or std == 0:
        return 1.0
    squared, freedom = mean**2 * count / std**2, count - 1
    spread = 1 + count * PRIOR
    evidence = -0.5 * math.log(spread) + 0.5 * count * (
        math.log1p(squared / freedom) - math.log1p(squared / (freedom * spread))
    )
    return math.exp(-max(evidence, 0.0))


def spread(differences: NDArray[np.float64]) -> float:
    """Return the standard deviation (n - 1); NaN of fewer than two, and 0 if they differ by rounding alone.

    Without any spread nothing can be tested: the two settings may be equal, or the test has too few
    samples to tell them apart at these seeds.

    Parameters
    ----------
    differences : ndarray
        The differences of two settings, by seed.
    """
    if len(differences) < 2:
        return math.nan
    std = float(differences.std(ddof=1))
    return 0.0 if std <= 1e-12 * max(1.0, float(np.abs(differences).max())) else std


class Decision(NamedTuple):
    """The decision on a pair, with a look after each difference.

    Attributes
    ----------
    verdict : str
        See `Verdict`; a higher value is better.
    low, high : float
        The intersection of the intervals of all looks; if it is empty, the ends are swapped.
    p : float
        The least `p_value` of all looks.
    """

    verdict: Verdict
    low: float
    high: float
    p: float


def decide(differences: Sequence[float], margin: float, alpha: float, at_least: int) -> Decision:
    """Decide on a pair by all its seeds.

    All intervals hold at the same time, and so does their intersection: a further seed never
    reverses a decision.

    Parameters
    ----------
    differences : sequence of float
        First minus second, in the order of the seeds' addition.
    margin : float
        The two are equivalent within it.
    alpha : float
        The level of this pair.
    at_least : int
        Differences before the first look.
    """
    values = np.asarray(differences, dtype=float)
    low, high, p = -math.inf, math.inf, 1.0
    for count in range(min(max(2, at_least), max(len(values), 1)), len(values) + 1):
        seen = values[:count]
        mean, std = float(seen.mean()), spread(seen)
        half = float(half_width(std, count, alpha)) if std > 0 else math.inf
        low, high = max(low, mean - half), min(high, mean + half)
        p = min(p, p_value(mean, std, count))
    verdict: Verdict = ""
    if low > high:
        verdict = "contradictory"
    elif len(values) >= at_least:
        if -margin <= low and high <= margin:
            verdict = "equivalent"
        elif low > 0:
            verdict = "better"
        elif high < 0:
            verdict = "worse"
    return Decision(verdict, low, high, p)
