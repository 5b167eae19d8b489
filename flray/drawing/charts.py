"""Charts of numbers: lines over rounds, bars by client or setting, differences, ranks."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from flray.drawing import canvas
from flray.metrics import lower_is_better

Floats = Sequence[float] | NDArray[np.floating[Any]]
_MAX_MARKERS = 30


@dataclass(frozen=True)
class Line:
    """A line of a chart.

    Attributes
    ----------
    name : str
        In the legend; lines of one name have one colour in all panels.
    x, y : sequence of float
        Points; NaN breaks the line.
    band : two sequences of float, optional
        The lower and upper ends of a band around the line.
    each : sequence of sequence of float
        The values that the line is the mean of, at the same points; drawn thin.
    """

    name: str
    x: Floats
    y: Floats
    band: tuple[Floats, Floats] | None = None
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
        The labels of all axes; ``round`` has whole numbers.
    share : bool
        Whether axes end at 0 and at 1 if no value lies beyond.
    markers : bool
        Whether the points of lines with few of them are marked.
    order : sequence of str
        All names in the order of their colours, so that one has the same in several figures.
    """
    single = len(panels) == 1
    figure, axes = canvas.create_figure(len(panels), *((6.0, 3.9) if single else (3.5, 2.7)))
    names = list(dict.fromkeys(line.name for panel in panels for line in panel.lines))
    coloured = list(dict.fromkeys([*order, *names]))
    handles: dict[str, Any] = {}
    for one, panel in zip(axes, panels, strict=True):
        for line in panel.lines:
            style = canvas.line_style(coloured.index(line.name))
            marker = "o" if markers and len(line.x) <= _MAX_MARKERS else ""
            x, y = np.asarray(line.x, float), np.asarray(line.y, float)
            (handles[line.name],) = one.plot(x, y, marker=marker, markersize=3, **style)
            for values in line.each:
                one.plot(x, values, color=style["color"], linewidth=0.5, alpha=0.5)
            if line.band is not None and not np.array_equal(*line.band):
                shade: Any = {"color": style["color"], "alpha": 0.15, "linewidth": 0}
                one.fill_between(x, *line.band, **shade)
        canvas.set_title(one, panel.title)
        one.set_xlabel(x_label)
        one.margins(x=0.02)
        if x_label == "round":
            one.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10], nbins=7))
        if panel.x_names is not None:
            canvas.name_ticks(one, panel.x_names)
        if share:
            low, high = one.get_ylim()
            values = np.concatenate([np.asarray(line.y, float) for line in panel.lines])
            one.set_ylim(
                low if (values < 0).any() else max(low, 0.0),  # R2 of bad predictions is below zero
                high if (values > 1).any() else min(high, 1.0),
            )
    for one in axes[:: min(3, len(panels))]:
        one.set_ylabel(canvas.plain_text(y_label))
    if single:
        sign = 1 if lower_is_better(y_label) else -1
        names.sort(key=lambda name: _last_rank(panels[0].lines, name, sign))
    if len(names) > 1 or not single or names[0] not in (y_label, panels[0].title):
        canvas.add_legend(figure, [handles[name] for name in names], names)
    return figure


def _last_rank(lines: Sequence[Line], name: str, sign: int) -> float:
    last = next(np.asarray(line.y, float) for line in lines if line.name == name)
    finite = last[np.isfinite(last)]
    return sign * float(finite[-1]) if len(finite) else math.inf


def _name_rows(axes: Axes, names: Sequence[str], most: int, x_label: str, title: str) -> None:
    """Name the rows 0, 1, 2, ... of horizontal axes with room for `most` of them."""
    axes.set_yticks(range(len(names)), list(map(canvas.plain_text, names)))
    axes.set_ylim(-0.6, most - 0.4)
    axes.set_xlabel(canvas.plain_text(x_label))
    axes.grid(axis="y", visible=False)
    canvas.set_title(axes, title)


@dataclass(frozen=True)
class BarPanel:
    """Axes of horizontal bars.

    Attributes
    ----------
    title : str
        Above the axes.
    names : sequence of str
        The names of the bars, from above.
    parts : mapping of str to sequence of float
        What each bar consists of, from the left; a single part has no legend.
    """

    title: str
    names: Sequence[str]
    parts: Mapping[str, Floats]


def draw_bars(panels: Sequence[BarPanel], x_label: str) -> Figure:
    """Draw bars below each other, each with its parts one behind the other.

    Parameters
    ----------
    panels : sequence of BarPanel
        At least one.
    x_label : str
        The label of all axes.
    """
    most = max(len(panel.names) for panel in panels)
    width = 3.6 + 0.06 * min(max(len(name) for panel in panels for name in panel.names), 60)
    figure, axes = canvas.create_figure(len(panels), width, 1.1 + 0.3 * most, columns=2)
    series = list(dict.fromkeys(part for panel in panels for part in panel.parts))
    handles = {}
    for one, panel in zip(axes, panels, strict=True):
        heights = np.arange(len(panel.names))[::-1]
        left = np.zeros(len(panel.names))
        for part, values in panel.parts.items():
            colour = canvas.LIGHT[series.index(part) % len(canvas.LIGHT)]
            handles[part] = one.barh(heights, values, left=left, height=0.66, color=colour)[0]
            left = left + np.nan_to_num(np.asarray(values, dtype=float))
        _name_rows(one, panel.names[::-1], most, x_label, panel.title)
    if len(series) > 1:
        canvas.add_legend(figure, [handles[name] for name in series], series)
    return figure


@dataclass(frozen=True)
class Interval:
    """A difference of two settings.

    Attributes
    ----------
    name : str
        The pair.
    mean, low, high : float
        The difference and the ends of its interval.
    decided : bool
        Whether one is better; others are drawn open and grey.
    """

    name: str
    mean: float
    low: float
    high: float
    decided: bool


@dataclass(frozen=True)
class ForestPanel:
    """Axes of a forest plot.

    Attributes
    ----------
    title : str
        Above the axes.
    rows : sequence of Interval
        From above.
    """

    title: str
    rows: Sequence[Interval]


def draw_forest(panels: Sequence[ForestPanel], x_label: str) -> Figure:
    """Draw differences below each other with their intervals, and a line at zero.

    Parameters
    ----------
    panels : sequence of ForestPanel
        At least one, each with at least one row.
    x_label : str
        The label of all axes.
    """
    most = max(len(panel.rows) for panel in panels)
    width = 4.0 + 0.06 * min(max(len(row.name) for panel in panels for row in panel.rows), 80)
    figure, axes = canvas.create_figure(len(panels), width, 1.1 + 0.3 * most, columns=2)
    for one, panel in zip(axes, panels, strict=True):
        one.axvline(0.0, color=canvas.INK, linewidth=1.0)
        for height, row in enumerate(reversed(panel.rows)):
            colour = canvas.MAIN if row.decided else canvas.SOFT
            one.plot([row.low, row.high], [height] * 2, color=colour, linewidth=1.6)
            face = colour if row.decided else "none"
            one.plot(row.mean, height, "o", color=colour, markersize=5, markerfacecolor=face)
        _name_rows(one, [row.name for row in reversed(panel.rows)], most, x_label, panel.title)
    return figure


def draw_ranks(
    names: Sequence[str],
    means: Sequence[float],
    critical: float,
    together: Sequence[tuple[int, int]],
) -> Figure:
    """Draw mean ranks along a line; bars join settings that are not told apart.

    Parameters
    ----------
    names : sequence of str
        The settings, best first.
    means : sequence of float
        Their mean ranks.
    critical : float
        The critical difference, drawn as a scale; infinite: none, because places have the same data.
    together : sequence of (int, int)
        First and last setting of each bar.
    """
    count = len(names)
    half = math.ceil(count / 2)
    longest = max(map(len, names))
    depth = 0.5 + 0.35 * len(together)
    lowest = depth + 0.5 * half
    figure, (axes,) = canvas.create_figure(1, 5.0 + 0.13 * min(longest, 60), 1.2 + 0.42 * lowest)
    axes.axis("off")
    axes.set_xlim(1 - 0.05 * count, count + 0.05 * count)
    axes.set_ylim(-lowest - 0.3, 1.6)
    axes.plot([1, count], [0, 0], color=canvas.INK, linewidth=1.2)
    for tick in range(1, count + 1):
        axes.plot([tick, tick], [0, 0.15], color=canvas.INK, linewidth=1.0)
        axes.text(tick, 0.25, str(tick), ha="center", va="bottom", fontsize=8, color=canvas.SOFT)
    label = "not tested, because places have the same data"
    if math.isfinite(critical):
        label = f"critical difference {critical:.2f}"
        end = 1 + min(critical, count - 1)
        axes.plot([1, end], [1.1, 1.1], color=canvas.SOFT, linewidth=1.6)
    axes.text(1, 1.2, label, ha="left", va="bottom", fontsize=8, color=canvas.SOFT)
    for level, (first, last) in enumerate(together, start=1):
        height = -0.35 * level
        ends = [means[first] - 0.02 * count, means[last] + 0.02 * count]
        axes.plot(ends, [height] * 2, color=canvas.MAIN, linewidth=3.5, solid_capstyle="round")
    for place, (name, mean) in enumerate(zip(names, means, strict=True)):
        left = place < half
        row = place if left else count - 1 - place
        height = -depth - 0.5 * row
        side = 1 - 0.04 * count if left else count + 0.04 * count
        axes.plot([mean, mean, side], [0, height, height], color=canvas.SOFT, linewidth=0.9)
        style: Any = {"ha": "right" if left else "left", "va": "center", "clip_on": False}
        axes.text(
            side,
            height,
            canvas.plain_text(f" {name} {mean:.2f} "),
            fontsize=8.5,
            color=canvas.INK,
            **style,
        )
    return figure
