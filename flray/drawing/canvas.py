"""Style of all figures, their files, and SVG whose colours an HTML page decides.

matplotlib is used without its global state, so that any thread may draw.
"""

import io
import math
import re
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from flray.errors import one_line
from flray.files import write_atomically

LIGHT = ("#0072b2", "#d55e00", "#00825f", "#b6569a", "#9a6a00", "#3a9bd9", "#5a5a5a", "#6f4bb8")
DARK = ("#56b4e9", "#ff9245", "#3fcf9e", "#e79ac6", "#e8c14a", "#9fd8ff", "#b9b9b9", "#b79cff")
"""Colours of series, told apart with every kind of colour vision, after Okabe and Ito, "Color
universal design" (2008), on a light and on a dark page."""
INK, SOFT, RULE, PAPER = "#1a1c1e", "#5b6168", "#d9dce0", "#ffffff"
MAIN, MARKED = LIGHT[0], LIGHT[1]
SUFFIXES = (".png", ".svg", ".pdf")
_DASHES = ("-", "--", "-.", ":")
_VARIABLES: Mapping[str, str] = {
    **{colour: f"var(--c{number})" for number, colour in enumerate(LIGHT)},
    INK: "var(--fg)",
    SOFT: "var(--soft)",
    RULE: "var(--line)",
    PAPER: "var(--bg)",
}
_TEXT_AS_TEXT = {"svg.fonttype": "none", "svg.hashsalt": "flray", "pdf.fonttype": 42}
_settings_lock = threading.Lock()


def create_figure(
    panels: int, width: float, height: float, columns: int = 3
) -> tuple[Figure, list[Axes]]:
    """Return a figure with a grid of axes.

    Parameters
    ----------
    panels : int
        The number of axes.
    width, height : float
        The size of a panel in inches.
    columns : int
        The most panels in a row.
    """
    columns = min(columns, panels)
    rows = math.ceil(panels / columns)
    figure = Figure(figsize=(columns * width, rows * height), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = [figure.add_subplot(rows, columns, position + 1) for position in range(panels)]
    for one in axes:
        style_axes(one)
    return figure, axes


def style_axes(axes: Axes) -> None:
    """Give axes the house's style: thin grid, no frame at the top and right."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(SOFT)
    axes.tick_params(colors=SOFT, labelsize=8, length=2.5)
    axes.xaxis.label.set(color=SOFT, size=9)
    axes.yaxis.label.set(color=SOFT, size=9)
    axes.grid(color=RULE, linewidth=0.6)
    axes.set_axisbelow(True)


def set_title(axes: Axes, title: str) -> None:
    """Write a title above axes."""
    if title:
        axes.set_title(plain_text(title), loc="left", fontsize=9.5, fontweight="bold", color=INK)


def name_ticks(axes: Axes, names: Sequence[str]) -> None:
    """Name the positions 0, 1, 2, ... of the x axis, slanted where names are long."""
    slanted = max(map(len, names), default=0) > 3
    axes.set_xticks(
        range(len(names)),
        list(map(plain_text, names)),
        rotation=45 if slanted else 0,
        ha="right" if slanted else "center",
        rotation_mode="anchor",
    )


def line_style(number: int) -> dict[str, Any]:
    """Return the colour and dashes of a series; further series than colours differ in dashes."""
    dashes = _DASHES[number // len(LIGHT) % len(_DASHES)]
    return {"color": LIGHT[number % len(LIGHT)], "linestyle": dashes, "linewidth": 1.6}


def plain_text(name: str) -> str:
    """Return a name as matplotlib shows it as it is: one line, no formula between dollars."""
    return one_line(name).replace("$", r"\$")


def add_legend(figure: Figure, handles: Sequence[Any], names: Sequence[str]) -> None:
    """Put a legend to the right of all axes, and make room for it."""
    width, height = figure.get_size_inches()
    longest = max(map(len, names), default=0)
    figure.set_size_inches(width + 0.6 + 0.062 * longest, max(height, 0.4 + 0.165 * len(names)))
    name_legend(figure, handles, names, loc="outside right upper", fontsize=8)


def name_legend(
    where: Figure | Axes, handles: Sequence[Any], names: Sequence[str], **style: Any
) -> None:
    """Add a legend whose names are shown as they are; matplotlib omits a label that begins with _."""
    places = list(map(str, range(len(names))))
    legend = where.legend(handles, places, frameon=False, labelcolor=INK, **style)
    for text, name in zip(legend.get_texts(), names, strict=True):
        text.set_text(plain_text(name))


def save_figure(figure: Figure, path: Path) -> None:
    """Write a figure as PNG, SVG or PDF, as the file's suffix says."""
    write_atomically(path, render(figure, path.suffix.lower().removeprefix(".")), keep_name=False)


def render(figure: Figure, kind: str) -> bytes:
    """Return a figure's file of a kind: png, svg or pdf; texts are text in the last two."""
    if figure.get_layout_engine() is not None:  # once, not again for every format
        figure.draw_without_rendering()
        figure.set_layout_engine(None)  # "none" leaves a placeholder: every save draws thrice
    file, date = io.BytesIO(), {"svg": "Date", "pdf": "CreationDate"}.get(kind)
    with _settings_lock, matplotlib.rc_context(_TEXT_AS_TEXT):
        figure.savefig(file, format=kind, metadata={date: None} if date else None)
    return file.getvalue()


def theme_svg(text: str, label: str) -> str:
    """Return SVG for an HTML page whose style sheet holds the colours.

    Parameters
    ----------
    text : str
        As `render` returns it, decoded.
    label : str
        Describes the figure to screen readers.
    """
    text = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>|<style.*?</style>", "", text, flags=re.S)
    text = re.sub(r"<[^>]+>", _themed_tag, text[text.index("<svg") :])
    alt = re.sub('[<>&"]', " ", one_line(label))
    return text.replace("<svg ", f'<svg role="img" aria-label="{alt}" ', 1).strip()


def _themed_tag(tag: re.Match[str]) -> str:
    """Return a tag with the page's colours, and without the ids that every figure has."""
    text = re.sub(r' id="[A-Za-z][\w.]*_\d+"', "", tag[0])
    return re.sub("#[0-9a-f]{6}", lambda found: _VARIABLES.get(found[0], found[0]), text)
