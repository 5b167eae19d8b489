"""A report's main table as LaTeX."""

from __future__ import annotations

import unicodedata

from flray.errors import one_line
from flray.reporting import formatting
from flray.results.table import Cell, Table

_NAMES = {"lamda": "lambda", "phi": "varphi"}
"""LaTeX's names of letters where they are not Unicode's."""


def _letter_name(letter: str) -> str:
    name = unicodedata.name(letter).rpartition(" ")[2].lower()
    return _NAMES.get(name, name)


GREEK = {letter: _letter_name(letter) for letter in "αβγδεζηθκλμνξπρστφχψω"}
_SPECIAL = {
    "\\": r"\textbackslash{}",
    **{c: f"\\{c}" for c in "&%$#_{}"},
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "–": r"\textendash{}",
    "≥": r"$\geq$",
    "<": r"$<$",
    ">": r"$>$",
    "|": r"\textbar{}",
    "`": r"\textasciigrave{}",
    "[": "{[}",
    "]": "{]}",
    "*": "{*}",  # which belong to the end of the line before them otherwise
    **{letter: f"$\\{name}$" for letter, name in GREEK.items()},
}
_LINE = 75
"""Characters of a table that fit on an article's line."""


def render_table(table: Table) -> str:
    """Return the table as LaTeX (needs booktabs, and graphicx where it is wider than a page)."""
    wide = _width(table) > _LINE
    lines = [
        *(f"% {one_line(line)}" for line in table.conclusions),
        f"% \\usepackage{{booktabs{',graphicx' if wide else ''}}}",
        r"\begin{table}[t]",
        r"\centering",
        f"\\caption{{{_escape(table.title)}. {_escape(formatting.legend(table))}}}",
        *([r"\resizebox{\linewidth}{!}{%"] if wide else []),
        f"\\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        r"\toprule",
    ]
    levels = formatting.head_rows(table)
    for number, level in enumerate(levels, start=1):
        cells = [
            f"\\multicolumn{{{span}}}{{c}}{{{_escape(text)}}}" if span > 1 else _escape(text)
            for text, span in level
        ]
        lines.append(_row([_escape(table.heading) if number == len(levels) else "", *cells]))
    lines.append(r"\midrule")
    for label, row in table.rows.items():
        lines.append(_row([_escape(label), *map(_cell, row)]))
        if any(cell.printed_text for cell in row):
            printed = [_escape(formatting.printed_reference(cell)) for cell in row]
            cells = [f"\\emph{{{text}}}" if text else "" for text in printed]
            lines.append(_row([r"\quad\emph{printed}", *cells]))
    lines += [
        r"\bottomrule",
        r"\end{tabular}" + ("}" if wide else ""),
        *(f"% {one_line(line)}" for line in formatting.notes(table)),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def _width(table: Table) -> int:
    """Return the characters of the widest line."""
    width = max(map(len, (table.heading, *table.rows)), default=0)
    for position, column in enumerate(table.columns):
        cells = (formatting.format_measured(row[position]) for row in table.rows.values())
        width += max(map(len, (*column.head, *cells))) + 2
    return width


def _row(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"


def _cell(cell: Cell) -> str:
    text = _escape(formatting.format_measured(cell))
    return f"\\textbf{{{text}}}" if cell.best else text


def _escape(text: str) -> str:
    """Return a text of one line that LaTeX sets as it is."""
    escaped = "".join(_SPECIAL.get(character, character) for character in one_line(text))
    return escaped.replace("--", "-{}-")
