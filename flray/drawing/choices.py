"""Charts of settings and of shares: parallel coordinates, bars with parts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure

from flray.drawing.canvas import (
    INK,
    LIGHT,
    MAIN,
    MARKED,
    PAPER,
    SOFT,
    add_legend,
    create_figure,
    plain_text,
    set_title,
)
from flray.drawing.charts import Floats

_FAINT, _STRONG = 0.12, 0.9


@dataclass(frozen=True)
class Coordinate:
    """An axis of parallel coordinates.

    Attributes
    ----------
    name : str
        Below it.
    places : sequence of float
        Of each line, between 0 (below) and 1.
    ticks : mapping of str to float
        Texts beside it, and where they stand.
    """

    name: str
    places: Floats
    ticks: Mapping[str, float]


def draw_parallel(coordinates: Sequence[Coordinate], best: int, title: str = "") -> Figure:
    """Draw a line for each setting through all its values to its score, stronger where it is higher up there.

    Parameters
    ----------
    coordinates : sequence of Coordinate
        The settings' values, then the score.
    best : int
        The line to mark.
    title : str
        Above the axes.
    """
    figure, (axes,) = create_figure(1, 1.6 + 1.45 * len(coordinates), 3.4)
    places = np.array([one.places for one in coordinates], dtype=float)
    positions = range(len(coordinates))
    order = sorted(range(places.shape[1]), key=lambda line: (line == best, places[-1, line]))
    for line in order:
        marked = line == best
        axes.plot(
            positions,
            places[:, line],
            color=MARKED if marked else MAIN,
            linewidth=2.2 if marked else 1.3,
            alpha=1.0 if marked else _FAINT + (_STRONG - _FAINT) * places[-1, line] ** 2,
        )
    for position, one in enumerate(coordinates):
        axes.axvline(position, color=INK, linewidth=0.8, ymin=0.045, ymax=0.955)
        last = position == len(coordinates) - 1
        for text, height in one.ticks.items():
            axes.annotate(
                plain_text(text),
                (position, height),
                xytext=(5 if last else -5, 0),
                textcoords="offset points",
                ha="left" if last else "right",
                va="center",
                fontsize=7.5,
                color=SOFT,
                bbox={"facecolor": PAPER, "edgecolor": "none", "alpha": 0.8, "pad": 0.6},
            )
    axes.set_xlim(-0.45, len(coordinates) - 0.5)
    axes.set_ylim(-0.05, 1.05)
    axes.set_xticks(positions, [plain_text(one.name) for one in coordinates])
    axes.tick_params(axis="x", labelsize=8.5, length=0, colors=INK)
    axes.set_yticks([])
    axes.spines[:].set_visible(False)
    axes.grid(visible=False)
    set_title(axes, title)
    return figure


@dataclass(frozen=True)
class BarPanel:
    """Axes of horizontal bars.

    Attributes
    ----------
    title : str
        Above the axes.
    names : sequence of str
        Of the bars, from above.
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
        Of all axes.
    """
    most = max(len(panel.names) for panel in panels)
    longest = max(len(name) for panel in panels for name in panel.names)
    width = 3.6 + 0.06 * min(longest, 60)
    figure, axes = create_figure(len(panels), width, 1.1 + 0.3 * most, columns=2)
    series = list(dict.fromkeys(part for panel in panels for part in panel.parts))
    handles = {}
    for one, panel in zip(axes, panels, strict=True):
        heights = np.arange(len(panel.names))[::-1]
        left = np.zeros(len(panel.names))
        for part, values in panel.parts.items():
            colour = LIGHT[series.index(part) % len(LIGHT)]
            handles[part] = one.barh(heights, values, left=left, height=0.66, color=colour)[0]
            left = left + np.nan_to_num(np.asarray(values, dtype=float))
        one.set_yticks(heights, list(map(plain_text, panel.names)))
        one.set_ylim(-0.6, most - 0.4)
        one.grid(axis="y", visible=False)
        one.set_xlabel(plain_text(x_label))
        set_title(one, panel.title)
    if len(series) > 1:
        add_legend(figure, [handles[name] for name in series], series)
    return figure
