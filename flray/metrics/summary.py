"""A metric's course over the rounds in a few numbers."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from flray.metrics.direction import lower_is_better


@dataclass(frozen=True)
class Course:
    """What became of a metric.

    Attributes
    ----------
    last : float
        Value of the last round in which it was measured.
    mean_of_last : float
        Mean over the last `rounds` measured rounds.
    rounds : int
        How many these are.
    best : float
        Highest value; of a loss or a distance the lowest.
    best_round : int
        First round that reached it.
    """

    last: float
    mean_of_last: float
    rounds: int
    best: float
    best_round: int


def course(history: pd.DataFrame, metric: str, last: int) -> Course:
    """Return how a metric went.

    Parameters
    ----------
    history : DataFrame
        Column ``round`` and one per metric; rounds in which it was not measured hold NaN.
    metric : str
        Which one.
    last : int
        Rounds in the mean of the last rounds; fewer where there are fewer.

    Raises
    ------
    ValueError
        If the metric was never measured.
    """
    measured = history[["round", metric]].dropna() if metric in history else history.iloc[:0]
    if measured.empty:
        raise ValueError(f"{metric} was never measured")
    values = measured[metric].to_numpy()
    tail, best = values[-last:], int(values.argmin() if lower_is_better(metric) else values.argmax())
    return Course(float(values[-1]), float(tail.mean()), len(tail), float(values[best]),
                  int(measured["round"].iloc[best]))


def rounds_to_target(history: pd.DataFrame, metric: str, target: float) -> int | None:
    """Return the first round in which a metric reached a target; None if it never did.

    Parameters
    ----------
    history, metric
        As in `course`.
    target : float
        On the metric's own scale, accuracy in [0, 1]. A loss or a distance reaches it from above.
    """
    values = history[metric]
    reached = history.loc[values <= target if lower_is_better(metric) else values >= target, "round"]
    return int(reached.iloc[0]) if len(reached) else None
