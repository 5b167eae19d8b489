"""Pictures of runs and sweeps, drawn without matplotlib's global state so that any thread may draw.

Colours are told apart with every kind of colour vision: Okabe and Ito, "Color universal design"
(2008).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from flray.metrics.direction import lower_is_better

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#5A5A5A")
_DASHES = ("-", "--", "-.", ":")
_WORST, _OTHERS = "#D55E00", "#0072B2"


def learning_curves(
    history: pd.DataFrame, metrics: Sequence[str], path: Path, *, title: str = ""
) -> None:
    """Draw metrics of one run over its rounds.

    Parameters
    ----------
    history : DataFrame
        Column ``round`` and one column per metric; rounds without a value are skipped, not drawn as
        gaps.
    metrics : sequence of str
        The columns to draw; all of one unit, since they share an axis.
    path : Path
        Where to write the picture (PNG).
    title : str, optional
        Written above.

    Raises
    ------
    KeyError
        If a metric is not in the history.
    """
    figure, axes = _figure(7.0, 4.2)
    for number, metric in enumerate(metrics):
        measured = history[["round", metric]].dropna()
        marker = "o" if len(measured) <= 30 else ""
        axes.plot(
            measured["round"],
            measured[metric],
            label=metric,
            marker=marker,
            markersize=3.5,
            **_line(number),
        )
    _whole_rounds(axes)
    axes.set_ylabel(_common_start(metrics) or "value")
    _finish(figure, axes, path, title, legend=True)


def method_curves(
    histories: Mapping[str, Sequence[pd.DataFrame]], metric: str, path: Path, *, title: str = ""
) -> None:
    """Draw one metric of several methods over the rounds: mean over seeds, band of one standard deviation.

    Parameters
    ----------
    histories : mapping of str to sequence of DataFrame
        By method the histories of its seeds; the legend is sorted by the last mean, best value on
        top.
    metric : str
        The column to draw.
    path : Path
        Where to write the picture (PNG).
    title : str, optional
        Written above.

    Raises
    ------
    KeyError
        If a history lacks the metric.
    """
    figure, axes = _figure(7.0, 4.6)
    numbers = {len(seeds) for seeds in histories.values()}
    # The number of seeds is said once where it is one, and with each method where it is not.
    counts = (
        {}
        if len(numbers) == 1
        else {number: f" ({number} seed{'s' * (number > 1)})" for number in numbers}
    )
    last: dict[Any, float] = {}
    for number, (method, seeds) in enumerate(histories.items()):
        table = (
            pd.concat([seed.set_index("round")[metric] for seed in seeds], axis=1)
            .sort_index()
            .dropna(how="all")
        )
        mean, std = table.mean(axis=1), table.std(axis=1, ddof=1).fillna(0.0)
        (line,) = axes.plot(
            mean.index, mean, label=f"{method}{counts.get(len(seeds), '')}", **_line(number)
        )
        axes.fill_between(
            mean.index, mean - std, mean + std, color=line.get_color(), alpha=0.15, linewidth=0
        )
        last[line] = float(mean.iloc[-1])
    _whole_rounds(axes)
    spread = (
        ""
        if counts or numbers == {1}
        else f"\nmean ± standard deviation of {max(numbers, default=0)} seeds"
    )
    axes.set_ylabel(metric + spread)
    order = sorted(last, key=lambda line: last[line] if lower_is_better(metric) else -last[line])
    _finish(figure, axes, path, title, legend=order)


def client_bars(
    values: Mapping[str, float],
    metric: str,
    path: Path,
    *,
    worst: float = 0.1,
    title: str = "",
    most: int = 60,
) -> None:
    """Draw one value per client, sorted, with the mean and the worst clients marked.

    Parameters
    ----------
    values : mapping of str to float
        By client; clients without a finite value are counted below the picture.
    metric : str
        What the values are; higher is better, except for losses and distances.
    path : Path
        Where to write the picture (PNG).
    worst : float
        Fraction of the clients, at least one, drawn as the worst.
    title : str, optional
        Written above.
    most : int
        With more clients than this the bars carry no names.

    Raises
    ------
    ValueError
        If no client has a finite value.
    """
    sign = 1 if lower_is_better(metric) else -1
    finite = sorted(
        ((c, value) for c, value in values.items() if math.isfinite(value)),
        key=lambda x: sign * x[1],
    )
    if not finite:
        raise ValueError(f"{metric}: no client has a finite value")
    names, heights = [client for client, _ in finite], [value for _, value in finite]
    bad = max(1, math.ceil(worst * len(finite) - 1e-9))
    good = len(finite) - bad
    figure, axes = _figure(max(5.0, min(12.0, 2.0 + 0.28 * len(finite))), 4.2)
    gap = 0.25 if len(finite) <= most else 0.0
    axes.bar(range(good), heights[:good], width=1 - gap, color=_OTHERS)
    label = f"worst {bad} of {len(finite)}: mean {np.mean(heights[good:]):.3g}"
    low = axes.bar(
        range(good, len(finite)), heights[good:], width=1 - gap, color=_WORST, label=label
    )
    mean = axes.axhline(
        float(np.mean(heights)),
        color="black",
        linewidth=1.2,
        label=f"all: mean {np.mean(heights):.3g}",
    )
    axes.grid(axis="x", visible=False)
    if len(finite) <= most:
        long = max(map(len, names)) > 3
        axes.set_xticks(
            range(len(finite)), names, rotation=45 if long else 0, ha="right" if long else "center"
        )
    else:
        axes.set_xticks([])
    missing = len(values) - len(finite)
    axes.set_xlabel(f"{len(finite)} clients" + (f", {missing} without a value" if missing else ""))
    axes.set_ylabel(metric)
    axes.margins(x=0.01)
    _finish(figure, axes, path, title, legend=[mean, low])


def sweep_overview(
    scores: Mapping[str, Sequence[float]], metric: str, path: Path, *, title: str = ""
) -> None:
    """Draw the methods of a sweep below each other, best mean on top: each seed, mean, standard deviation.

    Parameters
    ----------
    scores : mapping of str to sequence of float
        By method one score per seed; scores that are not finite are counted beside the method's
        name.
    metric : str
        What the scores are; higher is better.
    path : Path
        Where to write the picture (PNG).
    title : str, optional
        Written above.

    Raises
    ------
    ValueError
        If no method has a finite score.
    """
    finite = {
        method: [score for score in seeds if math.isfinite(score)]
        for method, seeds in scores.items()
    }
    ranked = sorted(
        (method for method in finite if finite[method]),
        key=lambda method: float(np.mean(finite[method])),
    )
    if not ranked:
        raise ValueError(f"{metric}: no method has a finite score")
    figure, axes = _figure(7.0, 1.4 + 0.34 * len(ranked))
    for height, method in enumerate(ranked):
        seeds = finite[method]
        spread = float(np.std(seeds, ddof=1)) if len(seeds) > 1 else 0.0
        axes.plot(
            seeds,
            [height] * len(seeds),
            "o",
            color=_OTHERS,
            alpha=0.35,
            markersize=5,
            markeredgewidth=0,
        )
        axes.errorbar(
            np.mean(seeds), height, xerr=spread, fmt="|", color="black", markersize=11, capsize=3
        )
    failed = {method: len(scores[method]) - len(finite[method]) for method in ranked}
    labels = [
        f"{method} ({failed[method]} failed)" if failed[method] else method for method in ranked
    ]
    axes.set_yticks(range(len(ranked)), labels)
    axes.set_ylim(-0.6, len(ranked) - 0.4)
    axes.set_xlabel(f"{metric} (dots: seeds; bars: mean ± standard deviation)")
    axes.grid(axis="y", visible=False)
    _finish(figure, axes, path, title, legend=False)


def _figure(width: float, height: float) -> tuple[Any, Any]:
    """Return a figure [inches] with its own Agg canvas, and its axes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="both", color="#DDDDDD", linewidth=0.7)
    axes.set_axisbelow(True)
    return figure, axes


def _line(number: int) -> dict[str, Any]:
    colours = len(_COLOURS)
    dashes = _DASHES[number // colours % len(_DASHES)]
    return {"color": _COLOURS[number % colours], "linestyle": dashes, "linewidth": 1.6}


def _whole_rounds(axes: Any) -> None:
    from matplotlib.ticker import MaxNLocator

    axes.set_xlabel("round")
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    axes.margins(x=0.02)


def _common_start(names: Iterable[str]) -> str:
    """Return what all names say in their last level, if it is one thing: the unit of a shared axis."""
    last = {name.rsplit("/", 1)[-1] for name in names}
    return last.pop() if len(last) == 1 else ""


def _finish(
    figure: Any, axes: Any, path: Path, title: str, *, legend: bool | Sequence[Any]
) -> None:
    if title:
        axes.set_title(title, loc="left", fontsize=11, fontweight="bold")
    if legend is not False:
        handles = axes.get_legend_handles_labels()[0] if legend is True else list(legend)
        # Beside the axes nothing is hidden, however many methods there are.
        axes.legend(
            handles=handles,
            loc="center left",
            bbox_to_anchor=(1.01, 0.5),
            frameon=False,
            fontsize=8,
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, format="png")
