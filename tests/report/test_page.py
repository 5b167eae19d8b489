from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from flray.reporting import charts, make
from flray.reporting.figures import figures
from flray.results.load import load_folder

VOID = {"meta", "img", "br"}


class Balance(HTMLParser):
    """Refuses tags that are not closed in order, and collects what is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.loaded += [value or "" for name, value in attrs if name in ("src", "href")]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_else(sweep: Path, tmp_path: Path) -> None:
    made = make(sweep, tmp_path / "report")
    assert [path.name for path in made.files] == ["report.md", "report.tex", "report.html"]
    text = made.files[2].read_text(encoding="utf-8")
    parser = Balance()
    parser.feed(text)
    assert parser.open == []
    assert (
        all(value.startswith("data:image/png;base64,") for value in parser.loaded) and parser.loaded
    )
    assert (
        not re.search(r"https?://(?!www\.w3\.org)", text)
        and "<script" not in text
        and "@import" not in text
    )
    assert "prefers-color-scheme:dark" in text and "@media print" in text
    assert "nan" not in re.sub(r"base64,[^\"]*", "", text).lower().replace("covariance", "")


def test_every_figure_that_was_tracked_is_there_and_no_other(sweep: Path) -> None:
    titles = [title for title, _, _ in figures(load_folder(sweep))]
    assert titles == [
        "Learning curves",
        "Accuracy against bytes",
        "Clients",
        "Who holds what",
        "Aggregation weights of FedSKC (GDA)",
        "Personal and global models, layer by layer",
        "Correlation between classes",
        "Features",
    ]
    for trial in sweep.glob("trials/*"):
        for file in trial.glob("p*"):
            file.unlink()
    titles = [title for title, _, _ in figures(load_folder(sweep))]
    assert titles == [
        "Learning curves",
        "Accuracy against bytes",
        "Clients",
        "Aggregation weights of FedSKC (GDA)",
    ]


def test_the_worst_client_is_marked(sweep: Path) -> None:
    (clients,) = [
        content for title, content, _ in figures(load_folder(sweep)) if title == "Clients"
    ]
    bars = re.findall(r'<rect class="f(\d)"[^>]*><title>(\w): ([\d.]+) %', clients)
    assert bars[:2] == [
        ("0", "a", "75.00"),
        ("1", "b", "65.00"),
    ]  # the first seed's: both are of one domain
    for path in sweep.glob("trials/*/partition.json"):
        path.write_text(path.read_text().replace('"domain": "d"', '"domain": "e"', 1))
    (clients,) = [
        content for title, content, _ in figures(load_folder(sweep)) if title == "Clients"
    ]
    bars = re.findall(r'<rect class="f(\d)"[^>]*><title>(\w): ([\d.]+) %', clients)
    assert bars[:2] == [("0", "a", "76.00"), ("1", "b", "66.00")]


def test_of_a_loss_the_worst_client_has_the_most(sweep: Path) -> None:
    source = load_folder(sweep)
    for trial in source.trials:
        trial.metric = "global/common/loss"
        for client in "ab":
            trial.history[f"global/local/loss/client/{client}"] = 3.0 if client == "a" else 2.0
    (clients,) = [content for title, content, _ in figures(source) if title == "Clients"]
    assert re.findall(r'<rect class="f(\d)"[^>]*><title>(\w): (\d)<', clients)[:2] == [
        ("1", "a", "3"),
        ("0", "b", "2"),
    ]


def test_a_line_is_broken_where_a_round_is_missing(sweep: Path) -> None:
    source = load_folder(sweep)
    for trial in source.trials:
        trial.history.loc[1, "fedskc/e_k/client/a"] = float("nan")
    (weights,) = [
        content for title, content, _ in figures(source) if title.startswith("Aggregation weights")
    ]
    first = weights[: weights.index("</svg>", weights.index("plots"))]
    lines = re.findall(r'<polyline[^>]*points="([^"]*)"><title>(\w)<', first)
    assert [(name, len(points.split())) for points, name in lines] == [("a", 1), ("a", 2), ("b", 4)]


def test_a_setting_without_traffic_is_not_in_the_legend_of_bytes(sweep: Path) -> None:
    source = load_folder(sweep)
    for trial in source.trials:
        if trial.setting["arms.modules"] == "none":
            trial.history[["bytes/up", "bytes/down"]] = 0.0
    ((content, caption),) = [
        (c, t) for title, c, t in figures(source) if title == "Accuracy against bytes"
    ]
    legend = content[: content.index("</ul>")]
    assert "full" in legend and "none" not in legend and caption.endswith("nothing to draw: none.")


def test_what_was_not_tracked_is_said(sweep: Path, tmp_path: Path) -> None:
    assert "tracking.features=true" not in make(sweep, tmp_path / "a").files[2].read_text(
        encoding="utf-8"
    )
    for path in sweep.glob("trials/*/portrait*"):
        path.unlink()
    assert "tracking.features=true" in make(sweep, tmp_path / "b").files[2].read_text(
        encoding="utf-8"
    )


@pytest.mark.parametrize(
    ("low", "high", "found"),
    [
        (0.0, 1.0, [0, 0.2, 0.4, 0.6, 0.8, 1.0]),
        (1.0, 4.0, [1, 2, 3, 4]),
        (0.0, 0.031, [0, 0.01, 0.02, 0.03]),
        (3.0, 3.0, [3.0]),
    ],
)
def test_ticks_are_round_numbers(low: float, high: float, found: list[float]) -> None:
    assert charts.ticks(low, high) == pytest.approx(found)


def test_points_lie_where_they_should() -> None:
    plot = charts.Plot((0, 10), (0, 1), width=200, height=100)
    (x0, y0), (x1, y1), (half, _) = plot.at(0, 0), plot.at(10, 1), plot.at(5, 0)
    assert half == pytest.approx((x0 + x1) / 2) and y1 < y0


def test_long_numbers_of_an_axis_have_room() -> None:
    plot = charts.Plot((0, 1), (0.1249970, 0.1250005))
    starts = [
        float(x) - 6.3 * len(word)
        for x, word in re.findall(r'text-anchor="end" x="([\d.]+)" y="[\d.]+">([^<]*)<', plot.svg())
    ]
    assert len(starts) >= 3 and min(starts) >= 0


def test_whatever_a_name_holds_it_is_text() -> None:
    plot = charts.Plot((0, 1), (0, 1), title='<b>"x" & y')
    plot.line([(0, 0), (1, 1)], 0, "</svg>")
    assert "<b>" not in plot.svg() and plot.svg().count("</svg>") == 1


def test_matrices_are_pictures_of_their_size() -> None:
    assert 'src="data:image/png;base64,' in charts.matrix(
        np.eye(3), "m"
    ) and 'alt="m"' in charts.matrix(np.eye(3), "m")
