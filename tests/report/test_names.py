"""Names are data: in every form of a report they can be read, and none is markup, a formula or a second line."""

from __future__ import annotations

import io
import re
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from rich.console import Console

from flray.config.loader import load
from flray.errors import one_line
from flray.files.csv_files import csv_text, read_csv
from flray.records import directory
from flray.reporting import make
from flray.reporting.render import GREEK, markdown, render_latex, render_summary
from flray.results.formatting import terminal
from flray.results.sweep import SweepResult
from flray.results.table import Cell, Column, Table
from flray.tuning.space import enumerate_settings as settings_of
from flray.tuning.space import resolve_sweep, trial_specs
from flray.tuning.summary import finish, text_table
from flray.tuning.trial_store import TrialFolder

EVIL = (
    "high [/x]",
    "low [red]",
    "=1+1",
    "+1",
    "-1",
    "@SUM(A1)",
    "\tx",
    "'=1",
    "''+",
    "<script>alert(1)</script>",
    "a|b",
    "`code`",
    "**bold**",
    "_it_ self",
    "a\nb",
    "\x1b[31mred",
    "100 %",
    "a_b",
    "c:\\x",
    "{x}",
    "$x^2$",
    "~a~",
    "1. one",
    "- item",
    "&amp;",
    "a--b",
    ":smile:",
    "![x](http://y)",
    "\u202eabc",
    "é 日本 ☃",
    "#1",
    '"quoted"',
    "[[x]]",
    "*star",
    "] x",
    "a\\",
    "<br>",
    "--- ---",
    '="x"',
    "\ud800",
)


SETTABLE = [
    name for name in EVIL if not re.search("[\x00-\x1f\ud800-\udfff]", name)
]  # as an arm's name


def examples(test: Any) -> Any:
    for name in EVIL:
        test = example(name)(test)
    return settings(max_examples=60, deadline=None)(given(st.text(min_size=1, max_size=12))(test))


def table_of(name: str) -> Table:
    rows = {name: [Cell({0: 1.0})], "other": [Cell({0: 2.0})]}
    return Table(name, name, [Column((name,), "accuracy")], rows, notes=[name, f"failed: {name}"])


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
    lines = out.getvalue().split("\n")
    assert any(f"- {one_line(name)}".rstrip() == line.rstrip() for line in lines)
    assert any(f"- failed: {one_line(name)}".rstrip() == line.rstrip() for line in lines)
    assert sum(one_line(name).strip() in line for line in lines) >= 4
    assert all(line == one_line(line) for line in lines)


@examples
def test_markdown_shows_a_name_as_it_is(name: str) -> None:
    shown = Texts(
        MarkdownIt("commonmark", {"html": True})
        .enable("table")
        .enable("strikethrough")
        .render(markdown(table_of(name), ()))
    )
    assert shown.tags <= {
        "h2",
        "table",
        "thead",
        "tbody",
        "tr",
        "th",
        "td",
        "ul",
        "li",
        "p",
        "strong",
    }
    wanted = one_line(name).strip()
    assert [cell.strip() for cell in shown.cells].count(wanted) >= 4, (
        shown.cells
    )  # title, heading, head, row, note


@examples
def test_html_shows_a_name_as_it_is(name: str) -> None:
    shown = Texts(render_summary(table_of(name)))
    table = {"div", "table", "thead", "tbody", "tr", "th", "td", "span"}
    assert shown.tags <= table | {"p", "strong", "ul", "li"}
    wanted = one_line(name).strip()  # of a name of spaces nothing is left to be counted
    assert not wanted or [cell.strip() for cell in shown.cells].count(wanted) == 3


COMMANDS = {
    r"\textbackslash{}": "\\",
    r"\textasciitilde{}": "~",
    r"\textasciicircum{}": "^",
    r"\textbar{}": "|",
    r"\textasciigrave{}": "`",
    r"\textendash{}": "–",
    r"$\pm$": "±",
    r"$\geq$": "≥",
    "$<$": "<",
    "$>$": ">",
    "-{}-": "--",
    "{[}": "[",
    "{]}": "]",
    "{*}": "*",
    **{f"\\{c}": c for c in "&%$#_{}"},
}


LETTERS = {name: letter for letter, name in GREEK.items()}


def read_tex(text: str) -> str:
    """Return what LaTeX sets for a text of ours."""
    pattern = re.compile(
        "|".join(map(re.escape, sorted(COMMANDS, key=len, reverse=True))) + r"|\$\\([a-z]+)\$"
    )
    return pattern.sub(lambda found: COMMANDS.get(found[0]) or LETTERS[found[1]], text)


@examples
def test_latex_sets_a_name_as_it_is(name: str) -> None:
    text = render_latex(table_of(name))
    lines = text.split("\n")
    assert all(line == one_line(line) for line in lines)
    rows = [line for line in lines if line.endswith(r"\\") and "1.00" in line]
    assert len(rows) == 1
    cell = rows[0].removesuffix(r" & 1.00 \\")
    assert read_tex(cell) == one_line(name).replace("---", "-—") or read_tex(cell).replace(
        "{}", ""
    ) == one_line(name)
    bare = re.sub(
        "|".join(map(re.escape, sorted(COMMANDS, key=len, reverse=True))) + r"|\$\\[a-z]+\$",
        "",
        cell,
    )
    assert not set(bare) & set("\\&%$#_{}~^|`[]*")
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
    assert list(back["name"]) == [name, "x"] and list(back.columns) == [
        "name",
        name + " ",
        "number",
    ]
    assert list(back["number"]) == ["-1.5", "2.0"]


@pytest.fixture
def swept(content: dict[str, Any], tmp_path: Path) -> SweepResult:
    """A finished sweep whose arms and clients have such names; one trial failed and says so."""
    del content["paper"]
    content["arms"] = {"axis": {name: {} for name in SETTABLE}}
    content["sweep"]["seeds"] = [0]
    config = resolve_sweep(load(content))
    folder = tmp_path / "made" / "001"
    folder.mkdir(parents=True)
    directory.save_config(folder, config)
    directory.write(folder, "sweep", {**directory.new_identity(), "status": "finished"})
    for point in trial_specs(config, settings_of(config)):
        trial = TrialFolder(folder, point.number)
        trial.create(point, config)
        session = trial.begin(point, directory.read(folder), config)
        session.journal.record_round(
            1,
            {
                "global/common/accuracy": 0.5,
                "global/local/accuracy/client/[b] _a": 0.5,
                "time/round": 1.0,
            },
        )
        last = point.setting["arms.axis"] == SETTABLE[-1]
        trial.end(
            session,
            "failed" if last else "finished",
            metric="global/common/accuracy",
            **({"failure": "KeyError: [/x] \x1b[31m <b>"} if last else {"sha256": "ab" * 32}),
        )
        session.close()
    from flray.records.journal import Journal

    with Journal(folder / directory.JOURNAL) as journal:
        journal.start(uid="u", experiment="e", name="n")
        return finish(folder, config, journal)


def test_a_sweep_with_such_arms_ends_with_all_its_tables(
    swept: SweepResult, tmp_path: Path
) -> None:
    out = io.StringIO()
    Console(file=out, width=300).print(swept.table())
    for text in (
        out.getvalue(),
        text_table(swept),
        (swept.folder / "table.txt").read_text(encoding="utf-8"),
    ):
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
