"""Names are data: in every form of a report they can be read, and none is markup, a formula or a second line."""

import io
import re
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.console import Console

from flray.config.loader import load
from flray.errors import one_line
from flray.records import directory
from flray.records.journal import Journal
from flray.reporting import make
from flray.reporting.build import GREEK, markdown, render_latex, render_summary
from flray.results.formatting import csv_text, read_csv, terminal
from flray.results.sweep import SweepResult
from flray.results.table import Cell, Column, Table
from flray.tuning.space import enumerate_settings as settings_of
from flray.tuning.space import resolve_sweep, trial_specs
from flray.tuning.summary import finish
from flray.tuning.trial_store import TrialFolder

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
    """The texts and the tags of a page."""

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


COMMANDS = {
    **{
        rf"\text{name}{{}}": c
        for name, c in zip(
            ("backslash", "asciitilde", "asciicircum", "bar", "asciigrave", "endash"),
            "\\~^|`–",
            strict=True,
        )
    },
    **{rf"$\{name}$": letter for letter, name in {**GREEK, "±": "pm", "≥": "geq"}.items()},
    **{f"${c}$": c for c in "<>"},
    **{f"{{{c}}}": c for c in "[]*"},
    **{f"\\{c}": c for c in "&%$#_{}"},
    "-{}-": "--",
}
COMMAND = re.compile("|".join(map(re.escape, sorted(COMMANDS, key=len, reverse=True))))


@examples
def test_latex_sets_a_name_as_it_is(name: str) -> None:
    text = render_latex(table_of(name))
    lines = text.split("\n")
    assert all(line == one_line(line) for line in lines)
    rows = [line for line in lines if line.endswith(r"\\") and "1.00" in line]
    assert len(rows) == 1
    cell = rows[0].removesuffix(r" & 1.00 \\")
    read = COMMAND.sub(lambda found: COMMANDS[found[0]], cell)  # what LaTeX sets
    assert one_line(name) in (read, read.replace("{}", ""))
    assert not set(COMMAND.sub("", cell)) & set("\\&%$#_{}~^|`[]*")
    comments = [line for line in lines if line.startswith("% ")]
    assert f"% {one_line(name)}" in comments


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


def finished(content: dict[str, Any], folder: Path) -> SweepResult:
    """Return a finished sweep whose arms and clients have such names; one trial failed and says so."""
    del content["paper"]
    content["arms"] = {"axis": {name: {} for name in SETTABLE}}
    content["sweep"]["seeds"] = [0]
    config = resolve_sweep(load(content))
    directory.save_config(folder, config)
    directory.write(folder, "sweep", {**directory.new_identity(), "status": "finished"})
    names = ("global/common/accuracy", "global/local/accuracy/client/[b] _a", "time/round")
    ends: dict[str, dict[str, str]] = {
        "finished": {"sha256": "ab" * 32},
        "failed": {"failure": "KeyError: [/x] \x1b[31m <b>"},
    }
    for point in trial_specs(config, settings_of(config)):
        trial = TrialFolder(folder, point.number)
        trial.create(point, config)
        session = trial.begin(point, directory.read(folder), config)
        session.journal.record_round(1, dict.fromkeys(names, 0.5))
        status = "failed" if point.setting["arms.axis"] == SETTABLE[-1] else "finished"
        trial.end(session, status, metric=names[0], **ends[status])
        session.close()
    with Journal(folder / directory.JOURNAL) as journal:
        journal.start(uid="u", experiment="e", name="n")
        return finish(folder, journal)


def test_a_sweep_with_such_arms_ends_with_all_its_tables(
    content: dict[str, Any], tmp_path: Path
) -> None:
    swept = finished(content, tmp_path)
    text = (swept.folder / "table.txt").read_text(encoding="utf-8")
    assert all(one_line(name).strip() in text for name in SETTABLE)
    assert "failed: KeyError: [/x] \\x1b[31m <b>" in text
    results = read_csv(swept.folder / "results.csv")
    assert list(results["arms.axis"]) == SETTABLE
    assert set(read_csv(swept.folder / "summary.csv")["arms.axis"]) == set(SETTABLE)
    made = make(swept.folder, tmp_path / "report")
    for path in made.files:
        text = path.read_text(encoding="utf-8")
        assert path.suffix == ".csv" or "<script>alert" not in text  # in a CSV file names are data
        assert "\x1b" not in text and "\u202e" not in text
