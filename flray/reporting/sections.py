"""The sections of a report: a title, figures by file name, and a caption."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.figure import Figure

from flray.config import arms
from flray.config.arms import setting_label
from flray.config.selection import PLACES
from flray.drawing.charts import LinePanel, draw_bars, draw_lines
from flray.drawing.grids import (
    PartitionCounts,
    draw_matrices,
    draw_partition,
    draw_points,
    draw_table,
)
from flray.metrics.names import is_share, is_validation
from flray.reporting import panels
from flray.reporting.panels import MAX_FORESTS, MAX_PANELS, Groups, join_names
from flray.results.choices import choices
from flray.results.measures import clients_stay, group_trials
from flray.results.result_set import ResultSet, Trial
from flray.results.study import Studies

_TRACKED = (
    (
        "mixing-ratio",
        "train/lgmix/lambda",
        "Mixing ratio λ of LG-Mix",
        "Each client's λ in the update of its personal model: 1 is its own update alone, 0 the "
        "global one.",
    ),
    (
        "weights",
        "fedskc/e_k",
        "Aggregation weights of FedSKC (GDA)",
        "Each client's weight e_k in the average; gaps are rounds without it.",
    ),
    (
        "discrepancies",
        "fedskc/d_k",
        "Discrepancies of FedSKC",
        "Each client's distance d_k of its knowledge from the global one.",
    ),
)
"""File name, metric, title and caption of what methods track of every client."""
_MAX_MODELS = 9


@dataclass(frozen=True)
class Section:
    """A section of a report.

    Attributes
    ----------
    title, caption : str
        Above and below its figures.
    figures : dict of str to Figure
        By file name without suffix.
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
    groups = dict(itertools.islice(group_trials(source).items(), MAX_PANELS))
    every = itertools.chain(
        _comparisons(studies) if studies is not None else (),
        _chosen(source),
        _curves(groups),
        _clients(groups),
        _partitions(source),
        _tracked(groups),
        _models(groups),
    )
    return (section for section in every if section.figures)


def _drawn(
    name: str, draw: Callable[..., Figure], found: Iterable[object], *labels: str, **style: Any
) -> dict[str, Figure]:
    """Return one figure of all panels; none without any."""
    few = list(found)
    return {name: draw(few, *labels, **style)} if few else {}


def _comparisons(studies: Studies) -> Iterator[Section]:
    figure = panels.forest(studies)
    yield Section(
        "Differences between settings",
        "Mean of the differences at the seeds that two settings share, with its interval among "
        "those of all pairs, which hold at once. Filled: one of the two is better; open: not "
        "decided, or equivalent. Of many pairs those of the best setting; comparisons.csv has "
        "all, and each pair's interval alone.",
        {"differences": figure} if figure is not None else {},
    )
    yield Section(
        "Mean ranks",
        "Mean rank of each setting over the places where all were run, 1 is best. Settings "
        "under one bar differ by less than Nemenyi's critical difference at 0.05.",
        panels.numbered("ranks", panels.rank_figures(studies), MAX_FORESTS),
    )
    points = {study.unit for study in studies.each} == {"points"}
    labels = f"behind the best{', points' if points else ''}", "share of runs"
    yield Section(
        "Performance profiles",
        "At how many of the places and seeds a setting is at most so far behind the one that is "
        "best there. Higher is better; at 0 it is how often it is the best.",
        _drawn("profiles", draw_lines, panels.profiles(studies), *labels, markers=False),
    )


def _chosen(source: ResultSet) -> Iterator[Section]:
    """Yield sections on the tried settings of each method: grids, parallel coordinates, importance."""
    every = choices(source)
    chosen = "validation" if any(is_validation(one.metric) for one in every) else "test"
    what = f"Means over the seeds, on {chosen} data, of settings that ran to the end."
    grids = panels.numbered("grid", panels.heat_maps(every))
    yield Section("Grids of two settings", f"{what} The best is marked.", grids)
    yield Section(
        "Settings that were tried",
        f"{what} A line is a setting; the stronger it is, the better, and the best is marked.",
        panels.numbered("parallel", panels.parallel_coordinates(every)),
    )
    yield Section(
        "Importance of settings",
        "How much of the variance of the scores each setting explains by itself and together with "
        f"others (fANOVA on a random forest, by Optuna). {what}",
        _drawn("importance", draw_bars, panels.importances(every), "% of the variance"),
    )


def _curves(groups: Groups) -> Iterator[Section]:
    trials = [t for settings in groups.values() for trials in settings.values() for t in trials]
    metrics = sorted({trial.metric for trial in trials if trial.metric})
    measures = sorted({metric.rpartition("/")[2] for metric in metrics})
    label = metrics[0] if len(metrics) == 1 else " or ".join(measures)
    style: Any = {"share": all(map(is_share, metrics)), "order": _labels(groups)}
    curves = list(panels.learning_curves(groups))
    yield Section(
        "Learning curves",
        "The primary metric after each round: mean over seeds, band of one standard "
        f"deviation, thin lines: the seeds.{_missing(groups, curves)}",
        _drawn("curves", draw_lines, curves, "round", label, **style),
    )
    curves = list(panels.traffic_curves(groups))
    yield Section(
        "Accuracy against bytes",
        "The same metric against all bytes sent so far, up and down, mean over "
        f"seeds.{_missing(groups, curves)}",
        _drawn("traffic", draw_lines, curves, "megabytes sent", label, **style),
    )
    yield Section(
        "Seconds by phase",
        "Where the seconds of a run went, mean over seeds: the clients' training, fetching their "
        "replies, aggregation, evaluation. Trials that ran at once slowed each other.",
        _drawn("seconds", draw_bars, panels.phase_seconds(groups), "seconds of a run"),
    )


def _labels(groups: Groups) -> list[str]:
    """Return the names of all settings, each once."""
    return list(dict.fromkeys(label for settings in groups.values() for label in settings))


def _missing(groups: Groups, curves: Sequence[LinePanel]) -> str:
    """Return a sentence on the settings that have no line."""
    drawn = {line.name for panel in curves for line in panel.lines}
    missing = [name for name in _labels(groups) if name not in drawn]
    return f" Not drawn, for there is nothing to draw: {', '.join(missing)}." if missing else ""


def _clients(groups: Groups) -> Iterator[Section]:
    labels = "% of clients", "value of the client"
    quantiles = panels.client_quantiles(groups)
    yield Section(
        "Fairness over clients",
        "What clients reach (shares in percent), sorted from the one that is served worst: mean over "
        "seeds, thin lines: the seeds. The flatter, the fairer.",
        _drawn("fairness", draw_lines, quantiles, *labels, order=_labels(groups)),
    )
    seeds = "mean over seeds"
    if _only_first(groups):
        seeds = "first seed (under another seed the same name is another client)"
    yield Section(
        "Clients",
        "Each client's value (shares in percent) under the method's own models after the last "
        f"round, {seeds}. The worst client of each setting is marked.",
        panels.numbered("clients", map(draw_table, panels.client_values(groups)), MAX_PANELS),
    )


def _only_first(groups: Groups) -> bool:
    """Tell whether clients of different seeds must not be averaged."""
    return not clients_stay(trials for settings in groups.values() for trials in settings.values())


def _partitions(source: ResultSet) -> Iterator[Section]:
    seed = source.trials[0].seed
    yield Section(
        "Samples of each client",
        f"Training samples by client and class at seed {seed}: the area of a bubble is their "
        "number; colours are domains.",
        panels.numbered("partition", _partition_figures(source, seed)),
    )


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
        yield draw_partition(PartitionCounts.from_record(record), setting_label(own))


def _tracked(groups: Groups) -> Iterator[Section]:
    """Yield sections on what methods track of every client."""
    seeds = "First seed." if _only_first(groups) else "Mean over seeds."
    for file, name, title, caption in _TRACKED:
        found = itertools.islice(panels.client_curves(groups, name), MAX_PANELS)
        figures = _drawn(file, draw_lines, found, "round", name.rpartition("/")[2])
        yield Section(title, f"{caption} {seeds}", figures)


def _models(groups: Groups) -> Iterator[Section]:
    """Yield sections on the tracked models of every setting's first seed."""
    firsts: dict[str, Trial] = {
        join_names(group, label): trials[0]
        for group, settings in groups.items()
        for label, trials in settings.items()
    }
    distances = itertools.islice(panels.layer_distances(firsts), MAX_PANELS)
    yield Section(
        "Personal and global models, layer by layer",
        "Distance of each client's parameters from those it received, divided by their norm, "
        "at the end of the first seed's run; of layers that never travel, from the initial "
        "ones. Settings whose clients have the global model are left out.",
        _drawn("layers", draw_lines, distances, "", "relative distance"),
    )
    few = dict(itertools.islice(firsts.items(), _MAX_MODELS))
    yield Section(
        "Correlation between classes",
        "FCCL+ Eq. 1: correlation, over samples that all clients see, of each class's logit at a "
        "client with each class's mean logit of all clients; averaged over the clients, before the "
        "first round and after the last of the first seed's run. Blue: positive, orange: negative.",
        _drawn("correlations", draw_matrices, panels.correlations(few)),
    )
    yield Section(
        "Features",
        "t-SNE of penultimate features of test samples, each under its own client's model, "
        "first seed; colours are classes. Diamonds: the method's prototypes where it has them, "
        "otherwise class means.",
        _drawn("features", draw_points, panels.features(few)),
    )
