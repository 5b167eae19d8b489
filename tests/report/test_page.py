"""The page of a report, its figures and its names: what they show, that nothing else is needed, that none is markup."""

import html
import io
import itertools
import math
import re
import resource
import tempfile
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.console import Console

import flray
from flray import registry
from flray.cli import display
from flray.drawing.grids import GridPanel
from flray.errors import FlrayError, one_line
from flray.records import Journal, directory
from flray.reporting import sections
from flray.reporting.build import GREEK, make, markdown, render_latex, render_page, render_summary
from flray.reporting.sections import create_sections
from flray.results import ResultSet
from flray.results.choices import Choices, choices
from flray.results.costs import group_trials
from flray.results.formatting import csv_text, read_csv, terminal
from flray.results.load import load_folder
from flray.results.study import Studies, Study
from flray.results.sweep import SweepResult, build_table
from flray.results.table import Cell, Column, Table
from flray.tuning.sweep import finish
from tests.helpers import Settings, python
from tests.tuning.helpers import begun, leave

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
        self.handle_startendtag(tag, attrs)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.loaded += [value or "" for name, value in attrs if name in LOADING]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_is_whole_by_itself(sweep: Path, capsys: pytest.CaptureFixture[str]) -> None:
    display.show_places(SweepResult(sweep))
    assert "report" not in capsys.readouterr().out.rpartition("sweep: ")[2]
    kept = sweep / "kept.csv"
    with pytest.raises(FlrayError, match="--reference"):
        flray.report(sweep, keep=kept, reference="nobody")
    assert not kept.exists()
    made = flray.report(sweep, to=str(sweep / "report"), keep=str(kept))
    names = ["report.md", "report.tex", "report.html", "comparisons.csv", "kept.csv"]
    assert [path.name for path in made.files][:5] == names
    pairs = read_csv(made.files[3])
    assert list(pairs["place"]) == ["CIFAR-10", "CIFAR-100"]
    assert float(pairs["difference"][0]) == pytest.approx(-11.0)
    text = made.files[2].read_text(encoding="utf-8")
    parser = Balance()
    parser.feed(text)
    assert parser.open == []
    assert all(value.startswith(("data:image/png;base64,", "#")) for value in parser.loaded)
    assert parser.loaded and "var(--c0)" in text
    figures = {path.name for path in (sweep / "report" / "figures").iterdir()}
    assert {"curves.svg", "curves.pdf", "curves.png", "differences.pdf", "ranks.svg"} <= figures
    assert figures == {path.name for path in made.pictures}
    assert set(made.figures) == {path.stem for path in made.pictures}
    assert made.figures["curves"].axes[0].get_xlabel() == "round"
    shown = made._repr_html_()
    parser.feed(shown)
    assert parser.open == []
    assert all(line in html.unescape(shown) for line in [*made.table.conclusions, *made.table.rows])
    assert not re.search(r"https?://(?!www\.w3\.org)", text)
    assert "<script" not in text and "@import" not in text
    assert "prefers-color-scheme:dark" in text and "@media print" in text
    assert "nan" not in re.sub(r"base64,[^\"]*", "", text).lower().replace("covariance", "")
    assert "tracking.features=true" not in text
    display.show_places(SweepResult(sweep))
    figure, page = sweep / "report/figures/differences.png", sweep / "report/report.html"
    shown = f"picture: {figure} (others beside it, each also as SVG and PDF)", f"report: {page}"
    assert capsys.readouterr().out.splitlines()[-2:] == [*shown]
    assert figure.is_file() and page.is_file()


@pytest.mark.slow
def test_a_full_disk_leaves_the_tables_and_pages_of_before(sweep: Path) -> None:
    with Journal(sweep / directory.JOURNAL) as journal:
        finish(sweep, journal)
        make(sweep, sweep / "report")
        before = {path: path.read_bytes() for path in sweep.rglob("*") if path.is_file()}
        _, most = resource.getrlimit(resource.RLIMIT_FSIZE)
        for write in (lambda: finish(sweep, journal), lambda: make(sweep, sweep / "report")):
            resource.setrlimit(resource.RLIMIT_FSIZE, (10, most))
            try:
                with pytest.raises((OSError, FlrayError), match="too large"):
                    write()
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        assert {path: path.read_bytes() for path in sweep.rglob("*") if path.is_file()} == before


def test_every_section_that_was_tracked_is_there_and_no_other(sweep: Path) -> None:
    titles = [section.title for section in create_sections(load_folder(sweep))]
    layers = "Personal and global models, layer by layer"
    models = [layers, "Correlation between classes", "Features"]
    weights = "Aggregation weights of FedSKC (GDA)"
    first = ["Learning curves", "Metric against bytes", "Clients"]
    assert titles == [*first, "Samples of each client", weights, *models]
    for file in sweep.glob("trials/*/p*"):
        file.unlink()
    source = load_folder(sweep)
    assert [section.title for section in create_sections(source)] == [*first, weights]
    page = render_page(source, build_table(source), (), (), {})
    assert "tracking.features=true" in page  # what was not tracked is said


EQUAL = """
import numpy as np
from flray.reporting import sections
labels = np.tile([0, 1], 12)
print(sections._embed({"features": np.zeros((24, 4)), "labels": labels}, "").points.max())
"""


def test_features_that_are_all_equal_are_one_point() -> None:
    assert python(EQUAL).stdout == "0.0\n"  # in a process of its own: scikit-learn's would crash


def test_a_partition_is_titled_by_what_makes_it(source: ResultSet) -> None:
    for number, trial in enumerate(source.trials):
        trial.setting |= {"local.lr": 0.05 + number % 2, "partition.alpha": 0.5 + number % 2}
    (found,) = (one for one in create_sections(source) if one.title == "Samples of each client")
    title = next(iter(found.figures.values())).axes[0].get_title("left")
    assert "alpha=0.5" in title and "0.05" not in title


def first_grid(source: ResultSet) -> GridPanel:
    return next(sections.client_values(group_trials(source)))


def test_comparisons_have_sections_where_they_are_given(source: ResultSet) -> None:
    first, second = itertools.islice(create_sections(source, build_table(source).studies), 2)
    assert (first.title, second.title) == ("Differences between settings", "Mean ranks")
    assert next(create_sections(source)).title == "Learning curves"
    (one, other) = first.figures["differences"].axes
    assert [text.get_text() for text in one.get_yticklabels()] == ["full – none"]
    assert one.lines[2].get_xdata()[0] == pytest.approx(11.0)
    assert one.get_xlabel() == "how much better the first is, points"
    assert (one.get_title("left"), other.get_title("left")) == ("CIFAR-10", "CIFAR-100")
    # Every seed has a thin line under the mean.
    panel = next(sections.lines(group_trials(source), sections.learning_curve))
    assert np.array(panel.lines[0].each)[:, -1] == pytest.approx([0.70, 0.72])


def test_a_difference_that_only_seems_better_is_drawn_open(source: ResultSet) -> None:
    base = {0: 68.0, 1: 71.0, 2: 70.0}
    for gain, filled in ((2, False), (20, True)):  # one more seed would undo the first
        first = {seed: value + gain + seed / 10 for seed, value in base.items()}
        studies = Studies([Study("", "global/common/accuracy", {"a": first, "b": base})])
        (pair,) = studies.each[0].differences
        assert pair.decided and pair.sure == filled
        found = next(create_sections(source, studies)).figures["differences"].axes[0].lines[-1]
        assert (found.get_markerfacecolor() != "none") == filled


def test_the_worst_client_is_marked(sweep: Path) -> None:
    grid = first_grid(source := load_folder(sweep))
    assert (grid.rows, grid.columns) == (["none", "full"], ["a", "b"])
    assert grid.marked == {(0, 1), (1, 1)}
    assert grid.texts[0] == ["75.0", "65.0"]  # the first seed's: both are of one domain
    for path in sweep.glob("trials/*/partition.json"):
        path.write_text(path.read_text().replace('"domain": "d"', '"domain": "e"', 1))
    assert first_grid(load_folder(sweep)).texts[0] == ["76.0", "66.0"]
    for trial in source.trials:  # of a loss the worst client has the most
        trial.metric = "global/common/loss"
        for client in "ab":
            trial.history[f"global/local/loss/client/{client}"] = 3.0 if client == "a" else 2.0
    grid = first_grid(source)
    assert (grid.texts[0], grid.marked) == (["3", "2"], {(0, 0), (1, 0)})


def test_a_line_is_broken_where_a_round_is_missing(source: ResultSet) -> None:
    for trial in source.trials:
        trial.history.loc[1, "fedskc/e_k/client/a"] = float("nan")
    panel = next(sections.client_curves(group_trials(source), "fedskc/e_k"))
    assert [line.name for line in panel.lines] == ["a", "b"]
    assert np.isnan(panel.lines[0].y).tolist() == [False, True, False, False]
    assert not np.isnan(panel.lines[1].y).any()


def test_a_run_that_ended_before_others_keeps_its_last_value(source: ResultSet) -> None:
    short, long = next(iter(next(iter(group_trials(source).values())).values()))
    short.history.drop(index=short.history.index[2:], inplace=True)
    ends = [one.history[one.metric].iloc[-1] for one in (short, long)]
    for one in (short, long):
        one.history[["bytes/up", "bytes/down"]] = 1e6
    for status, wanted in (("finished", np.mean(ends)), ("failed", ends[1])):
        short.status = status
        line = sections.learning_curve("", [short, long])
        assert list(line.x) == list(long.history["round"]) and line.y[-1] == pytest.approx(wanted)
    short.status = "finished"
    line = sections.traffic_curve("", [short, long])
    assert line is not None and line.x[-1] == len(short.history) + len(long.history)


def test_a_setting_without_traffic_is_not_in_the_legend_of_bytes(source: ResultSet) -> None:
    for trial in source.trials:
        if trial.setting["arms.modules"] == "none":
            trial.history[["bytes/up", "bytes/down"]] = 0.0
    (section,) = [s for s in create_sections(source) if s.title == "Metric against bytes"]
    (legend,) = section.figures["traffic"].legends
    assert [text.get_text() for text in legend.get_texts()] == ["full"]
    assert section.caption.endswith("nothing to draw: none.")


RATES, PULLS = (0.01, 0.1, 1.0), (0.1, 0.5, 1.0)


def tried() -> Choices:
    names = ("local.lr", "algorithm.mu")
    pairs = [*itertools.product(RATES, PULLS)]
    settings = [dict(zip(names, pair, strict=True)) for pair in pairs]
    scores = [80 - 10 * abs(math.log10(lr) + 1) - mu for lr, mu in pairs]
    return Choices("fedprox", "personal/validation/accuracy", names, settings, np.array(scores))


def test_a_heat_map_of_a_grid_shows_its_scores_and_marks_the_best() -> None:
    (figure,) = sections.heat_maps([tried()])
    (axes,) = figure.axes
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("mu", "local.lr")
    assert [text.get_text() for text in axes.get_xticklabels()] == ["0.1", "0.5", "1"]
    shown = {text.get_position(): text.get_text() for text in axes.texts}
    assert shown[0, 1] == "79.9" and shown[2, 0] == "69"
    assert [text.get_text() for text in axes.texts if text.get_weight() == "bold"] == ["79.9"]
    whole = tried()  # combinations that were not all run have none
    part = replace(whole, settings=whole.settings[1:], scores=whole.scores[1:])
    assert list(sections.heat_maps([part])) == []


def test_lists_are_settings_like_others() -> None:
    plain = tried()
    lists = [{**one, "algorithm.mu": [one["algorithm.mu"]]} for one in plain.settings]
    (of_lists,), (of_numbers,) = replace(plain, settings=lists).grids(), plain.grids()
    assert of_lists[2].tolist() == of_numbers[2].tolist()
    assert replace(plain, settings=lists).importance().keys() == plain.importance().keys()


def test_importance_is_what_moves_the_score() -> None:
    """Of a sum of two parts the shares are those of the parts' variances, which are known."""
    draws = np.random.default_rng(0).uniform(size=(200, 3))
    settings = [dict(zip("abc", map(float, row), strict=True)) for row in draws]
    found = Choices("m", "x", ("a", "b", "c"), settings, 3 * draws[:, 0] + draws[:, 1]).importance()
    assert list(found)[:2] == ["a", "b"] and sum(found.values()) == pytest.approx(1.0)
    assert found["a"] == pytest.approx(0.9, abs=0.04) and found["c"] < 0.02  # 9 : 1
    assert list(sections.importances([tried()])) == []  # nine settings are too few
    same = Choices("m", "x", ("a", "b", "c"), settings, np.full(200, 80.0))
    assert list(sections.importances([same])) == []  # nothing moves it


def test_settings_of_a_sweep_are_grouped_by_what_is_compared(source: ResultSet) -> None:
    assert choices(source) == []  # arms are compared, not chosen
    for trial in source.trials:
        trial.setting["local.lr"] = 0.1 if "100" in str(trial.setting.pop("arms.data")) else 0.3
    first, second = choices(replace(source))
    assert [one.name for one in (first, second)] == ["none", "full"]
    assert first.columns == second.columns == ("local.lr",)
    rates = [one["local.lr"] for one in first.settings]
    found = dict(zip(rates, first.scores, strict=True))
    assert found == pytest.approx({0.3: 71.0, 0.1: 51.0})


@pytest.fixture
def phased(source: ResultSet) -> ResultSet:
    """The sweep with seconds by phase, and a client that is served badly."""
    for trial in source.trials:
        trial.history["time/train"] = 1.0 + trial.seed
        trial.history["time/evaluate"] = 0.25
        trial.history["time/round"] = 2.5
        trial.history["global/local/accuracy/client/c"] = 0.1
    return source


def test_seconds_by_phase_add_up_and_fairness_begins_with_the_worst(phased: ResultSet) -> None:
    groups = group_trials(phased)
    panel = next(sections.phase_seconds(groups))
    assert list(panel.names) == ["none", "full"]
    found = {name: values[0] for name, values in panel.parts.items()}
    assert found == pytest.approx({"train": 6.0, "evaluate": 1.0, "other": 3.0})  # four rounds
    line = next(sections.lines(groups, sections.client_quantile)).lines[0]
    assert list(line.x) == [0, 50, 100]
    assert list(line.y) == pytest.approx([10.0, 66.0, 76.0])  # seeds: 65 and 75, 67 and 77
    each = [pytest.approx([10, 65, 75]), pytest.approx([10, 67, 77])]
    assert [list(one) for one in line.each] == each


def test_a_profile_is_a_step_at_every_distance_from_the_best() -> None:
    first = {"a": {0: 90.0, 1: 80.0}, "b": {0: 86.0, 1: 81.0}}
    metric = "global/common/accuracy"
    (panel,) = sections.profiles(Studies([Study("x", metric, first), Study("y", metric, first)]))
    a, b = panel.lines
    assert list(a.x) == pytest.approx([0, 1, 1, 4.2, 4.2]) and a.name == "a"
    assert list(b.x) == pytest.approx([0, 4, 4, 4.2, 4.2])
    assert list(a.y) == list(b.y) == [0.5, 0.5, 1, 1, 1]


def test_they_are_sections_of_the_report(phased: ResultSet) -> None:
    for trial in phased.trials:
        trial.setting["local.lr"] = 0.1 if "100" in str(trial.setting.pop("arms.data")) else 0.3
        trial.setting["algorithm.mu"] = 0.5
    titles = [section.title for section in create_sections(phased)]
    assert {"Seconds by phase", "Fairness over clients"} <= set(titles)
    for trial, number in zip(phased.trials, range(8), strict=True):
        trial.setting["local.lr"], trial.setting["algorithm.mu"] = number // 4, number // 2 % 2
        trial.setting["arms.modules"] = "none"
    again = {section.title: list(section.figures) for section in create_sections(replace(phased))}
    assert again["Grids of two settings"] == ["grid"]


_NAMES = (
    "high [/x]¦low [red]¦=1+1¦+1¦-1¦@SUM(A1)¦\tx¦'=1¦''+¦<script>alert(1)</script>¦a|b¦`code`"
    "¦**bold**¦_it_ self¦a\nb¦\x1b[31mred¦100 %¦a_b¦c:\\x¦{x}¦$x^2$¦~a~¦1. one¦- item¦&amp;¦a--b"
    '¦:smile:¦![x](http://y)¦\u202eabc¦é 日本 ☃¦#1¦"quoted"¦[[x]]¦*star¦] x¦a\\¦<br>¦--- ---'
    '¦="x"¦\ud800'
)
EVIL = _NAMES.split("¦")
SETTABLE = [n for n in EVIL if not re.search("[\x00-\x1f\ud800-\udfff]", n)]  # as an arm's name


def examples(test: Any) -> Any:
    for name in EVIL:
        test = example(name)(test)
    return settings(max_examples=60, deadline=None)(given(st.text(min_size=1, max_size=12))(test))


def table_of(name: str) -> Table:
    rows = {name: [Cell({0: 1.0})], "other": [Cell({0: 2.0})]}
    return Table(name, name, [Column((name,), "accuracy")], rows, notes=[name, f"failed: {name}"])


TABLE = {"table", "thead", "tbody", "tr", "th", "td", "ul", "li", "p", "strong"}


class Texts(HTMLParser):
    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.cells: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.tags.add(tag)
        self.cells.append("")

    def handle_data(self, data: str) -> None:
        if self.cells:
            self.cells[-1] += data


@examples
def test_the_terminal_shows_a_name_as_it_is(name: str) -> None:
    out = io.StringIO()
    Console(file=out, width=400, force_terminal=False).print(terminal(table_of(name), ()))
    lines = [line.rstrip() for line in out.getvalue().split("\n")]
    assert f"- {one_line(name)}".rstrip() in lines
    assert f"- failed: {one_line(name)}".rstrip() in lines
    assert sum(one_line(name).strip() in line for line in lines) >= 4
    assert all(line == one_line(line) for line in lines)


@examples
def test_markdown_shows_a_name_as_it_is(name: str) -> None:
    reader = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    shown = Texts(reader.render(markdown(table_of(name), ())))
    assert shown.tags <= TABLE | {"h2"}
    found = [cell.strip() for cell in shown.cells]
    assert found.count(one_line(name).strip()) >= 4, found  # title, heading, head, row, note


@examples
def test_html_shows_a_name_as_it_is(name: str) -> None:
    shown = Texts(render_summary(table_of(name)))
    assert shown.tags <= TABLE | {"div", "span"}
    wanted = one_line(name).strip()  # of a name of spaces nothing is left to be counted
    assert not wanted or [cell.strip() for cell in shown.cells].count(wanted) == 3


SIGNS = {"backslash": "\\", "asciitilde": "~", "asciicircum": "^", "bar": "|", "asciigrave": "`"}
COMMANDS = {
    **{rf"\text{name}{{}}": c for name, c in {**SIGNS, "endash": "–"}.items()},
    **{rf"$\{name}$": letter for letter, name in {**GREEK, "±": "pm", "≥": "geq"}.items()},
    **{f"${c}$": c for c in "<>"},
    **{f"{{{c}}}": c for c in "[]*"},
    **{f"\\{c}": c for c in "&%$#_{}"},
    "-{}-": "--",
}
COMMAND = re.compile("|".join(map(re.escape, sorted(COMMANDS, key=len, reverse=True))))


@examples
def test_latex_sets_a_name_as_it_is(name: str) -> None:
    # A method is set as papers write it. Hypothesis draws texts of the code too.
    assume(name.partition(" ")[0] not in registry.algorithms.names())
    lines = render_latex(table_of(name)).split("\n")
    assert all(line == one_line(line) for line in lines)
    rows = [line for line in lines if line.endswith(r"\\") and "1.00" in line]
    assert len(rows) == 1
    cell = rows[0].removesuffix(r" & 1.00 \\")
    read = COMMAND.sub(lambda found: COMMANDS[found[0]], cell)  # what LaTeX sets
    assert one_line(name) in (read, read.replace("{}", ""))
    assert not set(COMMAND.sub("", cell)) & set("\\&%$#_{}~^|`[]*")
    assert f"% {one_line(name)}" in [line for line in lines if line.startswith("% ")]


@examples
def test_a_spreadsheet_computes_no_name_and_reading_gives_it_back(name: str) -> None:
    if "\0" in name or any("\ud800" <= c <= "\udfff" for c in name):
        return  # neither can be in a file of text
    frame = pd.DataFrame({"name": [name, "x"], name + " ": [name, "y"], "number": [-1.5, 2]})
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "x.csv"
        path.write_text(csv_text(frame), encoding="utf-8", newline="")
        raw, back = pd.read_csv(path, dtype=str, keep_default_na=False), read_csv(path)
    texts = [*raw.columns, *raw["name"]]
    assert not [text for text in texts if re.match("[=+\\-@\t\r\n＝＋－＠]", text)]
    name = name.replace("\r", "\\r")
    assert list(back["name"]) == [name, "x"] and list(back) == ["name", name + " ", "number"]
    assert list(back["number"]) == ["-1.5", "2.0"]


def finished(content: Settings, folder: Path) -> SweepResult:
    """Return a finished sweep whose arms and clients have such names; one trial failed and says so."""
    del content["paper"]
    content["arms"] = {"axis": {name: {} for name in SETTABLE}}
    content["sweep"]["seeds"] = [0]
    config, made = begun(content, folder)
    names = ("global/common/accuracy", "global/local/accuracy/client/[b] _a", "time/round")
    ends: dict[str, dict[str, str]] = {"finished": {"sha256": "ab" * 32}}
    ends["failed"] = {"failure": "KeyError: [/x] \x1b[31m <b>"}
    for point in made:
        status = "failed" if point.setting["arms.axis"] == SETTABLE[-1] else "finished"
        rounds = [dict.fromkeys(names, 0.5)]
        leave(folder, point, config, rounds, status=status, metric=names[0], **ends[status])
    with Journal(folder / directory.JOURNAL) as journal:
        journal.start(uid="u", experiment="e", name="n")
        return finish(folder, journal)


def test_a_sweep_of_such_arms_has_all_its_tables(content: Settings, tmp_path: Path) -> None:
    swept = finished(content, tmp_path)
    text = (swept.folder / "table.txt").read_text(encoding="utf-8")
    assert all(one_line(name).strip() in text for name in SETTABLE)
    assert "failed: KeyError: [/x] \\x1b[31m <b>" in text
    assert list(read_csv(swept.folder / "results.csv")["arms.axis"]) == SETTABLE
    assert set(read_csv(swept.folder / "summary.csv")["arms.axis"]) == set(SETTABLE)
    made = make(swept.folder, tmp_path / "report")
    for path in made.files:
        text = path.read_text(encoding="utf-8")
        assert path.suffix == ".csv" or "<script>alert" not in text  # in a CSV file names are data
        assert "\x1b" not in text and "\u202e" not in text
