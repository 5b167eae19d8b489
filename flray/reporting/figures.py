"""The figures of a report: learning curves, clients and costs."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pandas as pd

from flray.metrics.direction import lower_is_better
from flray.reporting import charts, method_figures
from flray.reporting.html_text import escape
from flray.results import measures
from flray.results.costs import group_trials
from flray.results.result_set import ResultSet, Trial

Figure = tuple[str, str, str]  # heading, drawing (HTML), caption
_MOST_GROUPS, _MOST_BARS = 12, 30


def figures(source: ResultSet) -> Iterator[Figure]:
    """Yield every figure for which something was tracked."""
    groups = dict(itertools.islice(group_trials(source).items(), _MOST_GROUPS))
    labels = list(dict.fromkeys(label for settings in groups.values() for label in settings))
    for make in (_curves, _against_bytes):
        plots = [make(group, settings, labels) for group, settings in groups.items()]
        if any(plots):
            title, caption = _TEXTS[make.__name__]
            drawn = [
                label
                for label in labels
                if any(f"<title>{escape(label)}</title>" in plot for plot in plots)
            ]
            silent = [label for label in labels if label not in drawn]
            if silent:
                caption += f" Not drawn, for there is nothing to draw: {', '.join(silent)}."
            yield (
                title,
                charts.legend(labels, drawn) + _plots([plot for plot in plots if plot]),
                caption,
            )
    bars = [plot for group, settings in groups.items() for plot in _clients(group, settings)]
    if bars:
        over = (
            "mean and standard deviation over seeds"
            if all(
                measures.comparable_trials(trials) is trials
                for settings in groups.values()
                for trials in settings.values()
            )
            else "first seed (under another seed the same name is another client)"
        )
        yield (
            "Clients",
            _plots(bars),
            "Each client's value under the method's own models after the last round, "
            f"{over}. The worst client is drawn in the second colour; dashed: the mean over "
            f"clients.",
        )
    yield from method_figures.figures(source, groups)


def mean_and_spread(series: Sequence[pd.Series[float]]) -> tuple[charts.Points, list[float]]:
    """Return the mean over seeds by round, and the standard deviation (n - 1; 0 for one seed)."""
    table = pd.concat(list(series), axis=1).sort_index().dropna(how="all")
    spread = table.std(axis=1, ddof=1).fillna(0.0)
    mean = table.mean(axis=1)
    return list(zip(mean.index.astype(float), mean.astype(float), strict=True)), [
        float(s) for s in spread
    ]


def _plots(plots: Sequence[str]) -> str:
    return f'<div class="plots">{"".join(plots)}</div>'


_TEXTS = {
    "_curves": (
        "Learning curves",
        "The method's own measure after each round: mean over seeds, band of one standard "
        "deviation.",
    ),
    "_against_bytes": (
        "Accuracy against bytes",
        "The same measure against all bytes sent so far, up and down, mean over seeds.",
    ),
}


def _curves(group: str, settings: Mapping[str, Sequence[Trial]], labels: Sequence[str]) -> str:
    lines = {
        label: mean_and_spread([measures.series(trial, "auto") for trial in trials])
        for label, trials in settings.items()
        if any(trial.metric for trial in trials)
    }
    lines = {label: line for label, line in lines.items() if line[0]}
    if not lines:
        return ""
    xs = [x for points, _ in lines.values() for x, _ in points]
    ys = [
        y + sign * s
        for points, spread in lines.values()
        for (_, y), s in zip(points, spread, strict=True)
        for sign in (-1, 1)
    ]
    low, high = charts.padded_range(ys)
    share = not any(
        lower_is_better(trial.metric) for trials in settings.values() for trial in trials
    )
    interval = (max(0.0, low), min(1.0, high)) if share else (low, high)
    plot = charts.Plot(
        charts.padded_range(xs, 0.02), interval, "round", _measure(settings), group, whole=True
    )
    for label, (points, spread) in lines.items():
        clipped = [(x, min(max(y, interval[0]), interval[1])) for x, y in points]
        band = [
            min(s, interval[1] - y, y - interval[0])
            for (_, y), s in zip(clipped, spread, strict=True)
        ]
        plot.line(clipped, labels.index(label), label, band)
    return plot.svg()


def _against_bytes(
    group: str, settings: Mapping[str, Sequence[Trial]], labels: Sequence[str]
) -> str:
    lines: dict[str, list[tuple[float, float]]] = {}
    for label, trials in settings.items():
        found = []
        for trial in trials:
            if {"bytes/up", "bytes/down"} <= set(trial.history.columns):
                sent = (trial.history["bytes/up"] + trial.history["bytes/down"]).cumsum() / 1e6
                found.append(pd.Series(sent.to_numpy(), index=trial.history["round"]))
        values = [measures.series(trial, "auto") for trial in trials]
        if found and any(len(one) for one in values):
            megabytes = pd.concat(found, axis=1).mean(axis=1)
            lines[label] = [
                (float(megabytes[x]), y) for x, y in mean_and_spread(values)[0] if x in megabytes
            ]
    lines = {label: line for label, line in lines.items() if line and line[-1][0] > 0}
    if not lines:
        return ""
    xs, ys = zip(*(point for line in lines.values() for point in line), strict=True)
    plot = charts.Plot(
        (0.0, max(xs) * 1.03), charts.padded_range(ys), "megabytes sent", _measure(settings), group
    )
    for label, line in lines.items():
        plot.line(line, labels.index(label), label)
    return plot.svg()


def _clients(group: str, settings: Mapping[str, Sequence[Trial]]) -> Iterator[str]:
    for label, every in settings.items():
        trials = measures.comparable_trials(every)
        own = f"{trials[0].view}/local/{trials[0].metric.rpartition('/')[2]}"
        names = measures.clients(trials[0], own)
        if not names or len(names) > _MOST_BARS:
            continue
        columns = [f"{own}/client/{name}" for name in names]
        rows = [
            trial.history[columns].ffill().iloc[-1].to_numpy(dtype=float)
            for trial in trials
            if set(columns) <= set(trial.history.columns)
        ]
        means = np.mean(rows, axis=0)
        if not np.isfinite(means).any():
            continue
        spreads = np.std(rows, axis=0, ddof=1) if len(rows) > 1 else np.zeros(len(names))
        lower = lower_is_better(own)
        worst = int(np.nanargmax(means) if lower else np.nanargmin(means))
        top = max(1.05 * float(np.nanmax(means + spreads)), 0.1)
        plot = charts.Plot(
            (-0.6, len(names) - 0.4),
            (0.0, top if lower else min(top, 1.0)),
            "",
            own.rpartition("/")[2],
            " · ".join(part for part in (group, label) if part),
            x_names=names,
            height=230,
        )
        for k, (name, mean, spread) in enumerate(zip(names, means, spreads, strict=True)):
            if np.isfinite(mean):
                plot.bar(
                    k,
                    float(mean),
                    0.7,
                    1 if k == worst else 0,
                    f"{name}: {_notice(mean, lower)}",
                    float(spread),
                )
        plot.level(float(np.nanmean(means)), f"mean {_notice(float(np.nanmean(means)), lower)}")
        yield plot.svg()


def _notice(value: float, lower: bool) -> str:
    return f"{value:.3g}" if lower else f"{100 * value:.2f} %"


def _measure(settings: Mapping[str, Sequence[Trial]]) -> str:
    names = {trial.metric for trials in settings.values() for trial in trials if trial.metric}
    last = {name.rpartition("/")[2] for name in names}
    return names.pop() if len(names) == 1 else " or ".join(sorted(last))
