"""Values of a trial: the measures of a paper's table, and by client."""

import math
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd

from flray.metrics import is_share, rounds_to_target
from flray.results import ResultSet, Trial

AVERAGE = "avg"
"""In place of a client: the mean over clients, or the value of one model."""
QUANTILES: Mapping[str, float] = {
    "10 % of clients": 0.1,
    "median client": 0.5,
    "90 % of clients": 0.9,
}
"""Quantiles over clients: so many of them have a lower value."""
MAX_CLIENTS = 12
"""Up to which number clients have a column each."""


def value(trial: Trial, measure: str, client: str = AVERAGE) -> float:
    """Return the reported value of a measure; NaN if it was not measured. Shares are in percent.

    Parameters
    ----------
    trial : Trial
        One run.
    measure : str
        See `resolve`.
    client : str
        A client's or domain's name, or ``avg``.
    """
    share = is_share(resolve(trial, measure))
    return tracked_value(trial, measure, client) * (100.0 if share else 1.0)


def tracked_value(trial: Trial, measure: str, client: str = AVERAGE) -> float:
    """Return the same on the scale that it was tracked on, on which shares are between 0 and 1."""
    if (known := trial.values.get((measure, client))) is None:
        known = trial.values[measure, client] = _tracked_value(trial, measure, client)
    return known


def _tracked_value(trial: Trial, measure: str, client: str) -> float:
    if measure == "hours":
        return total(trial, "time/round") / 3600
    if measure == "memory":
        return peak_memory(trial) / 2**20
    if measure == "quantile":
        values = [tracked_value(trial, "clients", name) for name in clients(trial)]
        finite = [one for one in values if math.isfinite(one)]
        return float(np.quantile(finite, QUANTILES[client])) if finite else math.nan
    if match := re.match(r"^(.+?)\s*>=\s*([\d.]+)$", measure):
        return rounds_to_target(series(trial, match[1], client), float(match[2]) / 100)
    return trial.reported.value(series(trial, measure, client))


def resolve(trial: Trial, measure: str) -> str:
    """Return the measure of a trial that a word stands for.

    Parameters
    ----------
    trial : Trial
        One run.
    measure : str
        ``auto`` (the reported metric), ``chosen`` (the one that settings are chosen by), ``clients``
        and ``quantile`` (that of single clients), ``own`` (the same on each client's test part),
        ``VIEW/*`` (the trial's measure in a view), or a measure of a paper's table, see
        `flray.config.sweep.PaperTable.measures`.
    """
    if measure in ("clients", "quantile", "own"):
        return client_measure(trial, own=measure == "own")
    words = {"auto": trial.metric, "chosen": trial.score_metric}
    return words.get(measure, measure).replace("*", trial.measure)


def total(trial: Trial, name: str) -> float:
    """Return the sum of a metric over the rounds; NaN if it was not tracked."""
    return float(trial.history[name].sum()) if name in trial.history else math.nan


def peak_memory(trial: Trial) -> float:
    """Return a run's peak memory in bytes: of tensors if it used a GPU, otherwise of its largest client process."""
    names = ("memory/peak/gpu", "memory/peak/actor", "memory/client")
    peaks = (float(trial.history[name].max()) for name in names if name in trial.history)
    return next((most for most in peaks if most > 0), math.nan)


def series(trial: Trial, measure: str = "auto", client: str = AVERAGE) -> "pd.Series[float]":
    """Return a measure by round, without rounds that lack it; shares as tracked, between 0 and 1."""
    if " | " in measure:
        found = (series(trial, one.strip(), client) for one in measure.split(" | "))
        return next((one for one in found if len(one)), pd.Series(dtype=float))
    metric = resolve(trial, measure)
    kind, _, of = metric.partition("/")
    own = f"{trial.view}/local/{of}"
    names = {
        "own": own,
        "others": f"personal/others/{of}",
        "pooled": f"{'global/common' if trial.view == 'global' else 'personal/pooled'}/{of}",
    }
    name = names.get(kind, metric)
    if kind == "others" and name not in trial.history and trial.view == "global":
        return _mean_of_others(trial, own, client)
    column = _column(trial, name) if client == AVERAGE else _client_column(trial, name, client)
    return column.dropna()


def client_measure(trial: Trial, own: bool = False) -> str:
    """Return the measure of a trial's clients: that of the primary metric, or with `own` on each client's test part."""
    _, scope, name = (
        trial.metric.split("/", 2) if trial.metric.count("/") > 1 else ("", "", trial.metric)
    )
    return f"{'others' if scope == 'others' and not own else 'own'}/{name}"


def clients(trial: Trial, name: str = "") -> list[str]:
    """Return the clients that a metric was tracked for, in the order of the federation.

    Parameters
    ----------
    trial : Trial
        One run.
    name : str
        The metric; default: the primary measure of the trial's models on each client's test part.
    """
    prefix, order = f"{name or f'{trial.view}/local/{trial.measure}'}/client/", list(trial.domains)
    columns = map(str, trial.history.columns)
    found = [one.removeprefix(prefix) for one in columns if one.startswith(prefix)]
    return sorted(found, key=lambda one: order.index(one) if one in order else len(order))


def comparable_trials(trials: Sequence[Trial]) -> Sequence[Trial]:
    """Return the trials that a single client's values may be averaged over.

    These are all trials if each client is a separate domain, or if all trials have the same
    partition. Otherwise only the first, because clients of another seed hold other data under the
    same names.
    """
    domains = trials[0].domains
    if len(set(domains.values())) == len(domains):
        return trials
    held = {trial.fingerprints.get("partition", "") for trial in trials}
    return trials if len(held) == 1 and "" not in held else trials[:1]


def clients_stay(source: ResultSet) -> bool:
    """Tell whether a client is the same at all seeds of each setting."""
    settings: dict[str, list[Trial]] = defaultdict(list)
    for trial in source.trials:
        if len(trial.history):
            settings[source.label(trial)].append(trial)
    return all(comparable_trials(trials) is trials for trials in settings.values())


def _column(trial: Trial, name: str) -> "pd.Series[float]":
    history = trial.history
    if name not in history:
        return pd.Series(dtype=float)
    return pd.Series(history[name].to_numpy(dtype=float), index=history["round"])


def _client_column(trial: Trial, name: str, client: str) -> "pd.Series[float]":
    """Return one client's values, or the mean over the clients of a domain."""
    known = clients(trial, name)
    mine = [one for one in known if one == client] or [
        one for one in known if re.fullmatch(re.escape(client) + r"\d+", one)
    ]
    if not mine:
        return pd.Series(dtype=float)
    columns = [_column(trial, f"{name}/client/{one}") for one in mine]
    return columns[0] if len(columns) == 1 else pd.concat(columns, axis=1).mean(axis=1)


def _mean_of_others(trial: Trial, name: str, client: str) -> "pd.Series[float]":
    """Return the score of a common model on the others' test parts: the mean of their values."""
    known = clients(trial, name)
    if len(known) < 2 or client not in (AVERAGE, *known):
        return pd.Series(dtype=float)
    table = pd.concat([_column(trial, f"{name}/client/{one}") for one in known], axis=1).to_numpy()
    with np.errstate(invalid="ignore"):  # the values of a model that diverged are infinite
        others = (table.sum(axis=1, keepdims=True) - table) / (len(known) - 1)
    chosen = others.mean(axis=1) if client == AVERAGE else others[:, known.index(client)]
    return pd.Series(np.asarray(chosen, dtype=float), index=trial.history["round"])
