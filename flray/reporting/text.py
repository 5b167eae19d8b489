"""A report's tables for the terminal and as Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from rich.console import Group, RenderableType
from rich.text import Text

from flray.errors import one_line
from flray.reporting import formatting
from flray.results.costs import Cost
from flray.results.formatting import CONCLUSIONS, conclusion_text, rich_table
from flray.results.table import Cell, Table

# What Markdown reads as markup: everywhere, and where a line begins. An underscore between letters
# is none.
_MARKUP = re.compile(r"[\\`*|\[\]~$!]|(?<![^\W_])_|_(?![^\W_])")
_AT_THE_START = re.compile(r"^(\d*)([#+\-=.):])(?=\s|$|[#=\-])")


def terminal(table: Table, costs: Sequence[Cost]) -> RenderableType:
    """Return the tables for a terminal."""
    heads = [column.head for column in table.columns]
    main = rich_table(table.title, [table.heading], heads, formatting.legend(table))
    for label, row in table.rows.items():
        cells = [Text(one_line(label)), *map(_rich_cell, row)]
        main.add_row(*cells, end_section=table.has_printed)
    parts: list[RenderableType] = [
        *([Text(conclusion_text(table.conclusions))] if table.conclusions else []),
        main,
        *(Text(one_line(f"- {note}")) for note in formatting.notes(table)),
    ]
    for listing in formatting.listings(table, costs):
        made = rich_table(listing.title, listing.heads, (), listing.note)
        for line in listing.rows:
            made.add_row(*(Text(one_line(text)) for text in line))
        parts.append(made)
    return Group(*parts)


def markdown(table: Table, costs: Sequence[Cost]) -> str:
    """Return the tables as Markdown."""
    heads = [" ".join(column.head) for column in table.columns]
    lines = [
        f"## {_escape(table.title)}",
        "",
        *([f"**{_escape(CONCLUSIONS)}**", ""] if table.conclusions else []),
        *(f"- {_escape(line)}" for line in table.conclusions),
        *([""] if table.conclusions else []),
        _row(map(_escape, [table.heading, *heads])),
        _row(["---", *("---:" for _ in heads)]),
        *(_row([_escape(label), *map(_cell, row)]) for label, row in table.rows.items()),
        "",
        formatting.legend(table),
        "",
    ]
    lines += [*(f"- {_escape(note)}" for note in formatting.notes(table)), ""]
    for listing in formatting.listings(table, costs):
        lines += [
            f"### {_escape(listing.title)}",
            "",
            _row(map(_escape, listing.heads)),
            _row(["---", *("---:" for _ in listing.heads[1:])]),
            *(_row(map(_escape, line)) for line in listing.rows),
            "",
            *([_escape(listing.note), ""] if listing.note else []),
        ]
    return "\n".join(lines).rstrip() + "\n"


def _rich_cell(cell: Cell) -> Text:
    text = Text(formatting.format_measured(cell), style="bold" if cell.best else "")
    if cell.printed_text:
        text.append(f"\n{formatting.printed_reference(cell)}", style="not bold dim")
    return text


def _cell(cell: Cell) -> str:
    text = formatting.format_measured(cell)
    text = f"**{text}**" if cell.best else text
    return text + (
        f"<br>{_escape(formatting.printed_reference(cell))}" if cell.printed_text else ""
    )


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escape(text: str) -> str:
    """Return a text of one line that Markdown shows as it is, also within a table and where HTML is let through."""
    text = _MARKUP.sub(r"\\\g<0>", one_line(text).strip())
    for character, name in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(character, name)
    return _AT_THE_START.sub(lambda found: f"{found[1]}\\{found[2]}", text)
