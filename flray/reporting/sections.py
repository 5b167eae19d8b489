"""The sections of a report: a title, a caption, and figures; what was not tracked has no panel in them."""

import itertools
import math
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from numpy.typing import NDArray

from flray.config import arms
from flray.config.experiment import PLACES
from flray.drawing import charts, grids
from flray.drawing.canvas import plain_text
from flray.metrics import is_lower_better_in, is_share, is_validation
from flray.records.directory import FINAL_DIAGNOSTICS, INITIAL_DIAGNOSTICS
from flray.results import ResultSet, Trial, measures, sequential
from flray.results.choices import Choices, choices
from flray.results.costs import group_trials
from flray.results.study import Studies, Study, behind_best

_TEXTS = tomllib.loads(
    (Path(__file__).parent / "templates" / "sections.toml").read_text(encoding="utf-8")
)
Groups = Mapping[str, Mapping[str, Sequence[Trial]]]
"""The trials of every setting, by group and label."""
_MAX_PANELS, _MAX_PLOTS, _MAX_MODELS, _MAX_FORESTS, _MAX_ROWS = 12, 6, 9, 8, 20
_MAX_CLIENTS, _MAX_LINES, _MAX_SEEDS = 30, 24, 20
_MAX_CLASS_NAMES, _MIN_POINTS, _FEWEST_FOR_IMPORTANCE = 30, 10, 10
_NO_PHASES = ("time/round", "time/samples_per_second")


@dataclass(frozen=True)
class Section:
    """A section of a report.

    Attributes
    ----------
    title, caption : str
        Above and below its figures.
    figures : dict of str to Figure
        By file name without suffix: ``name``, ``name-2``, ...
    """

    title: str
    caption: str
    figures: Mapping[str, Figure]


def create_sections(source: ResultSet, studies: Studies | None = None) -> Iterator[Section]:
    """Yield the sections for which something was tracked.

    Parameters
    ----------
    source : ResultSet
        The runs.
    studies : Studies, optional
        Their comparisons; without, none is drawn.
    """
    groups = dict(itertools.islice(group_trials(source).items(), _MAX_PANELS))
    every = itertools.chain(
        _comparisons(studies) if studies is not None else (),
        _chosen(source),
        _curves(groups),
        _clients(source, groups),
        _models(groups),
    )
    return (section for section in every if section.figures)


def _section(
    name: str, figures: Iterable[Figure], most: int = _MAX_PLOTS, **told: object
) -> Section:
    """Return a section with the title and caption that ``templates/sections.toml`` has for its name."""
    text, few = _TEXTS[name], enumerate(itertools.islice(figures, most), 1)
    named = {f"{name}-{number}" if number > 1 else name: one for number, one in few}
    return Section(text["title"], text["caption"].format(**told), named)


def _joint(
    draw: Callable[..., Figure], found: Iterable[object], *labels: str, **style: Any
) -> list[Figure]:
    """Return one figure of all panels; none without any."""
    few = list(found)
    return [draw(few, *labels, **style)] if few else []


def _comparisons(studies: Studies) -> Iterator[Section]:
    forests = (panel for study in studies.each if (panel := _forest(study, studies)).rows)
    units = {study.unit for study in studies.each}
    unit = f", {units.pop()}" if len(units) == 1 and units != {""} else ""
    few = itertools.islice(forests, _MAX_FORESTS)
    label = f"how much better the first is{unit}"
    yield _section("differences", _joint(charts.draw_forest, few, label))
    diagrams = (
        charts.draw_ranks(ranks.names, ranks.means, ranks.critical, ranks.together)
        for ranks in studies.ranks.values()
    )
    yield _section("ranks", diagrams, _MAX_FORESTS)
    labels = f"behind the best{unit}", "share of runs"
    yield _section("profiles", _joint(charts.draw_lines, profiles(studies), *labels, markers=False))


def _forest(study: Study, studies: Studies) -> charts.ForestPanel:
    """Return a study's comparisons with an interval: all pairs, or if they are many, those with the best setting."""
    against = study.reference in study.values
    every = [one if against else one.better_first() for one in study.differences]
    best = next(iter(study.means))
    if len(every) > _MAX_ROWS and not against:
        every = [one for one in every if best in (one.first, one.second)]
    sign = -1 if study.lower else 1
    rows = [
        charts.Interval(
            f"{one.first} – {one.second}", sign * one.mean, low, high, one.decided and one.sure
        )
        for one in every
        if one.verdict != "withheld" and not math.isnan(one.low_corrected)
        for low, high in [sorted((sign * one.low_corrected, sign * one.high_corrected))]
    ]
    rows.sort(key=lambda row: -row.mean)
    return charts.ForestPanel(studies.title(study), rows[:_MAX_ROWS])


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
            near, runs = np.searchsorted(behind, steps + 1e-9, side="right"), len(behind)
            x, y, low, high = (
                np.repeat(one, 2)
                for one in (steps, near / runs, *sequential.share_interval(near, runs))
            )
            lines.append(charts.Line(name, x[1:], y[:-1], (low[:-1], high[:-1])))
        yield charts.LinePanel(measure if len(studies.ranks) > 1 else "", lines)


def _chosen(source: ResultSet) -> Iterator[Section]:
    """Yield sections on the tried settings of each method: grids, importance."""
    every = choices(source)
    chosen = "validation" if any(is_validation(one.metric) for one in every) else "test"
    what = f"Means over the seeds, on {chosen} data, of settings that ran to the end."
    yield _section("grid", heat_maps(every, source.config.get("sweep")), what=what)
    few = itertools.islice(importances(every), _MAX_PLOTS)
    yield _section("importance", _joint(charts.draw_bars, few, "% of the variance"), what=what)


def heat_maps(every: Sequence[Choices], sweep: Mapping[str, Any] | None = None) -> Iterator[Figure]:
    """Yield a heat map of each two settings whose combinations were all run."""
    for one, (row, column, table) in ((some, grid) for some in every for grid in some.grids()):
        best = (np.argmin if is_lower_better_in(sweep, one.metric) else np.argmax)(table)
        marked = divmod(int(best), table.shape[1])
        rows, columns = ([*map(arms.format_value, one.values(name))] for name in (row, column))
        texts = [[f"{value:.3g}" for value in cells] for cells in table]
        figure = grids.draw_table(
            grids.GridPanel(one.name, rows, columns, table, texts, frozenset({marked}))
        )
        figure.axes[0].set(ylabel=plain_text(_short(row)), xlabel=plain_text(_short(column)))
        yield figure


def importances(every: Sequence[Choices]) -> Iterator[charts.BarPanel]:
    """Yield a panel for each method with enough settings: how much of the scores' variance each explains."""
    for one in every:
        enough = len(one.columns) > 1 and len(one.settings) >= _FEWEST_FOR_IMPORTANCE
        if enough and np.ptp(one.scores) > 0:  # equal scores have no variance to explain
            found = one.importance()
            shares = {"share": [100 * share for share in found.values()]}
            yield charts.BarPanel(one.name, list(map(_short, found)), shares)


def _short(column: str) -> str:
    return column.removeprefix("algorithm.")


def _curves(groups: Groups) -> Iterator[Section]:
    trials = [t for settings in groups.values() for trials in settings.values() for t in trials]
    names = list(dict.fromkeys(label for settings in groups.values() for label in settings))
    metrics = sorted({trial.metric for trial in trials if trial.metric})
    measured = sorted({metric.rpartition("/")[2] for metric in metrics})
    label = metrics[0] if len(metrics) == 1 else " or ".join(measured)
    style: Any = {"share": all(map(is_share, metrics)), "order": names}
    for name, x_label, draw in (
        ("curves", "round", learning_curve),
        ("traffic", "megabytes sent", traffic_curve),
    ):
        curves = list(lines(groups, draw))
        drawn = {line.name for panel in curves for line in panel.lines}
        rest = ", ".join(one for one in names if one not in drawn)
        missing = f" Not drawn, for there is nothing to draw: {rest}." if rest else ""
        figures = _joint(charts.draw_lines, curves, x_label, label, **style)
        yield _section(name, figures, missing=missing)
    yield _section("seconds", _joint(charts.draw_bars, phase_seconds(groups), "seconds of a run"))
    quantiles = lines(groups, client_quantile)
    labels = "% of clients", "value of the client"
    yield _section("fairness", _joint(charts.draw_lines, quantiles, *labels, order=names))


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
    with np.errstate(invalid="ignore"):  # the values of a model that diverged are infinite
        spread = table.std(axis=1, ddof=1).fillna(0.0).to_numpy()
    seeds = list(table.to_numpy().T) if 1 < table.shape[1] <= _MAX_SEEDS else []
    mean = table.mean(axis=1).to_numpy()
    return charts.Line(label, list(table.index), mean, (mean - spread, mean + spread), seeds)


def traffic_curve(label: str, trials: Sequence[Trial]) -> charts.Line | None:
    """Return a setting's primary metric by the megabytes sent so far, mean over seeds."""
    names = ["bytes/up", "bytes/down"]
    counted = [trial for trial in trials if set(names) <= set(trial.history)]
    sent = [one.history.set_index("round")[names].sum(axis=1).cumsum() for one in counted]
    table = _by_seed(trials)
    if not sent or not len(table):
        return None
    megabytes = _to_the_end(counted, sent).mean(axis=1).reindex(table.index).to_numpy() / 1e6
    mean = table.mean(axis=1).to_numpy()
    return charts.Line(label, megabytes, mean) if megabytes[-1] > 0 else None


def _by_seed(trials: Sequence[Trial]) -> pd.DataFrame:
    """Return the primary metric of trials, a column each, by all rounds with an evaluation."""
    return _to_the_end(trials, [measures.series(trial) for trial in trials]).dropna(how="all")


def _to_the_end(trials: Sequence[Trial], values: "Sequence[pd.Series[float]]") -> pd.DataFrame:
    """Return values of trials by round, a column each; one that has ended keeps its last value."""
    table = pd.concat(values, axis=1).sort_index()
    ended = [trial.status in ("finished", "stopped") for trial in trials]
    return pd.DataFrame(np.where(ended, table.ffill(), table), table.index)


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


def client_quantile(label: str, trials: Sequence[Trial]) -> charts.Line | None:
    """Return the clients' values, from the worst client to the best, by share of clients."""
    found = [
        finite
        for trial in trials
        for each in [[measures.value(trial, "clients", name) for name in measures.clients(trial)]]
        if len(finite := [one for one in each if np.isfinite(one)]) > 2
    ]
    if not found:
        return None
    levels = np.linspace(0, 1, max(map(len, found)))
    worst_first = levels[::-1] if trials[0].lower else levels
    each = [np.quantile(values, worst_first) for values in found]
    thin = each if 1 < len(each) <= _MAX_SEEDS else []
    return charts.Line(label, 100 * levels, np.mean(each, axis=0), None, thin)


def _clients(source: ResultSet, groups: Groups) -> Iterator[Section]:
    """Yield sections on the clients: their values, their samples, and the numbers that methods track of each."""
    leaves = [trials for settings in groups.values() for trials in settings.values()]
    stay = all(measures.comparable_trials(trials) is trials for trials in leaves)
    seed = next((one.seed for one in source.trials), 0)  # none while sweep.tune chooses
    seeds = "first seed (under another seed the same name is another client)"
    tables = map(grids.draw_table, client_values(groups))
    yield _section("clients", tables, _MAX_PANELS, seeds="mean over seeds" if stay else seeds)
    yield _section("partition", _partition_figures(source, seed), seed=seed)
    for name, text in _TEXTS.items():
        if metric := text.get("metric"):
            found = itertools.islice(client_curves(groups, metric), _MAX_PANELS)
            figures = _joint(charts.draw_lines, found, "round", metric.rpartition("/")[2])
            yield _section(name, figures, seeds="Mean over seeds." if stay else "First seed.")


def client_values(groups: Groups) -> Iterator[grids.GridPanel]:
    """Yield each client's last value by setting, under the method's own models; the worst is marked."""
    for group, settings in groups.items():
        rows = {label: _last_values(trials) for label, trials in settings.items()}
        names = list(dict.fromkeys(name for row in rows.values() for name in row))
        rows = {label: row for label, row in rows.items() if row}
        if not rows or len(names) > _MAX_CLIENTS:
            continue
        first = next(iter(settings.values()))[0]
        share = is_share(first.metric)
        values = np.array([[row.get(name, np.nan) for name in names] for row in rows.values()])
        worst = np.nanargmax(values, axis=1) if first.lower else np.nanargmin(values, axis=1)
        texts = [
            ["" if np.isnan(v) else f"{100 * v:.1f}" if share else f"{v:.3g}" for v in row]
            for row in values
        ]
        marked = frozenset((row, int(column)) for row, column in enumerate(worst))
        yield grids.GridPanel(group, list(rows), names, values, texts, marked)


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


def _partition_figures(source: ResultSet, seed: int) -> Iterator[Figure]:
    """Yield each partition of a seed once."""
    seen: set[str] = set()
    for trial in source.trials:
        record = trial.partition
        if record is None or trial.seed != seed or str(record["clients"]) in seen:
            continue
        seen.add(str(record["clients"]))
        own = {
            name: value
            for name, value in trial.setting.items()
            if name in source.varying
            and "method" not in name
            and (name.startswith(arms.PREFIX) or name.split(".")[0] in PLACES)
        }
        yield grids.draw_partition(record, arms.setting_label(own))


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
                yield charts.LinePanel(" · ".join(filter(None, [group, label])), lines)


def _models(groups: Groups) -> Iterator[Section]:
    """Yield sections on the tracked models of every setting's first seed."""
    firsts = {
        " · ".join(filter(None, [group, label])): trials[0]
        for group, settings in groups.items()
        for label, trials in settings.items()
    }
    distances = itertools.islice(layer_distances(firsts), _MAX_PANELS)
    yield _section("layers", _joint(charts.draw_lines, distances, "", "relative distance"))
    few = dict(itertools.islice(firsts.items(), _MAX_MODELS))
    yield _section("correlations", _joint(grids.draw_matrices, correlations(few)))
    yield _section("features", _joint(grids.draw_points, features(few)))


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


def correlations(firsts: Mapping[str, Trial]) -> Iterator[grids.GridPanel]:
    """Yield the correlation matrices before the first round and after the last, mean over clients."""
    for label, trial in firsts.items():
        for name, when in ((INITIAL_DIAGNOSTICS, "before"), (FINAL_DIAGNOSTICS, "after")):
            found = trial.diagnostics(name).get("correlation")
            if found is not None:
                mean = np.asarray(found, dtype=float).mean(axis=0)
                rest = mean[~np.eye(len(mean), dtype=bool)]
                gap = f"{when}; diagonal − rest: {float(np.diag(mean).mean() - rest.mean()):.2f}"
                yield grids.GridPanel(label, (), (gap,), mean)


def features(firsts: Mapping[str, Trial]) -> Iterator[grids.PointPanel]:
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


def _embed(found: Mapping[str, NDArray[Any]], title: str) -> grids.PointPanel:
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
            init=reduced[:, :2] / (reduced[:, 0].std() or 1.0) * 1e-4,
            random_state=0,
            max_iter=500,
        ).fit_transform(reduced)
    names = list(map(str, present)) if len(present) <= _MAX_CLASS_NAMES else []
    return grids.PointPanel(title, plane[: len(points)], index, plane[len(points) :], names)
