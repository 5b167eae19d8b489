"""From a trial's history to one number: what a paper's measure is here."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import numpy as np
import pandas as pd

from flray.metrics import direction
from flray.results.load import Trial

AVERAGE = "avg"
_REACH = re.compile(r"^(.+?)\s*>=\s*([\d.]+)$")
_COSTS = ("hours", "seconds", "memory", "bytes", "time", ">=")


def lower_is_better(measure: str) -> bool:
    """Tell whether a measure is better when it is small: losses, distances, costs, rounds to a target."""
    return any(word in measure for word in _COSTS) or any(
        map(direction.lower_is_better, measure.split("/"))
    )


def is_share(measure: str) -> bool:
    """Tell whether a measure is a share, which the papers print in percent."""
    return not lower_is_better(measure)


def value(
    trial: Trial, measure: str, client: str = AVERAGE, rule: str = "last", last: int = 5
) -> float:
    """Return a measure of a trial, NaN where it was not measured. Shares are in percent.

    Parameters
    ----------
    trial : Trial
        One run.
    measure : str
        See `flray.config.paper.PaperTable.measures`.
    client : str
        A client's or domain's name, or ``avg``.
    rule : {"last", "mean-last", "best"}
        Which rounds count; best: that of the best mean validation value, the last one where there
        is none.
    last : int
        Rounds in the mean of the last ones.
    """
    history = trial.history
    if measure == "hours":
        return float(history["time/round"].sum()) / 3600 if "time/round" in history else math.nan
    if measure == "memory":
        return memory(trial) / 2**20
    if reach := _REACH.match(measure):
        reached = series(trial, reach.group(1), client).pipe(
            lambda s: s[s >= float(reach.group(2)) / 100]
        )
        return float(reached.index[0]) if len(reached) else math.inf
    values = series(trial, measure, client)
    if values.empty:
        return math.nan
    lower = lower_is_better(measure)
    chosen = float(values.iloc[-1])
    if rule == "mean-last":
        chosen = float(values.iloc[-last:].mean())
    elif rule == "best" and (best := _best_round(trial)) in values.index:
        chosen = float(values[best])
    return chosen * (1.0 if lower else 100.0)


def memory(trial: Trial) -> float:
    """Return the most bytes a run held: of tensors on a GPU where one was used, else of its largest client process."""
    for name in ("memory/peak/gpu", "memory/peak/actor", "memory/client"):
        most = float(trial.history[name].max()) if name in trial.history else 0.0
        if most > 0:
            return most
    return math.nan


def first_available(
    trial: Trial, measure: str, clients: Sequence[str], rule: str = "last", last: int = 5
) -> float:
    """Return the `value` of the first of some clients that there is."""
    found = (value(trial, measure, client, rule, last) for client in clients)
    return next((one for one in found if not math.isnan(one)), math.nan)


def series(trial: Trial, measure: str, client: str = AVERAGE) -> pd.Series[float]:
    """Return a measure by round, the rounds in which it was measured; shares as tracked, between 0 and 1."""
    if measure == "auto":
        kind, name = "", trial.metric
    else:
        kind, _, name = measure.partition("/")
    if kind == "own":
        name = f"{trial.view}/local/{name}"
    elif kind == "others":
        if f"personal/others/{name}" not in trial.history and trial.view == "global":
            return _others(trial, f"{trial.view}/local/{name}", client)
        name = f"personal/others/{name}"
    elif kind:
        name = measure
    found = _column(trial, name) if client == AVERAGE else _of_client(trial, name, client)
    return found.dropna()


def clients(trial: Trial, name: str) -> list[str]:
    """Return the clients for which a metric was tracked, in the order of the federation."""
    prefix, order = f"{name}/client/", list(trial.domains)
    found = [
        str(column).removeprefix(prefix)
        for column in trial.history.columns
        if str(column).startswith(prefix)
    ]
    return sorted(found, key=lambda one: order.index(one) if one in order else len(order))


def comparable_trials(trials: Sequence[Trial]) -> Sequence[Trial]:
    """Return the trials over which a single client's values may be averaged.

    All, where clients belong to domains; of clients that the seed made by dealing out one pool,
    only the first trial's, for those of another seed hold other data under the same names.
    """
    return (
        trials
        if len(set(trials[0].domains.values())) != 1 or len(trials[0].domains) == 1
        else trials[:1]
    )


def _best_round(trial: Trial) -> float:
    """Return the first round whose mean validation value of the method's own measure is best, NaN without any."""
    name = f"{trial.view}/validation/{trial.metric.rpartition('/')[2]}"
    values = _column(trial, name).dropna()
    if values.empty:
        return math.nan
    lower = lower_is_better(name)
    return float(values.index[int(np.argmin(values) if lower else np.argmax(values))])


def _column(trial: Trial, name: str) -> pd.Series[float]:
    history = trial.history
    if name not in history:
        return pd.Series(dtype=float)
    return pd.Series(history[name].to_numpy(dtype=float), index=history["round"])


def _of_client(trial: Trial, name: str, client: str) -> pd.Series[float]:
    """Return one client's values, or the mean over the clients of a domain."""
    known = clients(trial, name)
    mine = [one for one in known if one == client] or [
        one for one in known if re.fullmatch(re.escape(client) + r"\d+", one)
    ]
    if not mine:
        return pd.Series(dtype=float)
    return pd.concat([_column(trial, f"{name}/client/{one}") for one in mine], axis=1).mean(axis=1)


def _others(trial: Trial, name: str, client: str) -> pd.Series[float]:
    """Return what one model for all scores on the others' test parts: the mean of their values."""
    known = clients(trial, name)
    if len(known) < 2:
        return pd.Series(dtype=float)
    table = pd.concat([_column(trial, f"{name}/client/{one}") for one in known], axis=1).to_numpy()
    apart = (table.sum(axis=1, keepdims=True) - table) / (len(known) - 1)
    if client == AVERAGE:
        chosen = apart.mean(axis=1)
    elif client in known:
        chosen = apart[:, known.index(client)]
    else:
        return pd.Series(dtype=float)
    return pd.Series(np.asarray(chosen, dtype=float), index=trial.history["round"])
