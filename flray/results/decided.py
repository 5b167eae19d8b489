"""Decisions looked at again: the interval given that a pair was decided, and the seed that would undo it."""

import math

import numpy as np

from flray.results.sequential import ALPHA


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
    from scipy import special

    error = half / float(special.stdtrit(freedom, 1 - ALPHA / 2))
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
    below, above = special.stdtr(freedom, low), special.stdtr(freedom, -high)
    beyond = special.stdtr(freedom, -np.maximum(seen, high))
    beyond += np.maximum(0, below - special.stdtr(freedom, seen))
    share = beyond / (below + above)
    held = true[(share >= ALPHA / 2) & (share <= 1 - ALPHA / 2)]
    ends = float(held.min()), float(held.max())
    return ends if mean > 0 else (-ends[1], -ends[0])
