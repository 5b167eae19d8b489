"""From a result set to the panels of a report's figures; what was not tracked has no panel."""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from flray.config.arms import format_value
from flray.drawing import charts
from flray.drawing.canvas import plain_text
from flray.drawing.grids import GridPanel, PointPanel, draw_table
from flray.metrics.names import is_share, lower_is_better
from flray.records.directory import FINAL_DIAGNOSTICS, INITIAL_DIAGNOSTICS
from flray.results import measures
from flray.results.choices import Choices
from flray.results.paired import Difference
from flray.results.result_set import Trial
from flray.results.study import Studies, Study, behind_best, profile

Groups = Mapping[str, Mapping[str, Sequence[Trial]]]
"""The trials of every setting, by group and label."""
MAX_PANELS = 12
_MAX_CLIENTS, _MAX_LINES, _MAX_SEEDS = 30, 24, 20


def join_names(*names: str) -> str:
    """Return the title of a panel."""
    return " · ".join(name for name in names if name)


def lines(
    groups: Groups, draw: Callable[[str, Sequence[Trial]], charts.Line | None]
) -> Iterator[charts.LinePanel]:
    """Yield a panel for each group with a line for each setting that has one."""
    for group, settings in groups.items():
        found = [draw(label, trials) for label, trials in settings.items()]
        if drawn := [line for line in found if line is not None]:
            yield charts.LinePanel(group, drawn)


def learning_curve(label: str, trials: Sequence[Trial]) -> charts.Line | None:
    """Return a setting's primary metric by round: mean over seeds, with a band of one standard deviation."""
    table = _by_seed(trials)
    if not len(table):
        return None
    spread = table.std(axis=1, ddof=1).fillna(0.0).to_numpy()
    seeds = list(table.to_numpy().T) if 1 < table.shape[1] <= _MAX_SEEDS else []
    return charts.Line(label, list(table.index), table.mean(axis=1).to_numpy(), spread, seeds)


def traffic_curve(label: str, trials: Sequence[Trial]) -> charts.Line | None:
    """Return a setting's primary metric by the megabytes sent so far, mean over seeds."""
    names = ["bytes/up", "bytes/down"]
    histories = [t.history.set_index("round") for t in trials if set(names) <= set(t.history)]
    sent = [history[names].sum(axis=1).cumsum() for history in histories]
    table = _by_seed(trials)
    if not sent or not len(table):
        return None
    megabytes = pd.concat(sent, axis=1).mean(axis=1).reindex(table.index).to_numpy() / 1e6
    mean = table.mean(axis=1).to_numpy()
    return charts.Line(label, megabytes, mean) if megabytes[-1] > 0 else None


def _by_seed(trials: Sequence[Trial]) -> pd.DataFrame:
    """Return the primary metric of trials, a column each, by all rounds with an evaluation."""
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


def client_curves(groups: Groups, name: str) -> Iterator[charts.LinePanel]:
    """Yield a metric of every client by round; lines have gaps at rounds without a value."""
    for group, settings in groups.items():
        for label, every in settings.items():
            trials = measures.comparable_trials(every)
            rounds = sorted({int(one) for trial in trials for one in trial.history["round"]})
            lines = []
            for client in measures.clients(trials[0], name)[:_MAX_LINES]:
                column = f"{name}/client/{client}"
                histories = [trial.history for trial in trials if column in trial.history]
                found = [history.set_index("round")[column] for history in histories]
                mean = pd.concat(found, axis=1).mean(axis=1).reindex(rounds)
                if mean.notna().any():
                    lines.append(charts.Line(client, rounds, mean.to_numpy()))
            if lines:
                yield charts.LinePanel(join_names(group, label), lines)


def layer_distances(firsts: Mapping[str, Trial]) -> Iterator[charts.LinePanel]:
    """Yield each client's relative distance from the global model by layer, unless all are zero."""
    for label, trial in firsts.items():
        found = trial.diagnostics()
        distance = found.get("distance")
        if distance is not None and np.isfinite(distance).all() and float(distance.max()) > 0:
            layers = [str(name).removeprefix("features.") for name in found["layers"]]
            lines = [
                charts.Line(str(name), range(len(layers)), row)
                for name, row in zip(found["names"], distance, strict=False)
            ]
            yield charts.LinePanel(label, lines, layers)


_MAX_CLASS_NAMES, _MIN_POINTS = 30, 10


def correlations(firsts: Mapping[str, Trial]) -> Iterator[GridPanel]:
    """Yield the correlation matrices before the first round and after the last, mean over clients."""
    for label, trial in firsts.items():
        for name, when in ((INITIAL_DIAGNOSTICS, "before"), (FINAL_DIAGNOSTICS, "after")):
            found = trial.diagnostics(name).get("correlation")
            if found is not None:
                mean = np.asarray(found, dtype=float).mean(axis=0)
                rest = mean[~np.eye(len(mean), dtype=bool)]
                gap = f"{when}; diagonal − rest: {float(np.diag(mean).mean() - rest.mean()):.2f}"
                yield GridPanel(label, (), (gap,), mean)


def features(firsts: Mapping[str, Trial]) -> Iterator[PointPanel]:
    """Yield t-SNE of penultimate features with the method's prototypes, or else the class means."""
    for label, trial in firsts.items():
        found = trial.diagnostics()
        points = found.get("features")
        if (
            points is not None
            and points.shape[1] > 1
            and len(points) >= _MIN_POINTS
            and np.isfinite(points).all()
        ):
            yield _embed(found, label)


def _embed(found: Mapping[str, NDArray[Any]], title: str) -> PointPanel:
    # Start-up: scikit-learn takes a second, which a report without features need not spend.
    from sklearn.decomposition import PCA
    from sklearn.manifold import TSNE
    from threadpoolctl import threadpool_limits

    points, labels = np.asarray(found["features"], dtype=np.float32), np.asarray(found["labels"])
    present, index = np.unique(labels, return_inverse=True)
    if "prototypes" in found:
        centres = np.asarray(found["prototypes"], dtype=np.float32)[present]
    else:
        centres = np.stack([points[labels == one].mean(axis=0) for one in present])
    everything = np.concatenate([points, centres])
    with threadpool_limits(limits=1):  # several threads on a busy machine take many times as long
        reduced = PCA(min(30, *everything.shape), svd_solver="full").fit_transform(everything)
        plane = TSNE(
            perplexity=min(30.0, (len(everything) - 1) / 3),
            init=reduced[:, :2] / reduced[:, 0].std() * 1e-4,
            random_state=0,
            max_iter=500,
        ).fit_transform(reduced)
    names = list(map(str, present)) if len(present) <= _MAX_CLASS_NAMES else []
    return PointPanel(title, plane[: len(points)], index, plane[len(points) :], names)


_MAX_PLOTS, _FEWEST_FOR_IMPORTANCE = 6, 10
_NO_PHASES = ("time/round", "time/samples_per_second")


def numbered(name: str, figures: Iterable[Figure], most: int = 6) -> dict[str, Figure]:
    """Return the first figures by name: ``name``, ``name-2``, ..."""
    few = itertools.islice(figures, most)
    return {f"{name}-{number}" if number > 1 else name: one for number, one in enumerate(few, 1)}


def heat_maps(every: Sequence[Choices]) -> Iterator[Figure]:
    """Yield a heat map of each two settings whose combinations were all run."""
    for one, (row, column, table) in ((some, grid) for some in every for grid in some.grids()):
        best = np.argmin(table) if lower_is_better(one.metric) else np.argmax(table)
        marked = divmod(int(best), table.shape[1])
        rows, columns = ([*map(format_value, one.values(name))] for name in (row, column))
        texts = [[f"{value:.3g}" for value in cells] for cells in table]
        figure = draw_table(GridPanel(one.name, rows, columns, table, texts, frozenset({marked})))
        figure.axes[0].set(ylabel=plain_text(_short(row)), xlabel=plain_text(_short(column)))
        yield figure


def importances(every: Sequence[Choices]) -> list[charts.BarPanel]:
    """Return a panel for each method with enough settings: how much of the scores' variance each explains."""
    panels = []
    for one in every:
        if len(one.columns) > 1 and len(one.settings) >= _FEWEST_FOR_IMPORTANCE:
            found = one.importance()
            shares = [100 * share for share in found.values()]
            panels.append(charts.BarPanel(one.name, list(map(_short, found)), {"share": shares}))
    return panels[:_MAX_PLOTS]


def _short(column: str) -> str:
    return column.removeprefix("algorithm.")


def client_quantile(label: str, trials: Sequence[Trial]) -> charts.Line | None:
    """Return the clients' values, from the worst client to the best, by share of clients."""
    found = [values for trial in trials if len(values := _sorted_clients(trial)) > 2]
    if not found:
        return None
    levels = np.linspace(0, 1, max(map(len, found)))
    each = [np.quantile(values, levels) for values in found]
    thin = each if 1 < len(each) <= _MAX_SEEDS else []
    return charts.Line(label, 100 * levels, np.mean(each, axis=0), None, thin)


def _sorted_clients(trial: Trial) -> NDArray[np.float64]:
    found = [measures.value(trial, "clients", name) for name in measures.clients(trial)]
    values: NDArray[np.float64] = np.sort([one for one in found if np.isfinite(one)])
    return values[::-1] if lower_is_better(trial.metric) else values


def phase_seconds(groups: Groups) -> Iterator[charts.BarPanel]:
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
        yield charts.BarPanel(group, list(settings), parts)


def _mean_total(trials: Sequence[Trial], name: str) -> float:
    return float(np.mean(np.nan_to_num([measures.total(trial, name) for trial in trials])))


def profiles(studies: Studies) -> Iterator[charts.LinePanel]:
    """Yield a performance profile for each measure that several places have."""
    for measure in studies.ranks:
        found = behind_best([study for study in studies.each if study.measure == measure])
        most = max((float(one[-1]) for one in found.values()), default=0.0)
        if most == 0:
            continue
        lines = []
        for name, behind in found.items():
            steps = np.unique(np.concatenate([[0.0], behind, [1.05 * most]]))
            x = np.repeat(steps, 2)[1:]
            y = np.repeat([profile(behind, float(step)) for step in steps], 2)[:-1]
            lines.append(charts.Line(name, x, y))
        yield charts.LinePanel(measure if len(studies.ranks) > 1 else "", lines)


MAX_FORESTS, _MAX_ROWS = 8, 20


def forest(studies: Studies) -> Figure | None:
    """Return the forest plot of all comparisons with an interval; None without any."""
    panels = [panel for study in studies.each if (panel := _panel(study, studies)).rows]
    if not panels:
        return None
    units = {study.unit for study in studies.each}
    unit = f", {units.pop()}" if len(units) == 1 and units != {""} else ""
    return charts.draw_forest(panels[:MAX_FORESTS], f"how much better the first is{unit}")


def _panel(study: Study, studies: Studies) -> charts.ForestPanel:
    """Return a study's panel: all pairs, or if they are many, those with the best setting."""
    measures = {one.measure for one in studies.each}
    title = " · ".join(filter(None, [study.place, study.measure if len(measures) > 1 else ""]))
    against = study.reference in study.values
    every = [one if against else one.better_first() for one in study.differences]
    best = next(iter(study.means))
    if len(every) > _MAX_ROWS and not against:
        every = [one for one in every if best in (one.first, one.second)]
    shown = [one for one in every if one.verdict != "withheld"]
    rows = [_interval(one) for one in shown if not math.isnan(one.low_corrected)]
    rows.sort(key=lambda row: -row.mean)
    return charts.ForestPanel(title, rows[:_MAX_ROWS])


def _interval(one: Difference) -> charts.Interval:
    name = f"{one.first} – {one.second}"
    low, high = one.low_corrected, one.high_corrected
    if one.lower:
        return charts.Interval(name, -one.mean, -high, -low, one.decided)
    return charts.Interval(name, one.mean, low, high, one.decided)
