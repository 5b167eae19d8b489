"""Settings over several data sets: mean ranks, Friedman's test, Nemenyi's critical difference, wins.

After Demšar, "Statistical comparisons of classifiers over multiple data sets", JMLR 7 (2006).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from flray.results.paired import ALPHA


@dataclass(frozen=True)
class Ranks:
    """Settings that were compared in several places: on data sets, or in other circumstances.

    Attributes
    ----------
    names : tuple of str
        The settings, best mean rank first.
    places : tuple of str
        Where all of them have a value.
    means : tuple of float
        Mean ranks; 1 is best, equal values share their ranks.
    p : float
        Of Friedman's test that all settings are alike; NaN with fewer than three, or where all
        values are equal.
    critical : float
        Nemenyi's critical difference of two mean ranks at 0.05.
    wins, ties : array
        In how many places the setting of the row is better than that of the column, and equal.
    """

    names: tuple[str, ...]
    places: tuple[str, ...]
    means: tuple[float, ...]
    p: float
    critical: float
    wins: NDArray[np.int64]
    ties: NDArray[np.int64]

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
    from scipy import stats

    # Means of the same values may differ in their last bits.
    table = np.array([[place[name] for name in names] for place in values.values()]).round(9)
    table = table if lower else -table
    means = stats.rankdata(table, axis=1).mean(axis=0)
    order = np.argsort(means, kind="stable")
    table = table[:, order]
    p = math.nan
    if len(names) > 2 and (table != table[:, :1]).any():
        p = float(stats.friedmanchisquare(*table.T).pvalue)
    wins = (table[:, :, None] < table[:, None, :]).sum(axis=0)
    ties = (table[:, :, None] == table[:, None, :]).sum(axis=0)
    return Ranks(
        tuple(names[i] for i in order),
        tuple(values),
        tuple(float(means[i]) for i in order),
        p,
        critical_difference(len(names), len(values)),
        wins,
        ties,
    )


def critical_difference(settings: int, places: int, alpha: float = ALPHA) -> float:
    """Return Nemenyi's critical difference of two mean ranks.

    Parameters
    ----------
    settings, places : int
        How many are ranked, and how often.
    alpha : float
        Level of all comparisons together.
    """
    from scipy import stats

    range_ = float(stats.studentized_range.ppf(1 - alpha, settings, np.inf))
    return range_ / math.sqrt(2) * math.sqrt(settings * (settings + 1) / (6 * places))


def win_matrix(ranks: Ranks) -> list[list[str]]:
    """Return ``wins/ties/losses`` of the row's setting against the column's; empty on the diagonal."""

    def cell(row: int, column: int) -> str:
        if row == column:
            return ""
        return f"{ranks.wins[row, column]}/{ranks.ties[row, column]}/{ranks.wins[column, row]}"

    numbers: Sequence[int] = range(len(ranks.names))
    return [[cell(row, column) for column in numbers] for row in numbers]
