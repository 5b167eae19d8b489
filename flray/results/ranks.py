"""Settings over several places: mean ranks, and the answer for a further place like these."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import scipy  # its parts are imported when they are used
from numpy.typing import NDArray

from flray.results.sequential import ALPHA

_DRAWS, _FEWEST_PLACES = 20_000, 3
"""Permutations of ranks within places; the places that a hierarchical model needs."""


@dataclass(frozen=True)
class Ranks:
    """Settings that were compared in several places: on data sets, or in other circumstances.

    Attributes
    ----------
    names : tuple of str
        The settings, best mean rank first.
    places : tuple of str
        The places with a value of every setting.
    means : tuple of float
        Mean ranks; 1 is best, equal values share their ranks.
    p : float
        Of Friedman's test that all settings are alike, of two settings of the sign test; NaN where
        all values are equal.
    critical : float
        Nemenyi's critical difference of two mean ranks at 0.05; infinite if places have the same data,
        since they are then no sample of data sets.
    failed : tuple of str
        Settings that failed at some seed: none of them ranks above another.
    swayed : tuple of str
        The places that the first owes its place to: without one of them another is as good.
    """

    names: tuple[str, ...]
    places: tuple[str, ...]
    means: tuple[float, ...]
    p: float
    critical: float
    failed: tuple[str, ...] = ()
    swayed: tuple[str, ...] = ()

    @property
    def together(self) -> list[tuple[int, int]]:
        """First and last of each longest row of settings whose ranks are not told apart."""
        found: list[tuple[int, int]] = []
        for first, rank in enumerate(self.means):
            last = max(i for i, one in enumerate(self.means) if one - rank < self.critical)
            if last > first and (not found or last > found[-1][1]):
                found.append((first, last))
        return found


def rank(values: Mapping[str, Mapping[str, float]], lower: bool = False) -> Ranks | None:
    """Rank settings by their means in several places.

    Parameters
    ----------
    values : mapping
        By place, the mean of each setting.
    lower : bool
        Whether less is better.

    Returns
    -------
    Ranks or None
        Of the settings that have a value in every place; None with fewer than two of them or of the
        places.
    """
    names = [
        name
        for name in dict.fromkeys(name for place in values.values() for name in place)
        if all(math.isfinite(place.get(name, math.nan)) for place in values.values())
    ]
    if len(values) < 2 or len(names) < 2:
        return None
    # Means of the same values may differ in their last bits.
    table = np.array([[place[name] for name in names] for place in values.values()]).round(9)
    table = table if lower else -table
    ranks = scipy.stats.rankdata(table, axis=1)
    order = np.argsort(means := ranks.mean(axis=0), kind="stable")
    table, ranks = table[:, order], ranks[:, order]
    p = math.nan
    if (table != table[:, :1]).any():
        if len(names) > 2:
            p = permutation_p(ranks)
        else:
            signs = np.sign(table[:, 1] - table[:, 0])
            p = float(scipy.stats.binomtest(int((signs > 0).sum()), int(abs(signs).sum())).pvalue)
    rest = ranks.sum(axis=0) - ranks  # of all places but the row's
    return Ranks(
        tuple(names[i] for i in order),
        tuple(values),
        tuple(float(means[i]) for i in order),
        p,
        critical_difference(len(names), len(values)),
        swayed=tuple(
            x for x, one in zip(values, rest, strict=True) if one[0] > one[1:].min() - 1e-9
        ),
    )


def critical_difference(settings: int, places: int) -> float:
    """Return Nemenyi's critical difference of two mean ranks, at the level `ALPHA` of all comparisons together.

    Parameters
    ----------
    settings, places : int
        The number of ranked settings, and of rankings.
    """
    range_ = float(scipy.stats.studentized_range.ppf(1 - ALPHA, settings, np.inf))
    return range_ / math.sqrt(2) * math.sqrt(settings * (settings + 1) / (6 * places))


def permutation_p(ranks: NDArray[np.float64]) -> float:
    """Return the p-value of Friedman's statistic if all orders within a place are as likely.

    Parameters
    ----------
    ranks : ndarray [places, settings]
        Ranks within each place.
    """
    generator, seen, found = np.random.default_rng(0), 0, (ranks.sum(axis=0) ** 2).sum()
    for _ in range(20):
        drawn = generator.permuted(np.broadcast_to(ranks, (_DRAWS // 20, *ranks.shape)), axis=2)
        seen += int(((drawn.sum(axis=1) ** 2).sum(axis=1) >= found - 1e-9).sum())
    return (1 + seen) / (1 + _DRAWS)


def elsewhere(
    means: Sequence[float], stds: Sequence[float], seeds: Sequence[int], margin: float
) -> tuple[float, float, float] | None:
    """Return the posterior of the difference in a further place, from a hierarchical normal model.

    The places' differences are normal about a common mean, both that and their deviation with flat
    priors; the means over seeds are normal about them, with the deviation of all places pooled
    (Gelman et al., Bayesian Data Analysis, 5.4; Corani et al., Machine Learning 2017, on the region
    of practical equivalence). The difference is the first minus the second, oriented so that more is
    better.

    Parameters
    ----------
    means, stds : sequence of float
        By place, mean and standard deviation of the differences over the seeds.
    seeds : sequence of int
        By place, how many there are.
    margin : float
        Differences within it do not matter.

    Returns
    -------
    tuple of three floats or None
        The probabilities that the difference is above the margin, within it, and below it on the other
        side; None with fewer than three places, or without a spread.
    """
    count, freedom = np.array(seeds), sum(seeds) - len(seeds)
    if len(means) < _FEWEST_PLACES or freedom < 1 or min(seeds) < 1:
        return None
    # The deviation of a single seed is not known.
    pooled = float(np.nansum((count - 1) * np.square(stds)) / freedom)
    found = np.array(means)
    scale = max(float(found.std()), math.sqrt(pooled))
    if scale == 0 or not math.isfinite(scale):
        return None
    between = np.linspace(0, 20 * scale, 4001)[:, None]
    variances = pooled / count + between**2 + 1e-12 * scale**2
    weights = 1 / variances
    spread = 1 / weights.sum(axis=1)
    center = (weights * found).sum(axis=1) * spread
    log = 0.5 * (
        np.log(spread) + (np.log(weights) - weights * (found - center[:, None]) ** 2).sum(1)
    )
    posterior = np.exp(log - log.max())
    posterior /= posterior.sum()
    std = np.sqrt(spread + between[:, 0] ** 2)
    above = float(posterior @ scipy.special.ndtr((center - margin) / std))
    below = float(posterior @ scipy.special.ndtr((-margin - center) / std))
    return above, 1 - above - below, below
