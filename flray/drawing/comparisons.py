"""Pictures of comparisons: differences with their intervals, and mean ranks with a critical difference."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from flray.drawing.canvas import INK, MAIN, SOFT, create_figure, plain_text, set_title


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
        Whether the test decided; others are drawn open and grey.
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
        Of all axes.
    """
    most = max(len(panel.rows) for panel in panels)
    longest = max(len(row.name) for panel in panels for row in panel.rows)
    width = 4.0 + 0.06 * min(longest, 80)
    figure, axes = create_figure(len(panels), width, 1.1 + 0.3 * most, columns=2)
    for one, panel in zip(axes, panels, strict=True):
        one.axvline(0.0, color=INK, linewidth=1.0)
        for height, row in enumerate(reversed(panel.rows)):
            colour = MAIN if row.decided else SOFT
            one.plot([row.low, row.high], [height] * 2, color=colour, linewidth=1.6)
            face = colour if row.decided else "none"
            one.plot(row.mean, height, "o", color=colour, markersize=5, markerfacecolor=face)
        names = [plain_text(row.name) for row in reversed(panel.rows)]
        one.set_yticks(range(len(names)), names)
        one.set_ylim(-0.6, most - 0.4)
        one.grid(axis="y", visible=False)
        one.set_xlabel(plain_text(x_label))
        set_title(one, panel.title)
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
        The critical difference, drawn as a scale.
    together : sequence of (int, int)
        First and last setting of each bar.
    """
    count = len(names)
    half = math.ceil(count / 2)
    longest = max(map(len, names))
    depth = 0.5 + 0.35 * len(together)
    lowest = depth + 0.5 * half
    figure, (axes,) = create_figure(1, 5.0 + 0.13 * min(longest, 60), 1.2 + 0.42 * lowest)
    axes.axis("off")
    axes.set_xlim(1 - 0.05 * count, count + 0.05 * count)
    axes.set_ylim(-lowest - 0.3, 1.6)
    axes.plot([1, count], [0, 0], color=INK, linewidth=1.2)
    for tick in range(1, count + 1):
        axes.plot([tick, tick], [0, 0.15], color=INK, linewidth=1.0)
        axes.text(tick, 0.25, str(tick), ha="center", va="bottom", fontsize=8, color=SOFT)
    end = 1 + min(critical, count - 1)
    axes.plot([1, end], [1.1, 1.1], color=SOFT, linewidth=1.6)
    label = f"critical difference {critical:.2f}"
    axes.text(1, 1.2, label, ha="left", va="bottom", fontsize=8, color=SOFT)
    for level, (first, last) in enumerate(together, start=1):
        height = -0.35 * level
        axes.plot(
            [means[first] - 0.02 * count, means[last] + 0.02 * count],
            [height, height],
            color=MAIN,
            linewidth=3.5,
            solid_capstyle="round",
        )
    for place, (name, mean) in enumerate(zip(names, means, strict=True)):
        left = place < half
        row = place if left else count - 1 - place
        height = -depth - 0.5 * row
        side = 1 - 0.04 * count if left else count + 0.04 * count
        axes.plot([mean, mean, side], [0, height, height], color=SOFT, linewidth=0.9)
        axes.text(
            side,
            height,
            plain_text(f" {name} {mean:.2f} "),
            ha="right" if left else "left",
            va="center",
            fontsize=8.5,
            color=INK,
            clip_on=False,
        )
    return figure
