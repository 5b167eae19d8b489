"""A metric's course over the rounds in a few numbers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from flray.metrics.direction import lower_is_better

if TYPE_CHECKING:
    import pandas as pd

Protocol = Literal["last", "best", "mean-last"]


@dataclass(frozen=True)
class MetricTrajectory:
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


def trajectory(history: pd.DataFrame, metric: str, last: int) -> MetricTrajectory:
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
    tail, best = (
        values[-last:],
        int(values.argmin() if lower_is_better(metric) else values.argmax()),
    )
    return MetricTrajectory(
        float(values[-1]),
        float(tail.mean()),
        len(tail),
        float(values[best]),
        int(measured["round"].iloc[best]),
    )


@dataclass(frozen=True)
class Reported:
    """The numbers of a run that a table reports.

    Attributes
    ----------
    values : dict of str to float
        Every metric that was measured in the rounds that count.
    words : str
        Which rounds these are.
    """

    values: dict[str, float]
    words: str


def validation_metric(metric: str) -> str | None:
    """Return the validation metric that goes with one: the same models and measure, mean over clients.

    Parameters
    ----------
    metric : str
        For example ``global/common/accuracy`` or ``personal/others/loss``; None for what is not of
        this form.
    """
    view, *steps = metric.split("/")
    return (
        f"{view}/validation/{steps[1]}"
        if view in ("global", "personal") and len(steps) >= 2
        else None
    )


def summarise_history(
    history: pd.DataFrame, metric: str, protocol: Protocol, last: int
) -> Reported:
    """Return what a protocol reports of a run; it follows from the history alone.

    Parameters
    ----------
    history : DataFrame
        As in `course`.
    metric : str
        The method's own measure; the rounds in which it was measured count.
    protocol : {"last", "best", "mean-last"}
        The last value of each metric; all metrics of the round whose mean validation value is best,
        the first of equals (a loss or a distance is best low; where the metric has no validation
        value, the last round); the mean over the last `last` measured rounds.
    last : int
        As in `course`.
    """
    columns = [name for name in history.columns if name != "round"]
    measured = history[history[metric].notna()] if metric in history else history.iloc[:0]
    validation = validation_metric(metric)
    if (
        protocol == "best"
        and validation is not None
        and validation in measured
        and measured[validation].notna().any()
    ):
        values = measured[validation].to_numpy()
        chosen = measured.iloc[
            int(np.nanargmin(values) if lower_is_better(validation) else np.nanargmax(values))
        ]
        known = {str(n): float(chosen[n]) for n in columns if not np.isnan(float(chosen[n]))}
        return Reported(
            known,
            f"round {int(chosen['round'])} of {int(history['round'].iloc[-1])}, best on validation",
        )
    if protocol == "mean-last" and len(measured):
        tail = measured.iloc[-last:]
        means = {
            str(n): float(np.mean(tail[n].dropna().to_numpy()))
            for n in columns
            if tail[n].notna().any()
        }
        return Reported(means, f"mean of the last {len(tail)} evaluations")
    known = {
        str(n): float(history[n].dropna().iloc[-1]) for n in columns if history[n].notna().any()
    }
    return Reported(known, f"after {len(history)} rounds")


class RunningReport:
    """What `report` gives of a metric, round by round while a run goes on, so that one number is seen everywhere.

    Parameters
    ----------
    metric : str
        The method's own measure.
    protocol : {"last", "best", "mean-last"}
        As in `report`.
    last : int
        As in `report`.

    Attributes
    ----------
    value : float
        The number to report so far; NaN before the metric was measured.
    """

    def __init__(self, metric: str, protocol: Protocol, last: int) -> None:
        self._metric, self._protocol, self._keep = (
            metric,
            protocol,
            last if protocol == "mean-last" else 1,
        )
        self._validation = validation_metric(metric) if protocol == "best" else None
        self._values: list[float] = []
        self._best: float | None = None

    @property
    def value(self) -> float:
        """The number to report so far."""
        return float(np.mean(self._values)) if self._values else math.nan

    def add(self, metrics: Mapping[str, float]) -> float:
        """Take in a round and return `value`; a round without an evaluation changes nothing."""
        value = metrics.get(self._metric, math.nan)
        if math.isnan(value):
            return self.value
        held = metrics.get(self._validation, math.nan) if self._validation is not None else math.nan
        if self._best is not None and not self._better(held):
            return self.value
        self._best = self._best if math.isnan(held) else held
        self._values = [*self._values, float(value)][-self._keep :]
        return self.value

    def _better(self, held: float) -> bool:
        assert self._best is not None and self._validation is not None
        return held < self._best if lower_is_better(self._validation) else held > self._best

    def state(self) -> dict[str, Any]:
        """Return what `restore` needs, as plain values."""
        return {"values": self._values, "best": self._best}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Go on from a `state`."""
        self._values = [float(value) for value in state["values"]]
        self._best = None if state["best"] is None else float(state["best"])


def rounds_to_target(history: pd.DataFrame, metric: str, target: float) -> int | None:
    """Return the first round in which a metric reached a target; None if it never did.

    Parameters
    ----------
    history : DataFrame
        As in `course`.
    metric : str
        As in `course`.
    target : float
        On the metric's own scale, accuracy in [0, 1]. A loss or a distance reaches it from above.
    """
    values = history[metric]
    reached = history.loc[
        values <= target if lower_is_better(metric) else values >= target, "round"
    ]
    return int(reached.iloc[0]) if len(reached) else None
