"""A report's tables for the terminal, as Markdown and as LaTeX."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from rich.console import Console, Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text

from flray.errors import one_line
from flray.reporting import formatting
from flray.results.costs import Cost
from flray.results.table import Cell, Table

_GREEK = dict(
    zip(
        (
            "alpha",
            "beta",
            "gamma",
            "delta",
            "epsilon",
            "zeta",
            "eta",
            "theta",
            "kappa",
            "lambda",
            "mu",
            "nu",
            "xi",
            "pi",
            "rho",
            "sigma",
            "tau",
            "varphi",
            "chi",
            "psi",
            "omega",
        ),
        "αβγδεζηθκλμνξπρστφχψω",
        strict=True,
    )
)
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
    **{letter: f"$\\{name}$" for name, letter in _GREEK.items()},
}

# What Markdown reads as markup: everywhere, and where a line begins. An underscore between letters
# is none.
_MARKUP = re.compile(r"[\\`*|\[\]~$!]|(?<![^\W_])_|_(?![^\W_])")
_AT_THE_START = re.compile(r"^(\d*)([#+\-=.):])(?=\s|$|[#=\-])")
_LINE = 75
"""Characters of a table that fit on an article's line."""


def terminal(table: Table, costs: Sequence[Cost]) -> RenderableType:
    """Return the tables for a terminal."""
    main = RichTable(
        title=_title(table.title),
        title_justify="left",
        caption_justify="left",
        caption=Text(formatting.legend(table), "table.caption"),
    )
    main.add_column(Text(one_line(table.heading)))
    for head in table.heads:
        main.add_column(Text("\n".join(map(one_line, head))), justify="right")
    for label, row in table.rows.items():
        main.add_row(
            Text(one_line(label)),
            *(_rich_cell(cell) for cell in row),
            end_section=table.has_printed,
        )
    parts: list[RenderableType] = [
        main,
        *formatting.comparison_sentences(table),
        *(f"- {note}" for note in table.notes),
    ]
    for group, members in _groups(costs):
        made = RichTable(
            *formatting.COST_HEADS,
            title=_title(_cost_title(group, members[0])),
            title_justify="left",
        )
        for cost in members:
            made.add_row(*(Text(one_line(text)) for text in formatting.cost_row(cost)))
        parts.append(made)
    return Group(*(Text(one_line(part)) if isinstance(part, str) else part for part in parts))


def markdown(table: Table, costs: Sequence[Cost]) -> str:
    """Return the tables as Markdown."""
    lines = [
        f"## {_md(table.title)}",
        "",
        _md_row([_md(table.heading), *(_md(" ".join(head)) for head in table.heads)]),
        _md_row(["---", *("---:" for _ in table.heads)]),
    ]
    for label, row in table.rows.items():
        lines.append(_md_row([_md(label), *(_md_cell(cell) for cell in row)]))
    lines += ["", formatting.legend(table), ""]
    lines += [
        f"{'' if i == 0 else '- '}{_md(line)}" + ("\n" if i == 0 else "")
        for i, line in enumerate(formatting.comparison_sentences(table))
    ]
    lines += ["", *(f"- {_md(note)}" for note in table.notes), ""]
    for group, members in _groups(costs):
        lines += [
            f"### {_md(_cost_title(group, members[0]))}",
            "",
            _md_row(formatting.COST_HEADS),
            _md_row(["---", *("---:" for _ in formatting.COST_HEADS[1:])]),
        ]
        lines += [
            *(_md_row([_md(text) for text in formatting.cost_row(cost)]) for cost in members),
            "",
        ]
    return "\n".join(lines).rstrip() + "\n"


def latex(table: Table) -> str:
    """Return the main table as LaTeX (needs booktabs, and graphicx where the table is wider than a page)."""
    depth = max(map(len, table.heads), default=1)
    heads = [[""] * (depth - len(head)) + head for head in table.heads]
    longest = max(map(len, (table.heading, *table.rows)), default=0)
    wide = (
        longest
        + sum(
            max(
                [
                    *map(len, head),
                    *(len(formatting.format_measured(row[i])) for row in table.rows.values()),
                ]
            )
            + 2
            for i, head in enumerate(table.heads)
        )
        > _LINE
    )
    lines = [
        f"% \\usepackage{{booktabs{',graphicx' if wide else ''}}}",
        r"\begin{table}[t]",
        r"\centering",
        f"\\caption{{{_tex(table.title)}. {_tex(formatting.legend(table))}}}",
        *([r"\resizebox{\linewidth}{!}{%"] if wide else []),
        f"\\begin{{tabular}}{{l{'r' * len(heads)}}}",
        r"\toprule",
    ]
    for level in range(depth):
        spans = [
            (text, len(list(group)))
            for text, group in itertools.groupby(heads, key=lambda head: tuple(head[: level + 1]))
        ]
        cells = [
            f"\\multicolumn{{{count}}}{{c}}{{{_tex(text[-1])}}}" if count > 1 else _tex(text[-1])
            for text, count in spans
        ]
        lines.append(
            " & ".join([_tex(table.heading) if level == depth - 1 else "", *cells]) + r" \\"
        )
    lines.append(r"\midrule")
    for label, row in table.rows.items():
        lines.append(
            " & ".join(
                [
                    _tex(label),
                    *(
                        f"\\textbf{{{_tex(formatting.format_measured(cell))}}}"
                        if cell.best
                        else _tex(formatting.format_measured(cell))
                        for cell in row
                    ),
                ]
            )
            + r" \\"
        )
        if any(cell.printed_text for cell in row):
            lines.append(
                " & ".join(
                    [
                        r"\quad\emph{printed}",
                        *(
                            f"\\emph{{{_tex(formatting.printed_reference(cell))}}}"
                            if cell.printed_text
                            else ""
                            for cell in row
                        ),
                    ]
                )
                + r" \\"
            )
    lines += [
        r"\bottomrule",
        r"\end{tabular}" + ("}" if wide else ""),
        *(
            f"% {one_line(line)}"
            for line in (*formatting.comparison_sentences(table), *table.notes)
        ),
        r"\end{table}",
    ]
    return "\n".join(lines) + "\n"


def show(table: Table, costs: Sequence[Cost], console: Console) -> None:
    """Print the tables."""
    console.print(terminal(table, costs))


def _groups(costs: Sequence[Cost]) -> Iterator[tuple[str, list[Cost]]]:
    for group, members in itertools.groupby(costs, key=lambda cost: cost.group):
        yield group, list(members)


def _cost_title(group: str, cost: Cost) -> str:
    return f"Costs{f' · {group}' if group else ''} (means over seeds; target {formatting.target_text(cost)})"


def _title(text: str) -> Text:
    return Text(one_line(text), "table.title")


def _rich_cell(cell: Cell) -> Text:
    text = Text(formatting.format_measured(cell), style="bold" if cell.best else "")
    if cell.printed_text:
        text.append(f"\n{formatting.printed_reference(cell)}", style="not bold dim")
    return text


def _md_cell(cell: Cell) -> str:
    text = (
        f"**{formatting.format_measured(cell)}**" if cell.best else formatting.format_measured(cell)
    )
    return text + (f"<br>{_md(formatting.printed_reference(cell))}" if cell.printed_text else "")


def _md_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _tex(text: str) -> str:
    """Return a text of one line that LaTeX sets as it is."""
    return "".join(_SPECIAL.get(character, character) for character in one_line(text)).replace(
        "--", "-{}-"
    )


def _md(text: str) -> str:
    """Return a text of one line that Markdown shows as it is, also within a table and where HTML is let through."""
    text = _MARKUP.sub(r"\\\g<0>", one_line(text).strip())
    for character, name in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(character, name)
    return _AT_THE_START.sub(lambda found: f"{found[1]}\\{found[2]}", text)
