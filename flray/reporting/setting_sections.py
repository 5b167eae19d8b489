"""From settings that were tried, clients and phases to the figures of a report."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from flray.config.setting_labels import format_value
from flray.drawing.canvas import plain_text
from flray.drawing.charts import Line, LinePanel
from flray.drawing.choices import BarPanel, Coordinate, draw_parallel
from flray.drawing.grids import GridPanel, draw_table
from flray.metrics.direction import lower_is_better
from flray.reporting.panels import Groups
from flray.results import measures
from flray.results.choices import Choices, is_logarithmic, is_number
from flray.results.profiles import behind_best, profile
from flray.results.result_set import Trial
from flray.results.study import Studies

_MAX_FIGURES, _MAX_TICKS, _MAX_SEEDS = 6, 6, 20
_FEWEST_LINES, _FEWEST_FOR_IMPORTANCE = 4, 10
_NO_PHASES = ("time/round", "time/samples_per_second")


def heat_maps(every: Sequence[Choices]) -> Iterator[tuple[str, Figure]]:
    """Yield a name and a heat map of each two settings whose combinations were all run."""
    found = ((one, grid) for one in every for grid in one.grids())
    for number, (one, (row, column, table)) in enumerate(
        itertools.islice(found, _MAX_FIGURES), start=1
    ):
        best = np.argmin(table) if lower_is_better(one.metric) else np.argmax(table)
        marked = divmod(int(best), table.shape[1])
        panel = GridPanel(
            one.name,
            list(map(format_value, one.values(row))),
            list(map(format_value, one.values(column))),
            table,
            [[f"{value:.3g}" for value in cells] for cells in table],
            frozenset({marked}),
        )
        figure = draw_table(panel)
        figure.axes[0].set(ylabel=plain_text(_short(row)), xlabel=plain_text(_short(column)))
        yield f"grid-{number}" if number > 1 else "grid", figure


def parallel_coordinates(every: Sequence[Choices]) -> Iterator[tuple[str, Figure]]:
    """Yield a name and the parallel coordinates of settings with two columns at least."""
    drawn = (one for one in every if len(one.columns) > 1 and len(one.settings) >= _FEWEST_LINES)
    for number, one in enumerate(itertools.islice(drawn, _MAX_FIGURES), start=1):
        lower = lower_is_better(one.metric)
        columns = [_coordinate(_short(name), one, name) for name in one.columns]
        low, high = float(one.scores.min()), float(one.scores.max())
        span = (high - low) or 1.0
        places = (one.scores - low) / span
        ticks = {f"{value:.3g}": (value - low) / span for value in (low, high)}
        if lower:
            places, ticks = 1 - places, {text: 1 - place for text, place in ticks.items()}
        last = Coordinate(one.metric.rpartition("/")[2], places, ticks)
        name = f"parallel-{number}" if number > 1 else "parallel"
        yield name, draw_parallel([*columns, last], int(np.argmax(places)), one.name)


def _coordinate(title: str, one: Choices, column: str) -> Coordinate:
    values = one.values(column)
    taken = [setting[column] for setting in one.settings]
    if all(map(is_number, values)):
        scale: Any = np.log if is_logarithmic(values) else np.asarray
        low, span = scale(values[0]), scale(values[-1]) - scale(values[0])
        shown = values if len(values) <= _MAX_TICKS else (values[0], values[-1])
        ticks = {format_value(value): float((scale(value) - low) / span) for value in shown}
        return Coordinate(title, [float((scale(value) - low) / span) for value in taken], ticks)
    steps = len(values) - 1
    places = {str(value): number / steps for number, value in enumerate(values)}
    return Coordinate(title, [places[str(value)] for value in taken], places)


def importances(every: Sequence[Choices]) -> list[BarPanel]:
    """Return a panel for each method with enough settings: how much of the scores' variance each explains."""
    panels = []
    for one in every:
        if len(one.columns) > 1 and len(one.settings) >= _FEWEST_FOR_IMPORTANCE:
            found = one.importance()
            shares = [100 * share for share in found.values()]
            panels.append(BarPanel(one.name, list(map(_short, found)), {"share": shares}))
    return panels[:_MAX_FIGURES]


def _short(column: str) -> str:
    return column.removeprefix("algorithm.")


def client_quantiles(groups: Groups) -> Iterator[LinePanel]:
    """Yield what the clients reach, from the one that is served worst to the best, by share of clients."""
    for group, settings in groups.items():
        lines = []
        for label, trials in settings.items():
            found = [values for trial in trials if len(values := _sorted_clients(trial)) > 2]
            if found:
                levels = np.linspace(0, 1, max(map(len, found)))
                each = [np.quantile(values, levels) for values in found]
                thin = each if 1 < len(each) <= _MAX_SEEDS else []
                lines.append(Line(label, 100 * levels, np.mean(each, axis=0), None, thin))
        if lines:
            yield LinePanel(group, lines)


def _sorted_clients(trial: Trial) -> NDArray[np.float64]:
    measure = measures.client_measure(trial)
    found = [measures.value(trial, measure, client) for client in measures.clients(trial)]
    values: NDArray[np.float64] = np.sort([one for one in found if np.isfinite(one)])
    return values[::-1] if lower_is_better(trial.metric) else values


def phase_seconds(groups: Groups) -> Iterator[BarPanel]:
    """Yield where the seconds of a run went, mean over seeds."""
    for group, settings in groups.items():
        names = dict.fromkeys(
            str(name)
            for trials in settings.values()
            for trial in trials
            for name in trial.history
            if str(name).startswith("time/") and name not in _NO_PHASES
        )
        sums = {
            name.removeprefix("time/"): [_mean_total(trials, name) for trials in settings.values()]
            for name in names
        }
        if not sums:
            continue
        whole = np.array([_mean_total(trials, "time/round") for trials in settings.values()])
        sums["other"] = list(np.maximum(0.0, whole - np.sum(list(sums.values()), axis=0)))
        most = float(whole.max())
        parts = {name: values for name, values in sums.items() if max(values) > 0.002 * most}
        yield BarPanel(group, list(settings), parts)


def _mean_total(trials: Sequence[Trial], name: str) -> float:
    return float(np.mean(np.nan_to_num([measures.total(trial, name) for trial in trials])))


def profiles(studies: Studies) -> Iterator[LinePanel]:
    """Yield a performance profile for each measure that several places have."""
    for measure in studies.ranks:
        same = [study for study in studies.each if study.measure == measure]
        found = behind_best(same)
        most = max((float(one[-1]) for one in found.values()), default=0.0)
        if most == 0:
            continue
        lines = []
        for name, behind in found.items():
            steps = np.unique(np.concatenate([[0.0], behind, [1.05 * most]]))
            x = np.repeat(steps, 2)[1:]
            y = np.repeat([profile(behind, float(step)) for step in steps], 2)[:-1]
            lines.append(Line(name, x, y))
        yield LinePanel(measure if len(studies.ranks) > 1 else "", lines)
