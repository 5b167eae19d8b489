"""The sections of a report: a title, figures by file name, and a caption."""

import itertools
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from flray.config import arms
from flray.config.selection import PLACES
from flray.drawing.charts import LinePanel, draw_bars, draw_lines, draw_ranks
from flray.drawing.grids import draw_matrices, draw_partition, draw_points, draw_table
from flray.metrics.names import is_share, is_validation
from flray.reporting import panels
from flray.reporting.panels import MAX_FORESTS, MAX_PANELS, Groups, join_names
from flray.results.choices import choices
from flray.results.measures import clients_stay, group_trials
from flray.results.result_set import ResultSet, Trial
from flray.results.study import Studies

_TEXTS = tomllib.loads(
    (Path(__file__).parent / "templates" / "sections.toml").read_text(encoding="utf-8")
)
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


def _section(name: str, figures: Mapping[str, Figure], **told: object) -> Section:
    """Return a section with the title and caption that ``templates/sections.toml`` has for its name."""
    text = _TEXTS[name]
    return Section(text["title"], text["caption"].format(**told), figures)


def _comparisons(studies: Studies) -> Iterator[Section]:
    figure = panels.forest(studies)
    yield _section("differences", {"differences": figure} if figure is not None else {})
    diagrams = (
        draw_ranks(ranks.names, ranks.means, ranks.critical, ranks.together)
        for ranks in studies.ranks.values()
    )
    yield _section("ranks", panels.numbered("ranks", diagrams, MAX_FORESTS))
    points = {study.unit for study in studies.each} == {"points"}
    labels = f"behind the best{', points' if points else ''}", "share of runs"
    yield _section(
        "profiles", _drawn("profiles", draw_lines, panels.profiles(studies), *labels, markers=False)
    )


def _chosen(source: ResultSet) -> Iterator[Section]:
    """Yield sections on the tried settings of each method: grids, importance."""
    every = choices(source)
    chosen = "validation" if any(is_validation(one.metric) for one in every) else "test"
    what = f"Means over the seeds, on {chosen} data, of settings that ran to the end."
    grids = panels.numbered("grid", panels.heat_maps(every))
    yield _section("grid", grids, what=what)
    yield _section(
        "importance",
        _drawn("importance", draw_bars, panels.importances(every), "% of the variance"),
        what=what,
    )


def _curves(groups: Groups) -> Iterator[Section]:
    trials = [t for settings in groups.values() for trials in settings.values() for t in trials]
    metrics = sorted({trial.metric for trial in trials if trial.metric})
    measures = sorted({metric.rpartition("/")[2] for metric in metrics})
    label = metrics[0] if len(metrics) == 1 else " or ".join(measures)
    style: Any = {"share": all(map(is_share, metrics)), "order": _labels(groups)}
    curves = list(panels.lines(groups, panels.learning_curve))
    yield _section(
        "curves",
        _drawn("curves", draw_lines, curves, "round", label, **style),
        missing=_missing(groups, curves),
    )
    curves = list(panels.lines(groups, panels.traffic_curve))
    yield _section(
        "traffic",
        _drawn("traffic", draw_lines, curves, "megabytes sent", label, **style),
        missing=_missing(groups, curves),
    )
    yield _section(
        "seconds", _drawn("seconds", draw_bars, panels.phase_seconds(groups), "seconds of a run")
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
    quantiles = panels.lines(groups, panels.client_quantile)
    yield _section(
        "fairness", _drawn("fairness", draw_lines, quantiles, *labels, order=_labels(groups))
    )
    seeds = "mean over seeds"
    if _only_first(groups):
        seeds = "first seed (under another seed the same name is another client)"
    yield _section(
        "clients",
        panels.numbered("clients", map(draw_table, panels.client_values(groups)), MAX_PANELS),
        seeds=seeds,
    )


def _only_first(groups: Groups) -> bool:
    """Tell whether clients of different seeds must not be averaged."""
    return not clients_stay(trials for settings in groups.values() for trials in settings.values())


def _partitions(source: ResultSet) -> Iterator[Section]:
    seed = source.trials[0].seed
    yield _section(
        "partition", panels.numbered("partition", _partition_figures(source, seed)), seed=seed
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
        yield draw_partition(record, arms.setting_label(own))


def _tracked(groups: Groups) -> Iterator[Section]:
    """Yield sections on what methods track of every client."""
    seeds = "First seed." if _only_first(groups) else "Mean over seeds."
    for name, text in _TEXTS.items():
        if metric := text.get("metric"):
            found = itertools.islice(panels.client_curves(groups, metric), MAX_PANELS)
            figures = _drawn(name, draw_lines, found, "round", metric.rpartition("/")[2])
            yield _section(name, figures, seeds=seeds)


def _models(groups: Groups) -> Iterator[Section]:
    """Yield sections on the tracked models of every setting's first seed."""
    firsts: dict[str, Trial] = {
        join_names(group, label): trials[0]
        for group, settings in groups.items()
        for label, trials in settings.items()
    }
    distances = itertools.islice(panels.layer_distances(firsts), MAX_PANELS)
    yield _section("layers", _drawn("layers", draw_lines, distances, "", "relative distance"))
    few = dict(itertools.islice(firsts.items(), _MAX_MODELS))
    yield _section("correlations", _drawn("correlations", draw_matrices, panels.correlations(few)))
    yield _section("features", _drawn("features", draw_points, panels.features(few)))
