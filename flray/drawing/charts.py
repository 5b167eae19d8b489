"""Charts: lines over rounds, bars by client, scores by setting, grids of values, points by class."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from flray.drawing.canvas import (
    INK,
    LIGHT,
    MAIN,
    MARKED,
    PAPER,
    RULE,
    SOFT,
    add_legend,
    create_figure,
    line_style,
    plain_text,
    set_title,
)
from flray.metrics.direction import lower_is_better

Floats = Sequence[float] | NDArray[np.floating[Any]]
_CLEAR_AT_ZERO = [(0.0, MARKED), (0.5, f"{MARKED}00"), (0.5, f"{MAIN}00"), (1.0, MAIN)]
_BLUE_ORANGE = LinearSegmentedColormap.from_list("blue-orange", _CLEAR_AT_ZERO)
_BLUES = LinearSegmentedColormap.from_list("blues", [f"{MAIN}10", f"{MAIN}90"])
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
    """

    name: str
    x: Floats
    y: Floats
    spread: Floats | None = None


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
    panels: Sequence[LinePanel], x_label: str, y_label: str, *, share: bool = False
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
    """
    single = len(panels) == 1
    figure, axes = create_figure(len(panels), *((6.0, 3.9) if single else (3.5, 2.7)))
    names = list(dict.fromkeys(line.name for panel in panels for line in panel.lines))
    handles: dict[str, Any] = {}
    for one, panel in zip(axes, panels, strict=True):
        for line in panel.lines:
            style = line_style(names.index(line.name))
            marker = "o" if len(line.x) <= _MAX_MARKERS else ""
            x, y = np.asarray(line.x, float), np.asarray(line.y, float)
            (handles[line.name],) = one.plot(x, y, marker=marker, markersize=3, **style)
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
            _name_ticks(one, panel.x_names)
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
        _name_ticks(axes, names)
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


@dataclass(frozen=True)
class GridPanel:
    """A matrix of values.

    Attributes
    ----------
    title : str
        Above it.
    rows, columns : sequence of str
        Names; empty: none are shown.
    values : ndarray [R, C]
        NaN: nothing is shown.
    texts : sequence of sequence of str
        In the cells; empty: none.
    marked : set of (int, int)
        Cells to mark.
    """

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: NDArray[np.floating[Any]]
    texts: Sequence[Sequence[str]] = ()
    marked: frozenset[tuple[int, int]] = frozenset()


def draw_table(panel: GridPanel) -> Figure:
    """Draw values by row and column as shaded cells, darker where they are larger."""
    rows, columns = panel.values.shape
    longest = max(map(len, panel.rows), default=0)
    figure, (axes,) = create_figure(1, 1.0 + 0.062 * longest + 0.52 * columns, 1.1 + 0.27 * rows)
    axes.imshow(panel.values, cmap=_BLUES, aspect="auto", interpolation="none")
    for row, texts in enumerate(panel.texts):
        for column, text in enumerate(texts):
            marked = (row, column) in panel.marked
            axes.text(
                column,
                row,
                text,
                ha="center",
                va="center",
                fontsize=7.5,
                color=MARKED if marked else INK,
                fontweight="bold" if marked else "normal",
            )
    axes.set_yticks(range(rows), list(map(plain_text, panel.rows)))
    _name_ticks(axes, panel.columns)
    _remove_frame(axes)
    set_title(axes, panel.title)
    return figure


def draw_matrices(panels: Sequence[GridPanel]) -> Figure:
    """Draw matrices with entries between -1 and 1: blue above 0, orange below, clear at 0."""
    figure, axes = create_figure(len(panels), 2.6, 2.9, columns=4)
    for one, panel in zip(axes, panels, strict=True):
        one.imshow(
            np.nan_to_num(panel.values), cmap=_BLUE_ORANGE, vmin=-1, vmax=1, interpolation="none"
        )
        one.set_xticks([])
        one.set_yticks([])
        one.spines[:].set_visible(True)
        one.spines[:].set_color(RULE)
        one.grid(visible=False)
        set_title(one, panel.title)
        one.set_xlabel(" ".join(panel.columns))
    return figure


@dataclass(frozen=True)
class PointPanel:
    """Points in the plane, with a centre for each class.

    Attributes
    ----------
    title : str
        Above it.
    points : ndarray [n, 2]
        Positions.
    labels : ndarray of int [n]
        Classes, from 0.
    centres : ndarray [C, 2]
        One per class.
    names : sequence of str
        Of the classes, beside the centres; empty: none.
    """

    title: str
    points: NDArray[np.floating[Any]]
    labels: NDArray[np.int64]
    centres: NDArray[np.floating[Any]]
    names: Sequence[str] = ()


def draw_points(panels: Sequence[PointPanel]) -> Figure:
    """Draw points in the colours of their classes, and the centres as diamonds."""
    figure, axes = create_figure(len(panels), 3.6, 3.6)
    for one, panel in zip(axes, panels, strict=True):
        colours = np.array(_class_colours(len(panel.centres)))
        one.scatter(
            panel.points[:, 0],
            panel.points[:, 1],
            s=9,
            c=colours[panel.labels],
            linewidths=0,
            alpha=0.8,
        )
        one.scatter(
            panel.centres[:, 0],
            panel.centres[:, 1],
            s=55,
            c=colours,
            marker="D",
            edgecolors=PAPER,
            linewidths=1,
        )
        for centre, name in zip(panel.centres, panel.names, strict=False):
            one.annotate(
                plain_text(name),
                (float(centre[0]), float(centre[1])),
                xytext=(5, 3),
                textcoords="offset points",
                fontsize=8,
                fontweight="bold",
                color=INK,
            )
        one.set_xticks([])
        one.set_yticks([])
        one.spines[:].set_visible(True)
        one.spines[:].set_color(RULE)
        set_title(one, panel.title)
    return figure


def _class_colours(count: int) -> list[str]:
    """Return a colour per class: the palette, or for many classes evenly spaced hues."""
    if count <= len(LIGHT):
        return list(LIGHT[:count])
    shades = [
        colorsys.hls_to_rgb(number / count, (0.48, 0.6)[number % 2], 0.62)
        for number in range(count)
    ]
    return ["#" + "".join(f"{round(255 * part):02x}" for part in shade) for shade in shades]


def _name_ticks(axes: Axes, names: Sequence[str]) -> None:
    """Name the positions 0, 1, 2, ... of the x axis, slanted where names are long."""
    slanted = max(map(len, names), default=0) > 3
    axes.set_xticks(
        range(len(names)),
        list(map(plain_text, names)),
        rotation=45 if slanted else 0,
        ha="right" if slanted else "center",
        rotation_mode="anchor",
    )


def _remove_frame(axes: Axes) -> None:
    axes.spines[:].set_visible(False)
    axes.grid(visible=False)
    axes.tick_params(length=0)
