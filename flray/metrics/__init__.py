"""Names of metrics and whether lower is better; the numbers of a run that are reported, by its last or best rounds.

``<view>/<scope>/<metric>`` is a mean over clients or the value of the one global model, for example
``global/common/accuracy`` or ``personal/local/accuracy``; ``<view>/<scope>/<metric>/client/<name>``
is one client's value; ``time/<phase>`` (seconds), ``time/samples_per_second`` (of training, by all
clients together) and ``bytes/<direction>`` are costs.
"""

from __future__ import annotations

import hashlib
import math
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from flray import registry
from flray.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

_WORDS: Mapping[str, Mapping[str, str]] = tomllib.loads(
    Path(__file__).with_name("names.toml").read_text(encoding="utf-8")
)
VIEWS_IN_WORDS, MEASURES_IN_WORDS = _WORDS["views"], _WORDS["measures"]
SUFFIXES_IN_WORDS, OTHERS_IN_WORDS = _WORDS["suffixes"], _WORDS["others"]


def is_validation(metric: str) -> bool:
    """Return whether a metric is measured on validation samples."""
    return "validation" in metric.split("/")


def is_test(metric: str) -> bool:
    """Return whether a metric is measured on test data; ``auto`` is."""
    return metric == "auto" or (_steps_before(metric) == 2 and not is_validation(metric))


VIEWS = tuple(VIEWS_IN_WORDS)
"""Whose models on which data: the start of the names of all evaluations, in the order of tables."""
TEST_VIEWS = tuple(view for view in VIEWS if not view.endswith("/validation"))
PRIMARY_VIEWS = {"global": "global/common", "personal": "personal/local"}
ALIKE = ("global/local", "personal/local")
"""How global and personal models are compared: each on every client's test part, mean over clients."""

#: MLflow's longest name of a metric, parameter or tag, in characters.
LONGEST_NAME = 250


def clean_name(name: str) -> str:
    """Return `name` as MLflow takes it; a name that is fine comes back unchanged.

    Refused characters become ``_``, empty and dotted path steps go, and a name that is too long
    ends in eight hexadecimal digits of its hash so that two long names stay different.

    Parameters
    ----------
    name : str
        Steps joined by ``/``.

    Raises
    ------
    ValueError
        If the cleaned name is empty.
    """
    steps = [
        step for step in re.sub(r"[^/\w.\- :]", "_", name).split("/") if step and set(step) != {"."}
    ]
    cleaned = "/".join(steps)
    if not cleaned:
        raise ValueError(f"a metric needs a name; found {name!r}")
    if len(cleaned) > LONGEST_NAME:
        digest = hashlib.sha256(name.encode()).hexdigest()[:8]
        cleaned = f"{cleaned[: LONGEST_NAME - 9]}_{digest}"
    return cleaned


def primary_metric_name(views: tuple[str, ...], metric: str, common: bool = True) -> str:
    """Return the name of a method's primary metric, which progress, early stopping and tables use.

    Parameters
    ----------
    views : tuple of str
        The views that the method evaluates, the primary one first: ``global`` or ``personal``.
    metric : str
        The task's metric.
    common : bool
        Whether all clients test the same global model; if not, each one tests that of its network, or
        with its local statistics.
    """
    view = PRIMARY_VIEWS[views[0]] if common or views[0] != "global" else ALIKE[0]
    return f"{view}/{metric}"


def find_primary_metric(method: str, measured: Iterable[str]) -> str:
    """Return a method's primary metric, according to its declarations and the measured metrics.

    A run that an older flray began did not record it.

    Parameters
    ----------
    method : str
        Its name.
    measured : iterable of str
        The names of all metrics, in their order.
    """
    known, measured = method in registry.algorithms.names(), list(measured)
    view = registry.algorithms.outline(method).views[0] if known else "global"
    # Clients may have had statistics of their own, and a method in a plug-in is not known here.
    for first in (PRIMARY_VIEWS[view], *ALIKE):
        names = [name for name in measured if name.rpartition("/")[0] == first]
        if names:
            return next((name for name in names if not name.endswith("/loss")), names[0])
    return ""


def check_clients(names: Sequence[str]) -> None:
    """Refuse clients that would share the names of their metrics.

    Parameters
    ----------
    names : sequence of str
        The clients', which are made of their domains'.

    Raises
    ------
    DataError
        Naming the first two that MLflow takes for one.
    """
    first: dict[str, str] = {}
    for name in names:
        cleaned = clean_name(f"client/{name}")
        if cleaned in first:
            raise DataError(
                f"the clients {first[cleaned]!r} and {name!r} have one name in MLflow, "
                f"{cleaned.removeprefix('client/')!r}: a metric's name holds letters, digits, "
                "spaces and _ - . : alone; rename one of their domains"
            )
        first[cleaned] = name


_SCOPES = {
    **dict.fromkeys(("global", "personal", "adapted", "online", "offline"), 2),
    **dict.fromkeys(("train", "own", "others", "pooled"), 1),
}
"""Steps before the measure in a metric's name, by its first step; of a method's further models, NAME/local, two."""
_SHARES = ("accuracy", "top", "auc", "sensitivity", "specificity", "f1", "dice")
_LOWER_ENDS = ("error", "loss", "rmse", "mae")
_LOWER = (*_LOWER_ENDS, "hausdorff", "hours", "seconds", "time", "bytes", "memory")


def _steps_before(metric: str) -> int:
    first, *rest = metric.split("/")
    return _SCOPES.get(first, 2 if rest[:1] == ["local"] else 0)


def measure_name(metric: str) -> str:
    """Return a metric's measure: ``"dice"`` of ``"personal/local/dice/client/A"``."""
    parts = metric.split("/")
    if parts[0] in ("own", "others", "pooled") and len(parts) > 1 and parts[1] in _SCOPES:
        return measure_name("/".join(parts[1:]))
    return parts[min(_steps_before(metric), len(parts) - 1)]


def lower_is_better(metric: str) -> bool:
    """Tell whether a metric, by its tracked name or its measure alone, is better the lower it is."""
    measure = measure_name(metric)
    spread = ">=" in metric or metric.endswith(f"{measure}/std")
    return spread or measure.startswith(_LOWER) or measure.endswith(_LOWER_ENDS)


def is_share(metric: str) -> bool:
    """Tell whether a metric, by its tracked name or its measure alone, is a share, which is shown in percent.

    A measure of an evaluation is a share unless lower is better; its deviation over clients is one if
    it is. Other tracked metrics, such as ``train/...`` and ``time/...``, are shares only if they are
    named after such a measure.
    """
    if lower_is_better(metric.removesuffix("/std")):
        return False
    evaluated = "/" not in metric or _steps_before(metric) == 2
    parts = metric.split("/")
    own = "/" in metric and parts[0] in ("own", "others", "pooled") and parts[1] not in _SCOPES
    return evaluated or own or measure_name(metric).startswith(_SHARES)


def is_at_most_one(metric: str) -> bool:
    """Tell whether a metric is one of flray's own shares; others, such as a custom one, may have any value."""
    measure = measure_name(metric)
    return measure in MEASURES_IN_WORDS and measure.startswith(_SHARES)


Protocol = Literal["last", "best", "mean-last"]
AUTO, VALIDATION = "auto", "validation"
"""In place of a metric's name: a method's primary metric, and the same on validation samples."""


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
        return float(counted.to_numpy().mean()) if len(counted) else math.nan


def reported_rounds(
    history: pd.DataFrame, metric: str, protocol: Protocol, last: int, lower: bool | None = None
) -> ReportedRounds:
    """Return the rounds that a protocol reports; they follow from the history alone.

    Parameters
    ----------
    history : DataFrame
        Column ``round`` and one per metric; NaN marks rounds without a measurement.
    metric : str
        The method's primary metric; only rounds that measured it count.
    protocol : {"last", "best", "mean-last"}
        The last value of each metric; the round whose mean validation value is best, the first of
        equals (if the metric has no validation value, the last round); the mean over the last
        `last` measured rounds.
    last : int
        Number of last rounds to average, or all if there are fewer.
    lower : bool, optional
        Whether less is better; by default the metric's name tells.
    """
    lower = lower_is_better(metric) if lower is None else lower
    measured = history[history[metric].notna()] if metric in history else history.iloc[:0]
    validation = validation_metric(metric)
    if protocol == "best" and validation in measured and measured[validation].notna().any():
        assert validation is not None
        best = int(measured["round"].iloc[_best_position(measured[validation].to_numpy(), lower)])
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
    history: pd.DataFrame, metric: str, protocol: Protocol, last: int, lower: bool | None = None
) -> Reported:
    """Return the reported value of every metric of a run.

    Parameters
    ----------
    history : DataFrame
        As in `reported_rounds`.
    metric : str
        As in `reported_rounds`.
    protocol : {"last", "best", "mean-last"}
        As in `reported_rounds`.
    last : int
        As in `reported_rounds`.
    lower : bool, optional
        As in `reported_rounds`.
    """
    rounds = reported_rounds(history, metric, protocol, last, lower)
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


def is_lower_better_in(sweep: Mapping[str, Any] | None, metric: str) -> bool:
    """Tell the same in a sweep, whose ``mode: min`` says so of the metric that it names.

    Parameters
    ----------
    sweep : mapping or None
        The settings of ``sweep``, if there are any.
    metric : str
        A metric, by its tracked name or its measure alone.
    """
    sweep = sweep or {}
    named = str(sweep.get("metric", AUTO))
    own = named in ("", AUTO, VALIDATION) or measure_name(named) == measure_name(metric)
    return lower_is_better(metric) or (own and sweep.get("mode") == "min")


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


def _best_position(values: Any, lower: bool) -> int:
    """Return the position of the first best value; NaN is never best."""
    import numpy as np  # not above: `flray.portable` comes before numpy

    known = np.flatnonzero(~np.isnan(values))  # nanargmax takes NaN for minus infinity
    best = np.argmin if lower else np.argmax
    return int(known[best(values[known])])


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
    lower : bool
        Whether less is better.

    Attributes
    ----------
    value : float
        The number to report so far; NaN before the metric was measured.
    """

    def __init__(self, metric: str, protocol: Protocol, last: int, lower: bool) -> None:
        self._metric = metric
        self._sign = -1.0 if lower else 1.0
        self._count = last if protocol == "mean-last" else 1
        self._validation = validation_metric(metric) if protocol == "best" else None
        self._values: list[float] = []
        self._best: float | None = None

    @property
    def value(self) -> float:
        """The number to report so far."""
        import numpy as np  # as in `_best_position`

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
