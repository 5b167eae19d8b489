"""Charts of matrices and points: values by setting and client, correlations, features by class."""

from __future__ import annotations

import colorsys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray

from flray.drawing.canvas import (
    INK,
    LIGHT,
    MAIN,
    MARKED,
    PAPER,
    RULE,
    create_figure,
    name_ticks,
    plain_text,
    set_title,
)

_CLEAR_AT_ZERO = [(0.0, MARKED), (0.5, f"{MARKED}00"), (0.5, f"{MAIN}00"), (1.0, MAIN)]
_BLUE_ORANGE = LinearSegmentedColormap.from_list("blue-orange", _CLEAR_AT_ZERO)
_BLUES = LinearSegmentedColormap.from_list("blues", [f"{MAIN}10", f"{MAIN}90"])


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
    name_ticks(axes, panel.columns)
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


def _remove_frame(axes: Axes) -> None:
    axes.spines[:].set_visible(False)
    axes.grid(visible=False)
    axes.tick_params(length=0)
