"""Paired test of the best setting against the second."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

METHOD = "paired t-test over seeds, two-sided"


@dataclass(frozen=True)
class Comparison:
    """Two settings at the same seeds.

    Attributes
    ----------
    best, second : str
        Their labels.
    difference : float
        Mean of best minus second over the seeds they share.
    seeds : int
        How many those are.
    p : float
        Of `METHOD`; NaN with fewer than two seeds, or where all differences are the same.
    """

    best: str
    second: str
    difference: float
    seeds: int
    p: float

    def __str__(self) -> str:
        if self.seeds < 2:
            return f"{self.best} over {self.second}: {self.difference:+.2f}; {self.seeds} common seed, not tested"
        if math.isnan(self.p):
            return f"{self.best} over {self.second}: {self.difference:+.2f} at each of {self.seeds} seeds, not testable"
        sign = "<" if self.p < 0.001 else "="
        return (
            f"{self.best} over {self.second}: {self.difference:+.2f}, p {sign} "
            f"{max(self.p, 0.001):.3f} "
            f"({self.seeds} seeds)"
        )


def compare(
    best: str, first: Mapping[int, float], second: str, other: Mapping[int, float]
) -> Comparison:
    """Compare two settings, given their values by seed."""
    from scipy import stats

    seeds = sorted(set(first) & set(other))
    differences = np.array([first[seed] - other[seed] for seed in seeds])
    p = math.nan
    if len(seeds) > 1 and float(differences.std()) > 1e-12 * max(
        1.0, float(np.abs(differences).max())
    ):
        p = float(stats.ttest_1samp(differences, 0.0).pvalue)
    return Comparison(
        best, second, float(differences.mean()) if len(seeds) else math.nan, len(seeds), p
    )
