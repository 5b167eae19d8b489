"""Charts of numbers: lines over rounds, bars by client, scores by setting."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from flray.drawing.canvas import (
    INK,
    MAIN,
    MARKED,
    SOFT,
    add_legend,
    create_figure,
    line_style,
    name_ticks,
    plain_text,
    set_title,
)
from flray.metrics.direction import lower_is_better

Floats = Sequence[float] | NDArray[np.floating[Any]]
_MAX_MARKERS, _MAX_NAMES, _MAX_VALUES = 30, 60, 12


@dataclass(frozen=True)
class Line:
    """A line of a chart.

    Attributes
    ----------
    name : str
        In the legend; lines of one name have one colour in all panels.
    x, y : sequence of float
        Points; NaN breaks the line.
    spread : sequence of float, optional
        Half the height of a band around the line.
    each : sequence of sequence of float
        The values that the line is the mean of, at the same points; drawn thin.
    """

    name: str
    x: Floats
    y: Floats
    spread: Floats | None = None
    each: Sequence[Floats] = ()


@dataclass(frozen=True)
class LinePanel:
    """Axes with lines.

    Attributes
    ----------
    title : str
        Above the axes.
    lines : sequence of Line
        Drawn in them.
    x_names : sequence of str, optional
        Names at 0, 1, 2, ... in place of numbers.
    """

    title: str
    lines: Sequence[Line]
    x_names: Sequence[str] | None = None


def draw_lines(
    panels: Sequence[LinePanel],
    x_label: str,
    y_label: str,
    *,
    share: bool = False,
    markers: bool = True,
    order: Sequence[str] = (),
) -> Figure:
    """Draw lines in one or several panels with one legend; of a single panel in the order of the last values.

    Parameters
    ----------
    panels : sequence of LinePanel
        At least one.
    x_label, y_label : str
        Of all axes; ``round`` has whole numbers.
    share : bool
        Whether values lie between 0 and 1, beyond which no axis reaches.
    markers : bool
        Whether the points of lines with few of them are marked.
    order : sequence of str
        All names in the order of their colours, so that one has the same in several figures.
    """
    single = len(panels) == 1
    figure, axes = create_figure(len(panels), *((6.0, 3.9) if single else (3.5, 2.7)))
    names = list(dict.fromkeys(line.name for panel in panels for line in panel.lines))
    coloured = list(dict.fromkeys([*order, *names]))
    handles: dict[str, Any] = {}
    for one, panel in zip(axes, panels, strict=True):
        for line in panel.lines:
            style = line_style(coloured.index(line.name))
            marker = "o" if markers and len(line.x) <= _MAX_MARKERS else ""
            x, y = np.asarray(line.x, float), np.asarray(line.y, float)
            (handles[line.name],) = one.plot(x, y, marker=marker, markersize=3, **style)
            for values in line.each:
                one.plot(x, values, color=style["color"], linewidth=0.5, alpha=0.5)
            if line.spread is not None and np.any(np.asarray(line.spread) > 0):
                band = np.asarray(line.spread, float)
                one.fill_between(
                    x, y - band, y + band, color=style["color"], alpha=0.15, linewidth=0
                )
        set_title(one, panel.title)
        one.set_xlabel(x_label)
        one.margins(x=0.02)
        if x_label == "round":
            one.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], nbins=7))
        if panel.x_names is not None:
            name_ticks(one, panel.x_names)
        if share:
            low, high = one.get_ylim()
            one.set_ylim(max(low, 0.0), min(high, 1.0))
    for one in axes[:: min(3, len(panels))]:
        one.set_ylabel(plain_text(y_label))
    if single:
        sign = 1 if lower_is_better(y_label) else -1
        names.sort(key=lambda name: _last_rank(panels[0].lines, name, sign))
    if len(names) > 1 or not single or names[0] not in (y_label, panels[0].title):
        add_legend(figure, [handles[name] for name in names], names)
    return figure


def _last_rank(lines: Sequence[Line], name: str, sign: int) -> float:
    last = next(np.asarray(line.y, float) for line in lines if line.name == name)
    finite = last[np.isfinite(last)]
    return sign * float(finite[-1]) if len(finite) else math.inf


def draw_clients(values: Mapping[str, float], metric: str, worst_share: float = 0.1) -> Figure:
    """Draw one bar per client, best first, with the mean and the worst clients marked.

    Parameters
    ----------
    values : mapping of str to float
        By client; clients without a finite value are counted below the axes.
    metric : str
        Name of the values; decides whether higher or lower is better.
    worst_share : float
        Fraction of the clients, at least one, drawn as the worst.

    Raises
    ------
    ValueError
        If no client has a finite value.
    """
    sign = 1 if lower_is_better(metric) else -1
    finite = sorted(
        ((name, value) for name, value in values.items() if math.isfinite(value)),
        key=lambda item: sign * item[1],
    )
    if not finite:
        raise ValueError(f"{metric}: no client has a finite value")
    names, heights = [name for name, _ in finite], [value for _, value in finite]
    worst = max(1, math.ceil(worst_share * len(finite) - 1e-9))
    good = len(finite) - worst
    figure, (axes,) = create_figure(1, max(5.0, min(12.0, 2.0 + 0.28 * len(finite))), 4.2)
    width = 0.75 if len(finite) <= _MAX_NAMES else 1.0
    axes.bar(range(good), heights[:good], width=width, color=MAIN)
    low = axes.bar(range(good, len(finite)), heights[good:], width=width, color=MARKED)
    mean = axes.axhline(float(np.mean(heights)), color=INK, linewidth=1.1, linestyle="--")
    if len(finite) <= _MAX_VALUES:
        for position, height in enumerate(heights):
            axes.annotate(
                f"{height:.3g}",
                (position, height),
                ha="center",
                va="bottom",
                fontsize=7,
                color=SOFT,
            )
    axes.grid(axis="x", visible=False)
    if len(finite) <= _MAX_NAMES:
        name_ticks(axes, names)
    else:
        axes.set_xticks([])
    missing = len(values) - len(finite)
    axes.set_xlabel(f"{len(finite)} clients" + (f", {missing} without a value" if missing else ""))
    axes.set_ylabel(plain_text(metric))
    axes.margins(x=0.01)
    figure.legend(
        [mean, low[0]],
        [
            f"all: mean {np.mean(heights):.3g}",
            f"worst {worst} of {len(finite)}: mean {np.mean(heights[good:]):.3g}",
        ],
        loc="outside upper right",
        ncols=2,
        frameon=False,
        fontsize=8,
        labelcolor=INK,
    )
    return figure


def draw_scores(scores: Mapping[str, Sequence[float]], metric: str, title: str = "") -> Figure:
    """Draw the settings of a sweep below each other, best on top: each seed, mean, standard deviation.

    Parameters
    ----------
    scores : mapping of str to sequence of float
        By setting one score per seed; scores that are not finite are counted beside its name.
    metric : str
        Name of the scores; decides whether higher or lower is better.
    title : str
        Above the axes.

    Raises
    ------
    ValueError
        If no setting has a finite score.
    """
    finite = {
        name: [score for score in seeds if math.isfinite(score)] for name, seeds in scores.items()
    }
    sign = -1 if lower_is_better(metric) else 1
    ranked = sorted(
        (name for name in finite if finite[name]),
        key=lambda name: sign * float(np.mean(finite[name])),
    )
    if not ranked:
        raise ValueError(f"{metric}: no setting has a finite score")
    figure, (axes,) = create_figure(1, 7.0, 1.4 + 0.34 * len(ranked))
    for height, name in enumerate(ranked):
        seeds = finite[name]
        spread = float(np.std(seeds, ddof=1)) if len(seeds) > 1 else 0.0
        axes.plot(
            seeds,
            [height] * len(seeds),
            "o",
            color=MAIN,
            alpha=0.35,
            markersize=5,
            markeredgewidth=0,
        )
        axes.errorbar(
            np.mean(seeds), height, xerr=spread, fmt="|", color=INK, markersize=11, capsize=3
        )
    failed = {name: len(scores[name]) - len(finite[name]) for name in ranked}
    labels = [f"{name} ({failed[name]} failed)" if failed[name] else name for name in ranked]
    axes.set_yticks(range(len(ranked)), list(map(plain_text, labels)))
    axes.set_ylim(-0.6, len(ranked) - 0.4)
    axes.set_xlabel(plain_text(f"{metric} (dots: seeds; bars: mean ± standard deviation)"))
    axes.grid(axis="y", visible=False)
    set_title(axes, title)
    return figure
