"""Figures show the numbers they were given, in every format."""

import math
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.artist import Artist
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox
from PIL import Image

from flray.drawing import charts
from flray.drawing.canvas import render, save_figure, theme_svg
from flray.drawing.charts import BarPanel, ForestPanel, Interval, Line, LinePanel, draw_lines
from flray.drawing.grids import GridPanel, draw_matrices, draw_table
from tests.helpers import python

BLUE, ORANGE = (0x00, 0x72, 0xB2), (0xD5, 0x5E, 0x00)


def pixels(path: Path, colour: tuple[int, int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Rows and columns of the pixels of exactly this colour."""
    return np.nonzero((np.asarray(Image.open(path).convert("RGB")) == colour).all(axis=2))


def curve(name: str, scale: float, every: int = 1) -> Line:
    rounds = range(0, 40, every)
    return Line(name, list(rounds), [scale * (1 - math.exp(-r / 10)) for r in rounds])


def drawn(*lines: Line, title: str = "") -> Figure:
    return draw_lines([LinePanel(title, lines)], "round", "accuracy")


def test_curves_are_drawn_over_all_rounds_the_better_higher_and_first(tmp_path: Path) -> None:
    path = tmp_path / "new" / "curves.png"
    figure = drawn(curve("a", 0.4), curve("b", 0.9, every=5), title="fedskc")
    save_figure(figure, path)
    width = Image.open(path).size[0]
    for colour in (BLUE, ORANGE):
        columns = np.unique(pixels(path, colour)[1])
        within = columns[columns < 0.7 * width]  # to the right of it is the legend
        assert within.max() - within.min() > 0.5 * width
    assert pixels(path, BLUE)[0].mean() > pixels(path, ORANGE)[0].mean()  # rows count from the top
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["b", "a"]


def test_a_setting_has_one_colour_in_figures_that_lack_others() -> None:
    order = ["local", "fedavg"]
    both = drawn(*(curve(name, 0.5) for name in order))
    only = draw_lines([LinePanel("", [curve("fedavg", 0.5)])], "megabytes", "accuracy", order=order)
    assert only.axes[0].lines[0].get_color() == both.axes[0].lines[1].get_color()
    # A line is broken where a value is missing.
    (line,) = drawn(Line("a", [1, 2, 3, 4], [0.5, math.nan, 0.6, 0.7])).axes[0].lines
    assert np.isnan(np.asarray(line.get_ydata(), float)[1])


def test_an_axis_of_shares_ends_at_0_and_1_unless_a_value_lies_beyond() -> None:
    beyond = ([-0.9, -0.4], -0.9, -0.4), ([0.5, 3.0], 0.5, 3)
    for values, low, high in (([0.0, 1.0], 0.0, 1.0), *beyond):
        panel = LinePanel("", [Line("a", [1, 2], values)])
        bottom, top = draw_lines([panel], "round", "r2", share=True).axes[0].get_ylim()
        assert bottom <= low < high <= top


NAMES = ["<b>&", "$x^2$", "_hidden", '#0072b2 style="fill: #0072b2"', "-->", "\\alpha"]


def test_names_are_text_in_svg_and_no_markup() -> None:
    figure = drawn(*(Line(name, [1, 2], [0.1, 0.2]) for name in NAMES), title=NAMES[0])
    svg = theme_svg(render(figure, "svg").decode(), NAMES[0])
    texts = [element.text for element in ElementTree.fromstring(svg).iter() if element.text]
    assert set(NAMES) <= set(texts)


def test_the_colours_of_a_page_are_those_of_its_style_sheet() -> None:
    values, texts = np.array([[0.5, -0.5], [0.1, 1.0]]), [["50", "x"], ["1", "2"]]
    panel = GridPanel("t", ["a", "b"], ["c", "d"], values, texts, frozenset({(0, 1)}))
    bars = charts.draw_bars([BarPanel("t", ["a", "b"], {"accuracy": [0.5, 0.4]})], "accuracy")
    grids = draw_table(panel), draw_matrices([panel])
    for figure in (drawn(curve("a", 0.5), title="t"), bars, *grids):
        svg = theme_svg(render(figure, "svg").decode(), "label")
        assert svg.startswith("<svg ") and "var(--fg)" in svg and "matplotlib" not in svg
        assert not set(re.findall("#[0-9a-f]{6}\\b", re.sub('base64[^"]*', "", svg)))


def test_a_small_entry_of_a_matrix_is_seen(tmp_path: Path) -> None:
    colours = []
    for value in (0.0, 0.3, -0.3):
        panel = GridPanel("", (), (), np.full((2, 2), value))
        save_figure(draw_matrices([panel]), tmp_path / "one.png")
        image = Image.open(tmp_path / "one.png").convert("RGB")
        colours.append(image.getpixel((image.size[0] // 2, image.size[1] // 2)))
    none, blue, orange = colours
    assert min(none) > 250 and blue[0] < 200 < blue[2] and orange[2] < 200 < orange[0]


@pytest.mark.parametrize("kind", ["png", "svg", "pdf"])
def test_files_drawn_by_threads_at_once_are_the_same(tmp_path: Path, kind: str) -> None:
    before = dict(matplotlib.rcParams), pyplot.get_fignums()

    def draw(name: str) -> bytes:
        save_figure(drawn(curve("a", 0.9)), tmp_path / f"{name}.{kind}")
        return (tmp_path / f"{name}.{kind}").read_bytes()

    alone = draw("alone")
    with ThreadPoolExecutor(2) as pool:
        assert set(pool.map(draw, map(str, range(4)))) == {alone}
    # No pyplot figure is opened, and no setting changed.
    assert (dict(matplotlib.rcParams), pyplot.get_fignums()) == before


def test_a_figure_is_laid_out_once_and_then_drawn_once_a_format(tmp_path: Path) -> None:
    draws = []

    class Counted(Artist):
        def draw(self, renderer: object) -> None:
            draws.append(renderer)

        def get_window_extent(self, renderer: object = None) -> Bbox:
            return Bbox.null()

    figure = drawn(curve("fedavg", 0.5))
    figure.add_artist(Counted())
    save_figure(figure, tmp_path / "a.png")
    after_first = len(draws)
    for number, suffix in enumerate([".svg", ".pdf", ".png"], 1):
        save_figure(figure, tmp_path / f"b{suffix}")
        assert len(draws) == after_first + number


def test_drawing_needs_neither_torch_nor_ray() -> None:
    loaded = "print({'torch', 'ray', 'matplotlib.pyplot'} & set(sys.modules))"
    code = f"import sys, flray.drawing.charts, flray.drawing.grids; {loaded}"
    assert python(code).stdout == "set()\n"


def test_a_forest_has_a_row_for_each_pair_and_open_dots_where_nothing_is_decided() -> None:
    rows = [Interval("a – b", 5.4, 3.1, 7.7, True), Interval("c – b", -0.3, -2.1, 1.5, False)]
    (axes,) = charts.draw_forest([ForestPanel("mnist", rows)], "points").axes
    assert [text.get_text() for text in axes.get_yticklabels()] == ["c – b", "a – b"]
    zero, _, low, interval, high = axes.lines
    assert list(zero.get_xdata()) == [0.0, 0.0] and list(interval.get_xdata()) == [3.1, 7.7]
    assert (low.get_xdata()[0], high.get_xdata()[0]) == (-0.3, 5.4)
    assert low.get_markerfacecolor() == "none" and high.get_markerfacecolor() != "none"


def test_ranks_stand_on_a_line_with_their_names_and_bars(tmp_path: Path) -> None:
    together = [(0, 1), (1, 2), (2, 3)]
    figure = charts.draw_ranks(("a", "b", "c", "d"), (1.2, 2.1, 2.9, 3.8), 1.5, together)
    (axes,) = figure.axes
    texts = [text.get_text().strip() for text in axes.texts]
    assert texts[-4:] == ["a 1.20", "b 2.10", "c 2.90", "d 3.80"]
    assert "critical difference 1.50" in texts
    assert [one.get_linewidth() for one in axes.lines].count(3.5) == 3
    untested = charts.draw_ranks(("a", "b"), (1.0, 2.0), math.inf, [(0, 1)])
    assert "inf" not in "".join(text.get_text() for text in untested.axes[0].texts)
    save_figure(figure, tmp_path / "ranks.png")
    assert len(pixels(tmp_path / "ranks.png", BLUE)[0]) > 100
