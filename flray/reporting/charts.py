"""Small charts as inline SVG: colours come from the page's style sheet, so one drawing serves light, dark and print."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from flray.reporting.html_text import escape

SERIES = 8
"""Colours in the style sheet; further series repeat them with dashes."""
Points = Sequence[tuple[float, float]]


def ticks(low: float, high: float, about: int = 5, whole: bool = False) -> list[float]:
    """Return round numbers that cover an interval."""
    span = high - low
    if span <= 0 or not math.isfinite(span):
        return [low]
    step = 10.0 ** math.floor(math.log10(span / about))
    step *= next(factor for factor in (1, 2, 5, 10) if span / (step * factor) <= about)
    step = max(1.0, round(step)) if whole else step
    first = math.ceil(low / step - 1e-9)
    return [k * step for k in range(first, math.floor(high / step + 1e-9) + 1)]


def padded_range(values: Iterable[float], share: float = 0.05) -> tuple[float, float]:
    """Return an interval that holds all finite values, with some room."""
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    room = (high - low) * share or abs(high) * share or 0.5
    return low - room, high + room


def text(value: float) -> str:
    """Return a number as an axis shows it."""
    if value and (abs(value) >= 1e6 or abs(value) < 1e-3):
        return f"{value:.3g}".replace("e+0", "e").replace("e+", "e").replace("e-0", "e-")
    return f"{value:.10g}"


class Plot:
    """Axes with things drawn on them.

    Parameters
    ----------
    x, y : (float, float)
        Intervals of the axes.
    x_label, y_label : str
        Below and above them.
    title : str
        Above the plot.
    width, height : int
        Pixels, of the whole.
    x_names, y_names : sequence of str, optional
        Names at 0, 1, 2, ... in place of numbers.
    whole : bool
        Whether the x axis counts something.
    """

    def __init__(
        self,
        x: tuple[float, float],
        y: tuple[float, float],
        x_label: str = "",
        y_label: str = "",
        title: str = "",
        *,
        width: int = 440,
        height: int = 270,
        x_names: Sequence[str] | None = None,
        y_names: Sequence[str] | None = None,
        whole: bool = False,
    ) -> None:
        self._x, self._y, self._title = x, y, title
        longest = max(map(len, y_names if y_names is not None else map(text, ticks(*y))), default=0)
        slanted = x_names is not None and len(x_names) * max(map(len, x_names), default=1) > 50
        self._left = 14 + min(150, 7 * max(5, longest) if y_names is None else 7 * longest)
        self._top = 18 + (18 if title else 0) + (4 if y_label else 0)
        bottom = 20 + (18 if x_label else 0)
        if slanted and x_names is not None:
            bottom += min(90, 6 * max(map(len, x_names)))
        self._width, self._height = width, height
        self._right, self._bottom = width - 12, height - bottom
        self._parts: list[str] = []
        self._grid(x_label, y_label, x_names, y_names, slanted, whole)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Return where a point lies, in pixels."""
        (x0, x1), (y0, y1) = self._x, self._y
        return (
            round(self._left + (x - x0) / (x1 - x0) * (self._right - self._left), 1),
            round(self._bottom - (y - y0) / (y1 - y0) * (self._bottom - self._top), 1),
        )

    def line(
        self, points: Points, series: int, name: str = "", band: Sequence[float] | None = None
    ) -> None:
        """Draw a line, with a band of plus and minus `band` around it."""
        if band is not None and len(points) > 1 and any(width > 0 for width in band):
            upper = [self.at(x, y + w) for (x, y), w in zip(points, band, strict=True)]
            lower = [self.at(x, y - w) for (x, y), w in zip(points, band, strict=True)]
            self._parts.append(
                f'<polygon class="band f{series % SERIES}" points="{_path([*upper, *lower[::-1]])}"/>'
            )
        dash = (
            f' stroke-dasharray="{"6 4" if series // SERIES % 2 else "2 3"}"'
            if series >= SERIES
            else ""
        )
        self._parts.append(
            f'<polyline class="line s{series % SERIES}"{dash} '
            f'points="{_path([self.at(*point) for point in points])}"><title>{escape(name)}</title>'
            "</polyline>"
        )
        if len(points) <= 25:
            for x, y in points:
                self.dot(x, y, series, f"{name}: {text(x)}, {y:.4g}", 2.2)

    def dot(
        self, x: float, y: float, series: int, name: str = "", radius: float = 3.0, style: str = ""
    ) -> None:
        """Draw a disc."""
        cx, cy = self.at(x, y)
        self._parts.append(
            f'<circle class="f{series % SERIES}" cx="{cx}" cy="{cy}" r="{radius:.1f}"{style}>'
            f"<title>{escape(name)}</title></circle>"
        )

    def bar(
        self, x: float, y: float, width: float, series: int, name: str = "", spread: float = 0.0
    ) -> None:
        """Draw a bar from the bottom of the axis, and its spread."""
        x0, top = self.at(x - width / 2, y)
        x1, base = self.at(x + width / 2, max(0.0, self._y[0]))
        self._parts.append(
            f'<rect class="f{series % SERIES}" x="{x0}" y="{min(top, base)}" width="{x1 - x0:.1f}" '
            f'height="{abs(base - top):.1f}"><title>{escape(name)}</title></rect>'
        )
        if spread > 0:
            (cx, high), (_, low) = (
                self.at(x, min(y + spread, self._y[1])),
                self.at(x, max(y - spread, self._y[0])),
            )
            self._parts.append(
                f'<path class="spread" d="M{cx} {high}V{low}M{cx - 3} {high}H{cx + 3}M{cx - 3} {low}'
                f'H{cx + 3}"/>'
            )

    def level(self, y: float, name: str) -> None:
        """Draw a horizontal line across the plot."""
        _, at = self.at(self._x[0], y)
        self._parts.append(
            f'<path class="level" d="M{self._left} {at}H{self._right}"><title>{escape(name)}</title>'
            "</path>"
        )

    def diamond(self, x: float, y: float, style: str, name: str, label: str = "") -> None:
        """Draw a marker with a label beside it."""
        cx, cy = self.at(x, y)
        self._parts.append(
            f'<path class="mark" style="{style}" d="M{cx} {cy - 6}L{cx + 6} {cy}L{cx} {cy + 6}L{cx - 6}'
            f' {cy}Z"><title>{escape(name)}</title></path>'
        )
        if label:
            self._parts.append(
                f'<text class="tag" x="{cx + 8}" y="{cy + 4}">{escape(label)}</text>'
            )

    def svg(self) -> str:
        """Return the drawing."""
        title = (
            f'<text class="title" x="2" y="14">{escape(self._title)}</text>' if self._title else ""
        )
        name = escape(self._title or "chart", quote=True)
        return (
            f'<svg viewBox="0 0 {self._width} {self._height}" role="img" aria-label="{name}">'
            f"{title}{''.join(self._parts)}</svg>"
        )

    def _grid(
        self,
        x_label: str,
        y_label: str,
        x_names: Sequence[str] | None,
        y_names: Sequence[str] | None,
        slanted: bool,
        whole: bool,
    ) -> None:
        xs = range(len(x_names)) if x_names is not None else ticks(*self._x, about=6, whole=whole)
        ys = range(len(y_names)) if y_names is not None else ticks(*self._y)
        for k, y in enumerate(ys):
            _, at = self.at(self._x[0], y)
            self._parts.append(
                f'<path class="grid" d="M{self._left} {at}H{self._right}"/><text class="tick" '
                f'text-anchor="end" x="{self._left - 5}" y="{at + 3.5}">'
                f"{escape(y_names[k][:24] if y_names else text(y))}</text>"
            )
        for k, x in enumerate(xs):
            at, _ = self.at(x, self._y[0])
            word = escape(x_names[k][:18] if x_names else text(x))
            place = (
                f'text-anchor="end" transform="rotate(-40 {at} {self._bottom + 12})"'
                if slanted
                else 'text-anchor="middle"'
            )
            self._parts.append(
                f'<text class="tick" {place} x="{at}" y="{self._bottom + 14}">{word}</text>'
            )
        self._parts.append(f'<path class="axis" d="M{self._left} {self._bottom}H{self._right}"/>')
        if x_label:
            self._parts.append(
                f'<text class="name" text-anchor="end" x="{self._right}" y="{self._height - 5}">'
                f"{escape(x_label)}</text>"
            )
        if y_label:
            self._parts.append(
                f'<text class="name" x="2" y="{self._top - 8}">{escape(y_label)}</text>'
            )


def legend(names: Sequence[str], shown: Sequence[str] | None = None) -> str:
    """Return a list of series with their lines: of those that are shown, by default all."""
    items = []
    for k, name in enumerate(names):
        if shown is not None and name not in shown:
            continue
        dash = f' stroke-dasharray="{"6 4" if k // SERIES % 2 else "2 3"}"' if k >= SERIES else ""
        items.append(
            f'<li><svg viewBox="0 0 22 10" width="22" height="10" aria-hidden="true"><path class="line '
            f's{k % SERIES}"{dash} d="M1 5H21"/></svg>{escape(name)}</li>'
        )
    return f'<ul class="legend">{"".join(items)}</ul>'


def matrix(values: NDArray[np.floating], name: str, size: int = 150) -> str:
    """Return a matrix with entries between -1 and 1 as a picture: blue above 0, orange below, clear at 0."""
    from PIL import Image

    clipped = np.nan_to_num(np.clip(np.asarray(values, dtype=float), -1, 1))
    pixels = np.zeros((*clipped.shape, 4), dtype=np.uint8)
    pixels[..., :3] = np.where(clipped[..., None] >= 0, (43, 131, 186), (230, 97, 1))
    pixels[..., 3] = (np.abs(clipped) * 255).astype(np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "png", optimize=True)
    code = base64.b64encode(buffer.getvalue()).decode()
    return (
        f'<img class="matrix" width="{size}" height="{size}" alt="{escape(name, quote=True)}" '
        f'src="data:image/png;base64,{code}">'
    )


def _path(points: Sequence[tuple[float, float]]) -> str:
    return " ".join(f"{x:g},{y:g}" for x, y in points)
