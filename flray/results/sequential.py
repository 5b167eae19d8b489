"""How sure a difference is: intervals at all looks and given a decision, the sign-flip test, the power of more seeds.

If a sweep says how many seeds there will be at most, the interval is the repeated confidence
interval of a group-sequential t-test with the boundary of Wang and Tsiatis ("Approximately optimal
one-parameter boundaries for group sequential trials", Biometrics 1987), calibrated on simulated
differences. Without an end it is that of the mixture of t-tests over Gaussian effect sizes, an
e-process under the right Haar prior on the deviation (Lai 1976; Wang and Ramdas 2023,
"Anytime-valid t-tests and confidence sequences for Gaussian means with unknown variance"). In both,
whatever decides when to stop, the probability that the interval ever misses the mean is at most
alpha, for normal differences, as in a t-test.
"""

import functools
import math
from bisect import bisect_left
from collections.abc import Sequence
from typing import Literal, NamedTuple

import numpy as np
import scipy  # its parts are imported when they are used
from numpy.typing import ArrayLike, NDArray

OPEN = "confidence sequences of paired differences (Gaussian mixture of t-tests)"
PLANNED = "group-sequential t-tests of paired differences (boundary of Wang and Tsiatis)"
METHOD = "{}, valid after every seed, corrected after Bonferroni for all pairs that are compared"
PRIOR = 9.0
"""Variance of the effect sizes over which tests are mixed: differences of about three deviations
are seen soonest, others a little later; it is valid with any."""
SHAPE = 0.25
"""Of the boundary: 0.5 is Pocock's, which decides early, 0 is O'Brien and Fleming's, which spares power for the end."""
_STUDIES, _FEWEST = 200_000, 100
"""Simulated studies, and how many of them at least have to lie beyond a boundary that is used."""

Verdict = Literal["better", "worse", "equivalent", "contradictory", "withheld", ""]
"""Of the first of a pair; empty while it is not decided. *Contradictory*: the intervals after some seeds exclude
those after others, which normal and independent differences do in a share of alpha of the cases. *Withheld*: the seeds
that both have would decide, in favour of one that failed at others."""


class Looks(NamedTuple):
    """The number of differences at the first look and at the last; after it none is added.

    Attributes
    ----------
    first : int
        At least 2.
    last : int or None
        None if it was not fixed beforehand.
    """

    first: int
    last: int | None = None


EVER = Looks(2)
"""After every difference, without an end."""


def half_width(
    std: ArrayLike, count: ArrayLike, alpha: float, looks: Looks = EVER
) -> NDArray[np.float64]:
    """Return half the width of the interval of a mean difference, infinite while there are too few.

    Parameters
    ----------
    std : array
        Standard deviations of the differences (n - 1).
    count : array
        The number of differences.
    alpha : float
        Probability that the interval misses the mean at any look.
    looks : Looks
        When there are looks.
    """
    n = np.asarray(count, dtype=float)
    # Simulation reaches as far as there are studies.
    if looks.last is not None and alpha * _STUDIES >= _FEWEST:
        boundary = float(_extremes(looks)[-int(alpha * _STUDIES)])
        levels = scipy.special.ndtr(-boundary * (n / looks.last) ** (SHAPE - 0.5))
        known = (n >= looks.first) & (n <= looks.last)
        factor = scipy.special.stdtrit(np.maximum(n - 1, 1), 1 - levels) / np.sqrt(n)
        return np.where(known, factor * np.asarray(std, dtype=float), np.inf)
    freedom = np.maximum(n - 1, 1)
    spread = 1 + n * PRIOR
    # log of (sqrt(spread) / alpha) ** (2 / n), the ratio that the statistic must not pass
    ratio = np.exp((np.log(spread) - 2 * math.log(alpha)) / n)
    known = (ratio < spread) & (n > 1)
    squared = freedom * (ratio - 1) / np.where(known, 1 - ratio / spread, 1.0)
    return np.where(known, np.sqrt(squared / n) * np.asarray(std, dtype=float), np.inf)


@functools.cache
def _extremes(looks: Looks) -> NDArray[np.float64]:
    """Return the sorted largest statistics of simulated studies without a difference."""
    assert looks.last is not None
    generator, found = np.random.default_rng(0), []
    count = np.arange(1, looks.last + 1)
    for _ in range(20):
        values = generator.standard_normal((_STUDIES // 20, looks.last))
        mean = values.cumsum(1) / count
        square = (values**2).cumsum(1) - count * mean**2
        std = np.sqrt(np.maximum(square, 0) / np.maximum(count - 1, 1))
        seen = slice(looks.first - 1, None)
        found.append(_statistic(mean[:, seen], std[:, seen], count[seen], looks).max(1))
    return np.sort(np.concatenate(found))


def _statistic(
    mean: NDArray[np.float64], std: NDArray[np.float64], count: NDArray[np.int64], looks: Looks
) -> NDArray[np.float64]:
    """Return the weighted normal quantile at each look, which is compared with the boundary."""
    assert looks.last is not None
    p = scipy.special.stdtr(count - 1, -np.abs(mean) / std * np.sqrt(count))
    weighted: NDArray[np.float64] = -scipy.special.ndtri(p) * (count / looks.last) ** (0.5 - SHAPE)
    return weighted


def p_value(mean: float, std: float, count: float, looks: Looks = EVER) -> float:
    """Return the p-value of a mean difference of zero, which holds for all looks together, at most 1.

    Parameters
    ----------
    mean, std : float
        Mean and deviation of the differences; without any spread the result is 1.
    count : float
        The number of differences.
    looks : Looks
        When there are looks.
    """
    if count < 2 or std == 0:
        return 1.0
    if looks.last is not None:
        one = np.array([mean]), np.array([std]), np.array([count])
        reached = _statistic(*one, looks)
        beyond = _STUDIES - int(np.searchsorted(_extremes(looks), reached[0]))
        if beyond >= _FEWEST:
            return beyond / _STUDIES
        return min(_FEWEST / _STUDIES, p_value(mean, std, count))
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
        The intersection of the intervals of all looks; if it is empty, the ends are swapped. That of
        an equivalence is at twice alpha, because only one of its ends can be wrong; it also holds
        the intervals with one more difference, see `_with_one_more`.
    p : float
        The least `p_value` of all looks.
    """

    verdict: Verdict
    low: float
    high: float
    p: float


def verdict_of(low: float, high: float, lower: bool = False) -> Verdict:
    """Return the verdict of an interval, which decides if it excludes zero."""
    if low > 0:
        return "worse" if lower else "better"
    if high < 0:
        return "better" if lower else "worse"
    return ""


def decide(differences: Sequence[float], margin: float, alpha: float, looks: Looks) -> Decision:
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
    looks : Looks
        When there are looks; after more differences than the last one has, as without an end.
    """
    values = np.asarray(differences, dtype=float)
    looks = looks if looks.last is None or len(values) <= looks.last else Looks(looks.first)
    first = max(2, looks.first)
    seen = [values[:count] for count in range(first, len(values) + 1)]
    p = min((p_value(float(one.mean()), spread(one), len(one), looks) for one in seen), default=1.0)
    low, high = _intersection(seen, alpha, looks)
    verdict = "contradictory" if low > high else verdict_of(low, high)
    within = [_intersection(seen, 2 * alpha, looks, beyond) for beyond in (0, 1, -1)]
    if verdict != "contradictory" and all(-margin <= one[0] <= one[1] <= margin for one in within):
        lows, highs = zip(*within, strict=True)
        verdict, low, high = "equivalent", min(lows), max(highs)
    return Decision(verdict, low, high, p)


def _intersection(
    seen: Sequence[NDArray[np.float64]], alpha: float, looks: Looks, beyond: int = 0
) -> tuple[float, float]:
    """Return the intersection of all looks' intervals; see `_with_one_more` about `beyond`."""
    low, high = -math.inf, math.inf
    for one in seen:
        shown = _with_one_more(one, beyond)
        mean, std = float(shown.mean()), spread(shown)
        half = float(half_width(std, len(one), alpha, looks)) if std > 0 else math.inf
        low, high = max(low, mean - half), min(high, mean + half)
    return low, high


def _with_one_more(differences: NDArray[np.float64], beyond: int) -> NDArray[np.float64]:
    """Return differences with one more that lies half a step beyond the farthest on one side, if some are tied.

    Accuracies of a small test move in steps, and few of them show how far they can jump: a rare jump
    may not have come yet.
    """
    members = np.unique(differences.round(9))
    if not beyond or len(members) == len(differences) or spread(differences) == 0:
        return differences
    step = np.diff(np.union1d(members, [0.0])).min()
    return np.append(differences, beyond * (np.abs(members).max() + step / 2))


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


def share_interval(found: ArrayLike, count: ArrayLike) -> NDArray[np.float64]:
    """Return the ends of the 95 % interval of a share (Clopper and Pearson 1934), first all lower ones.

    Parameters
    ----------
    found, count : array
        How many of how many; of ties a half.
    """
    low = scipy.stats.beta.ppf(ALPHA / 2, found, np.subtract(count, found) + 1)
    high = scipy.stats.beta.ppf(1 - ALPHA / 2, np.add(found, 1), np.subtract(count, found))
    ends = np.where(np.equal(found, 0), 0.0, low), np.where(np.equal(found, count), 1.0, high)
    return np.stack(ends)


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
    # The mean over the distribution of the estimated deviation: SciPy's noncentral t has no value
    # for many samples.
    freedom = seeds - 1
    estimated = np.sqrt(2 * scipy.special.gammaincinv(freedom / 2, _QUANTILES) / freedom)
    critical = float(scipy.special.stdtrit(freedom, 1 - alpha / 2))
    shift = abs(difference) / std * math.sqrt(seeds)
    return float(scipy.special.ndtr(shift - critical * estimated).mean())


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
    high = 1.0
    while power(1.0, high, seeds, alpha) < POWER:
        high *= 2
    return float(
        scipy.optimize.brentq(lambda one: power(1.0, one, seeds, alpha) - POWER, 0.0, high)
    )


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
    return std * math.sqrt(freedom / float(scipy.special.chdtri(freedom, chance)))


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
    counts = np.arange(2, _MOST_SEEDS + 1)
    error = std / np.sqrt(counts)
    enough = half_width(std, counts, alpha) + scipy.special.ndtri(POWER) * error <= abs(difference)
    return int(counts[enough.argmax()]) if enough.any() else None


def undoing_loss(mean: float, std: float, seeds: int, critical: float) -> float:
    """Return how far below their mean one more difference has to lie so that their mean could be zero.

    Parameters
    ----------
    mean, std : float
        Mean, above zero, and deviation of the differences.
    seeds : int
        How many there are.
    critical : float
        The least mean over its standard error that excludes zero, with one more difference.
    """
    more = seeds + 1
    beyond = mean**2 * more * seeds - critical**2 * (seeds - 1) * std**2
    slope = seeds * (critical**2 - 1) / more
    root = math.sqrt(max(0.0, (mean * seeds) ** 2 + slope * beyond))
    return max(0.0, (root - mean * seeds) / slope)


def given_decision(
    mean: float, half: float, deciding: float, freedom: float
) -> tuple[float, float]:
    """Return the interval at `ALPHA` of a mean difference, given that its interval excludes zero.

    A mean that is reported because it was decided comes out too large, and its deviation too small.
    The selective t-test (Fithian, Sun and Taylor 2014, "Optimal inference after model selection") is
    exact given the decision, if differences are normal: it holds the sum of squares about a true mean
    fixed and takes t of those samples alone that would have been decided.

    Parameters
    ----------
    mean : float
        Mean of the differences.
    half, deciding : float
        Half the width of its interval at `ALPHA`, and of the one that decided.
    freedom : float
        Degrees of freedom of both.
    """
    error = half / float(scipy.special.stdtrit(freedom, 1 - ALPHA / 2))
    size, critical = abs(mean), deciding / error
    offsets = np.geomspace(1e-3, 1e4, 4000) * error
    true = size + np.concatenate((-offsets[::-1], offsets))
    squares = freedom * error**2 + (size - true) ** 2
    ratio, rest = np.abs(true) / np.sqrt(squares), 2 * size * true - size**2 - freedom * error**2
    # Samples with t at most `low` or at least `high` are decided, with the other or the same sign.
    with np.errstate(divide="ignore"):
        root = np.sqrt(np.maximum(critical**2 - freedom * rest / squares, 0))
        near = critical * ratio + root
        one = (critical * root - freedom * ratio) / near
        other = (critical * root + freedom * ratio) * near * squares
        other /= (freedom + critical**2) * np.abs(rest)
    high = np.where(true >= 0, one, other)
    low = np.where(root > 0, -np.where(true >= 0, other, one), high)
    seen = (size - true) / error
    below, above = scipy.special.stdtr(freedom, low), scipy.special.stdtr(freedom, -high)
    beyond = scipy.special.stdtr(freedom, -np.maximum(seen, high))
    beyond += np.maximum(0, below - scipy.special.stdtr(freedom, seen))
    share = beyond / (below + above)
    held = true[(share >= ALPHA / 2) & (share <= 1 - ALPHA / 2)]
    ends = float(held.min()), float(held.max())
    return ends if mean > 0 else (-ends[1], -ends[0])
