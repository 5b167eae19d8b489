"""The numbers of a run that are reported: last round, best round on validation, mean of the last rounds."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from flray.metrics.names import lower_is_better

if TYPE_CHECKING:
    import pandas as pd

Protocol = Literal["last", "best", "mean-last"]
AUTO, VALIDATION = "auto", "validation"
"""In place of a metric's name: a method's primary metric, and the same on validation samples."""


@dataclass(frozen=True)
class MetricTrajectory:
    """A metric over the rounds in a few numbers.

    Attributes
    ----------
    last : float
        Value of the last measured round.
    mean_of_last : float
        Mean over the last `rounds` measured rounds.
    rounds : int
        Number of rounds in `mean_of_last`.
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
    """Summarise a metric over the rounds.

    Parameters
    ----------
    history : DataFrame
        Column ``round`` and one per metric; NaN marks rounds without a measurement.
    metric : str
        Name of its column.
    last : int
        Number of last rounds to average, or all if there are fewer.

    Raises
    ------
    ValueError
        If the metric was never measured.
    """
    measured = history[["round", metric]].dropna() if metric in history else history.iloc[:0]
    if measured.empty:
        raise ValueError(f"{metric} was never measured")
    values = measured[metric].to_numpy()
    best = _best_position(values, metric)
    return MetricTrajectory(
        float(values[-1]),
        float(values[-last:].mean()),
        len(values[-last:]),
        float(values[best]),
        int(measured["round"].iloc[best]),
    )


@dataclass(frozen=True)
class ReportedRounds:
    """The rounds of a run whose values are reported.

    Attributes
    ----------
    rounds : tuple of int, optional
        Values are means over these; None: of each metric the last value.
    text : str
        For people, for example ``after 20 rounds``.
    """

    rounds: tuple[int, ...] | None
    text: str

    def value(self, values: pd.Series[float]) -> float:
        """Return the value to report of a metric by round; NaN if these rounds did not measure it."""
        known = values.dropna()
        counted = known.tail(1) if self.rounds is None else known[known.index.isin(self.rounds)]
        return float(np.mean(counted.to_numpy())) if len(counted) else math.nan


def reported_rounds(
    history: pd.DataFrame, metric: str, protocol: Protocol, last: int
) -> ReportedRounds:
    """Return the rounds that a protocol reports; they follow from the history alone.

    Parameters
    ----------
    history : DataFrame
        As in `trajectory`.
    metric : str
        The method's primary metric; only rounds that measured it count.
    protocol : {"last", "best", "mean-last"}
        The last value of each metric; the round whose mean validation value is best, the first of
        equals (if the metric has no validation value, the last round); the mean over the last
        `last` measured rounds.
    last : int
        As in `trajectory`.
    """
    measured = history[history[metric].notna()] if metric in history else history.iloc[:0]
    validation = validation_metric(metric)
    if protocol == "best" and validation in measured and measured[validation].notna().any():
        assert validation is not None
        best = int(measured["round"].iloc[_best_position(measured[validation].to_numpy(), metric)])
        total = int(history["round"].iloc[-1])
        return ReportedRounds((best,), f"round {best} of {total}, best on validation")
    if protocol == "mean-last" and len(measured):
        rounds = tuple(int(round_) for round_ in measured["round"].iloc[-last:])
        return ReportedRounds(rounds, f"mean of the last {len(rounds)} evaluations")
    return ReportedRounds(None, f"after {len(history)} rounds")


@dataclass(frozen=True)
class Reported:
    """The numbers of a run that a table reports.

    Attributes
    ----------
    values : dict of str to float
        Every metric that was measured in the rounds that count.
    text : str
        Which rounds these are.
    """

    values: dict[str, float]
    text: str


def summarise_history(
    history: pd.DataFrame, metric: str, protocol: Protocol, last: int
) -> Reported:
    """Return the reported value of every metric of a run.

    Parameters
    ----------
    history : DataFrame
        As in `trajectory`.
    metric : str
        As in `reported_rounds`.
    protocol : {"last", "best", "mean-last"}
        As in `reported_rounds`.
    last : int
        As in `trajectory`.
    """
    rounds = reported_rounds(history, metric, protocol, last)
    by_round = history.set_index("round")
    values = {str(name): rounds.value(by_round[name]) for name in by_round.columns}
    return Reported({n: v for n, v in values.items() if not math.isnan(v)}, rounds.text)


def rounds_to_target(values: pd.Series[float], target: float, lower: bool = False) -> float:
    """Return the first round that reached a target, infinity if none did.

    Parameters
    ----------
    values : Series
        By round.
    target : float
        On the metric's scale.
    lower : bool
        Whether the target is reached from above, as by a loss or a distance.
    """
    reached = values[values <= target] if lower else values[values >= target]
    return float(reached.index[0]) if len(reached) else math.inf


def validation_metric(metric: str) -> str | None:
    """Return the validation metric that goes with one: the same models and measure, mean over clients.

    Parameters
    ----------
    metric : str
        For example ``global/common/accuracy`` or ``personal/others/loss``; None for names of
        another form.
    """
    view, *steps = metric.split("/")
    known = view in ("global", "personal") and len(steps) >= 2
    return f"{view}/validation/{steps[1]}" if known else None


def score_metric(chosen: str, primary: str) -> str:
    """Return the metric that a trial's score is.

    Parameters
    ----------
    chosen : str
        ``sweep.metric``: a metric's name, `AUTO` or `VALIDATION`.
    primary : str
        The method's primary metric.
    """
    if chosen == VALIDATION:
        return validation_metric(primary) or primary
    return primary if chosen == AUTO else chosen


def _best_position(values: Any, metric: str) -> int:
    """Return the position of the first best value; NaN is never best."""
    return int(np.nanargmin(values) if lower_is_better(metric) else np.nanargmax(values))


class RunningReport:
    """The reported value of a metric during a run, equal to the one that `reported_rounds` finds in its history.

    Parameters
    ----------
    metric : str
        The method's primary metric.
    protocol : {"last", "best", "mean-last"}
        As in `reported_rounds`.
    last : int
        As in `reported_rounds`.

    Attributes
    ----------
    value : float
        The number to report so far; NaN before the metric was measured.
    """

    def __init__(self, metric: str, protocol: Protocol, last: int) -> None:
        self._metric = metric
        self._sign = -1.0 if lower_is_better(metric) else 1.0
        self._count = last if protocol == "mean-last" else 1
        self._validation = validation_metric(metric) if protocol == "best" else None
        self._values: list[float] = []
        self._best: float | None = None

    @property
    def value(self) -> float:
        """The number to report so far."""
        return float(np.mean(self._values)) if self._values else math.nan

    def add(self, metrics: Mapping[str, float]) -> float:
        """Add a round and return `value`; a round without an evaluation changes nothing."""
        value = metrics.get(self._metric, math.nan)
        if math.isnan(value):
            return self.value
        held = metrics.get(self._validation, math.nan) if self._validation is not None else math.nan
        if self._best is not None and not self._sign * (held - self._best) > 0:
            return self.value
        self._best = self._best if math.isnan(held) else held
        self._values = [*self._values, float(value)][-self._count :]
        return self.value

    def state(self) -> dict[str, Any]:
        """Return the plain values that `restore` needs."""
        return {"values": self._values, "best": self._best}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Continue from a `state`."""
        self._values = [float(value) for value in state["values"]]
        self._best = None if state["best"] is None else float(state["best"])
