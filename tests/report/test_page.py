from __future__ import annotations

import html
import itertools
import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

from flray.cli import display
from flray.drawing.grids import GridPanel
from flray.files.csv_files import read_csv
from flray.reporting import make, panels
from flray.reporting.sections import create_sections
from flray.results.build_table import build_table
from flray.results.load import load_folder
from flray.results.measures import group_trials
from flray.results.result_set import ResultSet
from flray.results.sweep import SweepResult

VOID = {"meta", "img", "br"}
LOADING = ("src", "href", "xlink:href")


class Balance(HTMLParser):
    """Refuses tags that are not closed in order, and collects what is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        self.loaded += [
            value or "" for name, value in attrs if name in ("src", "href", "xlink:href")
        ]

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loaded += [value or "" for name, value in attrs if name in LOADING]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_and_needs_nothing_else(sweep: Path, tmp_path: Path) -> None:
    made = make(sweep, tmp_path / "report")
    assert [path.name for path in made.files] == [
        "report.md",
        "report.tex",
        "report.html",
        "comparisons.csv",
    ]
    pairs = read_csv(made.files[3])
    assert list(pairs["place"]) == ["CIFAR-10", "CIFAR-100"]
    assert float(pairs["difference"][0]) == pytest.approx(-11.0)
    text = made.files[2].read_text(encoding="utf-8")
    parser = Balance()
    parser.feed(text)
    assert parser.open == []
    assert all(value.startswith(("data:image/png;base64,", "#")) for value in parser.loaded)
    assert parser.loaded and "var(--c0)" in text
    names = {path.name for path in (tmp_path / "report" / "figures").iterdir()}
    assert {"curves.svg", "curves.pdf", "curves.png", "differences.pdf", "ranks.svg"} <= names
    assert names == {path.name for path in made.pictures}
    assert set(made.figures) == {path.stem for path in made.pictures}
    assert made.figures["curves"].axes[0].get_xlabel() == "round"
    shown = made._repr_html_()
    parser.feed(shown)
    assert parser.open == []
    assert all(line in html.unescape(shown) for line in made.table.conclusions)
    assert all(label in html.unescape(shown) for label in made.table.rows)
    assert (
        not re.search(r"https?://(?!www\.w3\.org)", text)
        and "<script" not in text
        and "@import" not in text
    )
    assert "prefers-color-scheme:dark" in text and "@media print" in text
    assert "nan" not in re.sub(r"base64,[^\"]*", "", text).lower().replace("covariance", "")


def test_a_sweep_ends_with_its_picture_and_its_page(
    sweep: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    display.show_places(SweepResult(sweep))
    assert "report" not in capsys.readouterr().out.rpartition("sweep: ")[2]
    make(sweep, sweep / "report")
    display.show_places(SweepResult(sweep))
    last = capsys.readouterr().out.splitlines()[-2:]
    figure, page = sweep / "report/figures/differences.png", sweep / "report/report.html"
    assert last == [
        f"picture: {figure} (others beside it, each also as SVG and PDF)",
        f"report: {page}",
    ]
    assert figure.is_file() and page.is_file()


def titles(sweep: Path) -> list[str]:
    return [section.title for section in create_sections(load_folder(sweep))]


def test_every_section_that_was_tracked_is_there_and_no_other(sweep: Path) -> None:
    assert titles(sweep) == [
        "Learning curves",
        "Accuracy against bytes",
        "Clients",
        "Samples of each client",
        "Aggregation weights of FedSKC (GDA)",
        "Personal and global models, layer by layer",
        "Correlation between classes",
        "Features",
    ]
    for trial in sweep.glob("trials/*"):
        for file in trial.glob("p*"):
            file.unlink()
    assert titles(sweep) == [
        "Learning curves",
        "Accuracy against bytes",
        "Clients",
        "Aggregation weights of FedSKC (GDA)",
    ]


def test_a_partition_is_titled_by_what_makes_it(sweep: Path) -> None:
    source = load_folder(sweep)
    for number, trial in enumerate(source.trials):
        trial.setting |= {"local.lr": 0.05 + number % 2, "partition.alpha": 0.5 + number % 2}
    sections = create_sections(source)
    (found,) = (one for one in sections if one.title == "Samples of each client")
    title = next(iter(found.figures.values())).axes[0].get_title("left")
    assert "alpha=0.5" in title and "0.05" not in title


def first_grid(source: ResultSet) -> GridPanel:
    return next(panels.client_values(group_trials(source)))


def test_comparisons_have_sections_where_they_are_given(sweep: Path) -> None:
    source = load_folder(sweep)
    studies = build_table(source).studies
    first, second = itertools.islice(create_sections(source, studies), 2)
    assert (first.title, second.title) == ("Differences between settings", "Mean ranks")
    (one, other) = first.figures["differences"].axes
    assert [text.get_text() for text in one.get_yticklabels()] == ["full – none"]
    assert one.lines[2].get_xdata()[0] == pytest.approx(11.0)
    assert one.get_xlabel() == "how much better the first is, points"
    assert (one.get_title("left"), other.get_title("left")) == ("CIFAR-10", "CIFAR-100")
    assert next(section.title for section in create_sections(source)) == "Learning curves"


def test_every_seed_has_a_thin_line_under_the_mean(sweep: Path) -> None:
    panel = next(panels.learning_curves(group_trials(load_folder(sweep))))
    assert np.array(panel.lines[0].each)[:, -1] == pytest.approx([0.70, 0.72])


def test_the_worst_client_is_marked(sweep: Path) -> None:
    grid = first_grid(load_folder(sweep))
    assert (grid.rows, grid.columns, grid.marked) == (
        ["none", "full"],
        ["a", "b"],
        {(0, 1), (1, 1)},
    )
    assert grid.texts[0] == ["75.0", "65.0"]  # the first seed's: both are of one domain
    for path in sweep.glob("trials/*/partition.json"):
        path.write_text(path.read_text().replace('"domain": "d"', '"domain": "e"', 1))
    assert first_grid(load_folder(sweep)).texts[0] == ["76.0", "66.0"]


def test_of_a_loss_the_worst_client_has_the_most(sweep: Path) -> None:
    source = load_folder(sweep)
    for trial in source.trials:
        trial.metric = "global/common/loss"
        for client in "ab":
            trial.history[f"global/local/loss/client/{client}"] = 3.0 if client == "a" else 2.0
    grid = first_grid(source)
    assert (grid.texts[0], grid.marked) == (["3", "2"], {(0, 0), (1, 0)})


def test_a_line_is_broken_where_a_round_is_missing(sweep: Path) -> None:
    source = load_folder(sweep)
    for trial in source.trials:
        trial.history.loc[1, "fedskc/e_k/client/a"] = float("nan")
    panel = next(panels.client_curves(group_trials(source), "fedskc/e_k"))
    assert [line.name for line in panel.lines] == ["a", "b"]
    assert np.isnan(panel.lines[0].y).tolist() == [False, True, False, False]
    assert not np.isnan(panel.lines[1].y).any()


def test_a_setting_without_traffic_is_not_in_the_legend_of_bytes(sweep: Path) -> None:
    source = load_folder(sweep)
    for trial in source.trials:
        if trial.setting["arms.modules"] == "none":
            trial.history[["bytes/up", "bytes/down"]] = 0.0
    (section,) = [s for s in create_sections(source) if s.title == "Accuracy against bytes"]
    (legend,) = section.figures["traffic"].legends
    assert [text.get_text() for text in legend.get_texts()] == ["full"]
    assert section.caption.endswith("nothing to draw: none.")


@pytest.mark.slow
def test_what_was_not_tracked_is_said(sweep: Path, tmp_path: Path) -> None:
    assert "tracking.features=true" not in make(sweep, tmp_path / "a").files[2].read_text(
        encoding="utf-8"
    )
    for path in sweep.glob("trials/*/portrait*"):
        path.unlink()
    assert "tracking.features=true" in make(sweep, tmp_path / "b").files[2].read_text(
        encoding="utf-8"
    )
