"""Charts of matrices and points: values by setting and client, correlations, features by class."""

import colorsys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import LinearSegmentedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray

from flray.drawing import canvas

_CLEAR_AT_ZERO = [
    (0.0, canvas.MARKED),
    (0.5, f"{canvas.MARKED}00"),
    (0.5, f"{canvas.MAIN}00"),
    (1.0, canvas.MAIN),
]
_BLUE_ORANGE = LinearSegmentedColormap.from_list("blue-orange", _CLEAR_AT_ZERO)
_BLUES = LinearSegmentedColormap.from_list("blues", [f"{canvas.MAIN}10", f"{canvas.MAIN}90"])


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
    """Draw values by row and column as shaded cells; larger values are darker."""
    rows, columns = panel.values.shape
    longest = max(map(len, panel.rows), default=0)
    figure, (axes,) = canvas.create_figure(
        1, 1.0 + 0.062 * longest + 0.52 * columns, 1.1 + 0.27 * rows
    )
    axes.imshow(panel.values, cmap=_BLUES, aspect="auto", interpolation="none")
    for row, texts in enumerate(panel.texts):
        for column, text in enumerate(texts):
            cell = axes.text(
                column, row, text, ha="center", va="center", fontsize=7.5, color=canvas.INK
            )
            if (row, column) in panel.marked:
                cell.set(color=canvas.MARKED, fontweight="bold")
    axes.set_yticks(range(rows), list(map(canvas.plain_text, panel.rows)))
    canvas.name_ticks(axes, panel.columns)
    axes.spines[:].set_visible(False)
    axes.grid(visible=False)
    axes.tick_params(length=0)
    canvas.set_title(axes, panel.title)
    return figure


def draw_matrices(panels: Sequence[GridPanel]) -> Figure:
    """Draw matrices with entries between -1 and 1: blue above 0, orange below, clear at 0."""
    figure, axes = canvas.create_figure(len(panels), 2.6, 2.9, columns=4)
    for one, panel in zip(axes, panels, strict=True):
        colours: Any = {"cmap": _BLUE_ORANGE, "vmin": -1, "vmax": 1, "interpolation": "none"}
        one.imshow(np.nan_to_num(panel.values), **colours)
        one.grid(visible=False)
        _frame(one, panel.title)
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
    figure, axes = canvas.create_figure(len(panels), 3.6, 3.6)
    for one, panel in zip(axes, panels, strict=True):
        colours = np.array(_class_colours(len(panel.centres)))
        x, y = panel.points.T
        one.scatter(x, y, s=9, c=colours[panel.labels], linewidths=0, alpha=0.8)
        diamonds: Any = {"marker": "D", "edgecolors": canvas.PAPER, "linewidths": 1}
        x, y = panel.centres.T
        one.scatter(x, y, s=55, c=colours, **diamonds)
        for point, name in zip(panel.centres.tolist(), panel.names, strict=False):
            at = (point[0], point[1])
            text = one.annotate(canvas.plain_text(name), at, (5, 3), textcoords="offset points")
            text.set(fontsize=8, fontweight="bold", color=canvas.INK)
        _frame(one, panel.title)
    return figure


def _frame(axes: Axes, title: str) -> None:
    """Give axes a thin frame in place of ticks, and a title."""
    axes.set_xticks([])
    axes.set_yticks([])
    axes.spines[:].set_visible(True)
    axes.spines[:].set_color(canvas.RULE)
    canvas.set_title(axes, title)


def _class_colours(count: int) -> list[str]:
    """Return a colour per class: the palette, or for many classes evenly spaced hues."""
    if count <= len(canvas.LIGHT):
        return list(canvas.LIGHT[:count])
    lights = [(0.48, 0.6)[number % 2] for number in range(count)]
    shades = [colorsys.hls_to_rgb(n / count, light, 0.62) for n, light in enumerate(lights)]
    return ["#" + "".join(f"{round(255 * part):02x}" for part in shade) for shade in shades]


_MAX_BUBBLE_CLIENTS = 200
_LEFT, _RIGHT = 0.5, 1.7  # inches; the right margin holds the legend


def draw_partition(held: Mapping[str, Any], title: str = "") -> Figure:
    """Draw clients by classes, with the area of each bubble in proportion to the client's training samples.

    Parameters
    ----------
    held : mapping
        A ``partition.json``, as `flray.records.read_partition` reads it; readable from 5 to 100
        clients and 2 to 100 classes; colours are domains. Of more than 200 clients the first are drawn.
    title : str
        Above it; default: the data set.
    """
    shown, classes = held["clients"][:_MAX_BUBBLE_CLIENTS], list(map(str, held["classes"]))
    counts = np.array([client["train"] for client in shown], dtype=np.int64)
    num_clients, num_classes = counts.shape
    cell = float(np.clip(12 / max(num_clients, num_classes), 0.2, 0.45))  # inches
    clients = [client["name"] for client in shown]
    owners = np.array([client["domain"] for client in shown])
    domains = list(dict.fromkeys(owners.tolist()))
    # Fixed margins in inches, so that a cell has the same size for every number of clients.
    width, height = max(num_clients * cell, 2.5), num_classes * cell
    # The legend's lines may be more than the rows.
    bottom = max(0.5 + 0.08 * max(map(len, clients)), 0.16 * (len(domains) + 2) - height)
    left, top = _LEFT + 0.08 * max(map(len, classes)), 0.5
    x, y = left + width + _RIGHT, bottom + height + top
    figure = Figure(figsize=(x, y), dpi=150)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((left / x, bottom / y, width / x, height / y))
    largest = int(counts.max())
    # Area of a full cell's bubble, in points squared.
    points = (0.95 * 72 * min(cell, width / num_clients)) ** 2
    handles = []
    for number, domain in enumerate(domains):
        colour = canvas.LIGHT[number % len(canvas.LIGHT)]
        client, label = np.nonzero(counts * (owners == domain)[:, None])
        sizes = points * counts[client, label] / largest
        axes.scatter(client, label, s=sizes, color=colour, linewidths=0)
        handles += axes.plot([], [], "o", color=colour, markersize=5)
    axes.set_xlim(-0.5, num_clients - 0.5)
    axes.set_ylim(-0.5, num_classes - 0.5)
    axes.set_xticks(range(num_clients), list(map(canvas.plain_text, clients)), rotation=90)
    axes.set_yticks(range(num_classes), list(map(canvas.plain_text, classes)))
    axes.set_ylabel("class" if held.get("has_classes", True) else "", fontsize=8, color=canvas.SOFT)
    axes.tick_params(length=2, labelsize=7, colors=canvas.SOFT)
    axes.spines[:].set_visible(False)
    axes.grid(color=canvas.RULE, linewidth=0.5)
    axes.set_axisbelow(True)
    few = f" of the first {num_clients} clients" if num_clients < len(held["clients"]) else ""
    canvas.set_title(
        axes, f"{title or held['dataset']}: training samples{few} (largest bubble {largest})"
    )
    place = {"loc": "upper left", "bbox_to_anchor": (1 + 0.1 / width, 1), "borderaxespad": 0}
    canvas.name_legend(
        axes, handles, domains, fontsize=7, title="domain", title_fontsize=7, **place
    )
    return figure
