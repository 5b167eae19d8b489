"""From a result set to the panels of a report's figures; what was not tracked has no panel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from flray.drawing.charts import Line, LinePanel
from flray.drawing.grids import GridPanel
from flray.metrics.direction import is_share, lower_is_better
from flray.results import measures
from flray.results.result_set import Trial

Groups = Mapping[str, Mapping[str, Sequence[Trial]]]
"""The trials of every setting, by group and label."""
MAX_PANELS = 12
_MAX_CLIENTS, _MAX_LINES, _MAX_SEEDS = 30, 24, 20


def join_names(*names: str) -> str:
    """Return the title of a panel."""
    return " · ".join(name for name in names if name)


def learning_curves(groups: Groups) -> Iterator[LinePanel]:
    """Yield the primary metric by round: mean over seeds, with a band of one standard deviation."""
    for group, settings in groups.items():
        lines = []
        for label, trials in settings.items():
            table = _by_seed(trials)
            if len(table):
                spread = table.std(axis=1, ddof=1).fillna(0.0)
                seeds = list(table.to_numpy().T) if 1 < table.shape[1] <= _MAX_SEEDS else []
                mean = table.mean(axis=1).to_numpy()
                lines.append(Line(label, list(table.index), mean, spread.to_numpy(), seeds))
        if lines:
            yield LinePanel(group, lines)


def traffic_curves(groups: Groups) -> Iterator[LinePanel]:
    """Yield the primary metric by the megabytes sent so far, mean over seeds."""
    for group, settings in groups.items():
        lines = []
        for label, trials in settings.items():
            sent = [
                pd.Series(
                    (t.history["bytes/up"] + t.history["bytes/down"]).cumsum().to_numpy(),
                    t.history["round"],
                )
                for t in trials
                if {"bytes/up", "bytes/down"} <= set(t.history.columns)
            ]
            table = _by_seed(trials)
            if sent and len(table):
                megabytes = pd.concat(sent, axis=1).mean(axis=1).reindex(table.index) / 1e6
                if megabytes.iloc[-1] > 0:
                    lines.append(Line(label, megabytes.to_numpy(), table.mean(axis=1).to_numpy()))
        if lines:
            yield LinePanel(group, lines)


def _by_seed(trials: Sequence[Trial]) -> pd.DataFrame:
    """Return the primary metric of trials, a column each, by the rounds in which any was evaluated."""
    table = pd.concat([measures.series(trial) for trial in trials], axis=1)
    return table.sort_index().dropna(how="all")


def client_values(groups: Groups) -> Iterator[GridPanel]:
    """Yield each client's last value by setting, under the method's own models; the worst is marked."""
    for group, settings in groups.items():
        rows = {label: _last_values(trials) for label, trials in settings.items()}
        names = list(dict.fromkeys(name for row in rows.values() for name in row))
        rows = {label: row for label, row in rows.items() if row}
        if not rows or len(names) > _MAX_CLIENTS:
            continue
        metric = next(iter(settings.values()))[0].metric
        lower, share = lower_is_better(metric), is_share(metric)
        values = np.array([[row.get(name, np.nan) for name in names] for row in rows.values()])
        worst = np.nanargmax(values, axis=1) if lower else np.nanargmin(values, axis=1)
        texts = [
            ["" if np.isnan(v) else f"{100 * v:.1f}" if share else f"{v:.3g}" for v in row]
            for row in values
        ]
        marked = frozenset((row, int(column)) for row, column in enumerate(worst))
        yield GridPanel(group, list(rows), names, values, texts, marked)


def _last_values(every: Sequence[Trial]) -> dict[str, float]:
    """Return each client's last value, the mean over the seeds that may be averaged."""
    trials = measures.comparable_trials(every)
    prefix = f"{trials[0].view}/local/{trials[0].measure}/client/"
    columns = [f"{prefix}{name}" for name in measures.clients(trials[0])]
    rows = [
        trial.history[columns].ffill().iloc[-1]
        for trial in trials
        if columns and set(columns) <= set(trial.history.columns)
    ]
    if not rows:
        return {}
    means = pd.concat(rows, axis=1).mean(axis=1, skipna=False)
    return {str(c).removeprefix(prefix): float(v) for c, v in means.items() if np.isfinite(v)}


def client_curves(groups: Groups, name: str) -> Iterator[LinePanel]:
    """Yield a metric of every client by round; a line breaks where it was not measured."""
    for group, settings in groups.items():
        for label, every in settings.items():
            trials = measures.comparable_trials(every)
            rounds = sorted({int(one) for trial in trials for one in trial.history["round"]})
            lines = []
            for client in measures.clients(trials[0], name)[:_MAX_LINES]:
                column = f"{name}/client/{client}"
                found = [
                    trial.history.set_index("round")[column]
                    for trial in trials
                    if column in trial.history
                ]
                mean = pd.concat(found, axis=1).mean(axis=1).reindex(rounds)
                if mean.notna().any():
                    lines.append(Line(client, rounds, mean.to_numpy()))
            if lines:
                yield LinePanel(join_names(group, label), lines)


def layer_distances(firsts: Mapping[str, Trial]) -> Iterator[LinePanel]:
    """Yield each client's relative distance from the global model by layer, unless all are zero."""
    for label, trial in firsts.items():
        found = trial.diagnostics()
        distance = found.get("distance")
        if distance is not None and np.isfinite(distance).all() and float(distance.max()) > 0:
            layers = [str(name).removeprefix("features.") for name in found["layers"]]
            lines = [
                Line(str(name), range(len(layers)), row)
                for name, row in zip(found["names"], distance, strict=False)
            ]
            yield LinePanel(label, lines, layers)
