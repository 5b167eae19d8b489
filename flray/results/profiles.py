"""Performance profiles: how often a setting is within so many points of the best.

After Dolan and Moré, "Benchmarking optimization software with performance profiles", Mathematical
Programming 91 (2002), with differences in place of ratios, for shares are compared in points.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from flray.results.study import Study


def behind_best(studies: Sequence[Study]) -> dict[str, NDArray[np.float64]]:
    """Return how far each setting is behind the best one at every place and seed, smallest first.

    Parameters
    ----------
    studies : sequence of Study
        Of one measure, a place each. Settings that some place lacks are left out, and seeds that a
        setting lacks.
    """
    names = (
        [name for name in studies[0].values if all(name in study.values for study in studies)]
        if studies
        else []
    )
    found: dict[str, list[float]] = {name: [] for name in names}
    for study in studies:
        rows: list[Mapping[int, float]] = [study.values[name] for name in names]
        for seed in rows[0] if rows else ():
            values = [row.get(seed, math.nan) for row in rows]
            if not all(map(math.isfinite, values)):
                continue
            best = min(values) if study.lower else max(values)
            for name, value in zip(names, values, strict=True):
                found[name].append(abs(best - value))
    return {name: np.sort(one) for name, one in found.items() if one}


def profile(behind: NDArray[np.float64], within: float) -> float:
    """Return the share of runs that are at most so far behind the best.

    Parameters
    ----------
    behind : ndarray [n]
        Distances from the best, sorted.
    within : float
        The most that counts.
    """
    return float(np.searchsorted(behind, within + 1e-9, side="right")) / len(behind)
