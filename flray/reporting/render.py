"""A report's tables as text for a terminal, Markdown, LaTeX, HTML and JSON."""

from __future__ import annotations

import itertools
import json
import math
import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup
from rich.console import Group, RenderableType
from rich.text import Text

from flray.drawing import canvas
from flray.errors import one_line
from flray.reporting.sections import Section
from flray.results.build_table import describe_seeds
from flray.results.formatting import (
    CONCLUSIONS,
    MISSING,
    NOT_REACHED,
    conclusion_text,
    format_mean_std,
    rich_table,
)
from flray.results.measures import Cost
from flray.results.result_set import ResultSet
from flray.results.study import Ranks, Variance, win_matrix
from flray.results.table import Cell, Table

COST_HEADS = [
    "setting",
    "rounds to target",
    "bytes up",
    "bytes down",
    "seconds",
    "s/round",
    "memory",
]
_VARIANCE_HEADS = [
    "setting",
    "partitions x seeds",
    "std",
    "who holds what",
    "run's seed",
    "both together",
]
_VARIANCE_NOTE = (
    "std: of a single run, under another partition and another seed. Of its square: partition.seed "
    "(who holds what), seed (initialisation, order, sampling), and what only both together "
    "explain; from mean squares. With few of each the shares are rough."
)
_WINS_NOTE = "In how many places the mean of the row's setting is better than that of the column's, equal, and worse."
_UNTRACKED = (
    "Features (t-SNE), correlations between classes and the layers' distances are drawn of runs "
    "with tracking.features=true; of these they were not tracked."
)
_LINE = 75
"""Characters of a table that fit on an article's line."""


def format_measured(cell: Cell) -> str:
    """Return ``80.12 ± 0.30``; a dash without a value; the number of seeds that reach a target if not all do."""
    if math.isinf(cell.mean) and cell.finite:
        return _of_some(f"{np.mean(cell.finite):.2f}", len(cell.finite), len(cell.values))
    return format_mean_std(cell.mean, cell.std)


def printed_reference(cell: Cell) -> str:
    """Return ``82.35 (-2.23)``: the printed number and how far the measured one is from it."""
    away = f" ({cell.difference:+.2f})" if math.isfinite(cell.difference) else ""
    return cell.printed_text and cell.printed_text + away


def legend(table: Table) -> str:
    """Return the legend: seeds, units and marks of the table."""
    seeds = describe_seeds(table)
    text = f"{seeds[:1].upper()}{seeds[1:]}; shares in percent; best in bold."
    return text + " Below: the printed number (measured minus printed)." * table.has_printed


def notes(table: Table) -> list[str]:
    """Return the notes below the table, with the method of the comparisons."""
    compared = [f"comparisons: {table.studies.method}"] if table.studies.each else []
    return [*table.notes, *compared]


def head_rows(table: Table) -> list[list[tuple[str, int]]]:
    """Return the heads by level, equal neighbours as one with the number of columns that it spans."""
    depth = max((len(column.head) for column in table.columns), default=1)
    heads = [("",) * (depth - len(column.head)) + column.head for column in table.columns]
    return [
        [
            (prefix[-1], len(list(group)))
            for prefix, group in itertools.groupby(heads, key=lambda head: head[: level + 1])
        ]
        for level in range(depth)
    ]


class Listing(NamedTuple):
    """A table below the main one, the same in every format.

    Attributes
    ----------
    title : str
        The text above the table.
    heads : sequence of str
        The heads of the columns.
    rows : sequence of sequence of str
        The cells.
    note : str
        The text below the table.
    """

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def listings(table: Table, costs: Sequence[Cost]) -> list[Listing]:
    """Return the tables below the main one: wins over places, shares of the variance, costs."""
    found = [_wins(measure, ranks, table) for measure, ranks in table.studies.ranks.items()]
    if table.variances:
        rows = list(map(_variance_row, table.variances))
        found.append(Listing("Shares of the variance", _VARIANCE_HEADS, rows, _VARIANCE_NOTE))
    for group, members in itertools.groupby(costs, key=lambda cost: cost.group):
        every = list(members)
        title = f"Costs{f' · {group}' if group else ''} (means over seeds; target {target_text(every[0])})"
        found.append(Listing(title, COST_HEADS, list(map(cost_row, every))))
    return found


def _wins(measure: str, ranks: Ranks, table: Table) -> Listing:
    several = f" · {measure}" if len(table.studies.ranks) > 1 else ""
    rows = [[name, *cells] for name, cells in zip(ranks.names, win_matrix(ranks), strict=True)]
    title = f"Wins, ties and losses over {len(ranks.places)} places{several}"
    return Listing(title, ["setting", *ranks.names], rows, _WINS_NOTE)


def _variance_row(one: Variance) -> list[str]:
    return [
        one.name,
        f"{one.partitions} x {one.seeds}",
        format_number(math.sqrt(one.partition + one.seed + one.both)),
        *(MISSING if math.isnan(share) else f"{100 * share:.0f} %" for share in one.shares),
    ]


def cost_row(cost: Cost) -> list[str]:
    """Return a setting's costs under `COST_HEADS`."""
    rounds = _of_some(f"{cost.rounds:.1f}", cost.reached, cost.seeds)
    return [
        cost.label,
        rounds if cost.reached else NOT_REACHED,
        *map(format_bytes, (cost.up, cost.down)),
        *map(format_number, (cost.seconds, cost.round_seconds)),
        format_bytes(cost.memory),
    ]


def _of_some(text: str, reached: int, seeds: int) -> str:
    return text if reached == seeds else f"{text} ({reached} of {seeds} seeds)"


def target_text(cost: Cost) -> str:
    """Return the target of a group of settings."""
    return f"{100 * cost.target:.1f} %" if cost.share else format_number(cost.target)


def format_bytes(count: float) -> str:
    """Return bytes with a unit of 1,000s."""
    if math.isnan(count):
        return MISSING
    for unit in ("B", "kB", "MB", "GB"):
        if abs(count) < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def format_number(value: float) -> str:
    """Return three digits."""
    if math.isnan(value):
        return MISSING
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def terminal(table: Table, costs: Sequence[Cost]) -> RenderableType:
    """Return the tables for a terminal."""
    main = rich_table(
        table.title, [table.heading], [column.head for column in table.columns], legend(table)
    )
    for label, row in table.rows.items():
        main.add_row(Text(one_line(label)), *map(_rich_cell, row), end_section=table.has_printed)
    parts: list[RenderableType] = [
        *([Text(conclusion_text(table.conclusions))] if table.conclusions else []),
        main,
        *(Text(one_line(f"- {note}")) for note in notes(table)),
    ]
    for listing in listings(table, costs):
        made = rich_table(listing.title, listing.heads, (), listing.note)
        for line in listing.rows:
            made.add_row(*(Text(one_line(text)) for text in line))
        parts.append(made)
    return Group(*parts)


def _rich_cell(cell: Cell) -> Text:
    text = Text(format_measured(cell), style="bold" if cell.best else "")
    if cell.printed_text:
        text.append(f"\n{printed_reference(cell)}", style="not bold dim")
    return text


def markdown(table: Table, costs: Sequence[Cost]) -> str:
    """Return the tables as Markdown."""
    return _render("report.md", table, listings=listings(table, costs)).rstrip() + "\n"


def render_latex(table: Table) -> str:
    """Return the table as LaTeX (needs booktabs, and graphicx if it is wider than a page)."""
    width = max(map(len, (table.heading, *table.rows)), default=0)
    for position, column in enumerate(table.columns):
        cells = (format_measured(row[position]) for row in table.rows.values())
        width += max(map(len, (*column.head, *cells))) + 2
    return _render("table.tex", table, wide=width > _LINE) + "\n"


def render_page(
    source: ResultSet,
    table: Table,
    costs: Sequence[Cost],
    sections: Sequence[Section],
    vectors: Mapping[str, str],
) -> str:
    """Return one HTML page that needs nothing but itself: no script, no font, no picture from elsewhere.

    Parameters
    ----------
    source : ResultSet
        The runs.
    table : Table
        The main table.
    costs : sequence of Cost
        The costs of each setting.
    sections : sequence of Section
        The sections with figures.
    vectors : dict of str to str
        The sections' figures as SVG, by file name without suffix.
    """
    tracked = any(trial.diagnostics() for trial in source.trials)
    return _render(
        "page.html",
        table,
        source=source,
        seeds=sorted({trial.seed for trial in source.trials}),
        data=_describe_data(source),
        listings=listings(table, costs),
        sections=[
            (one, [canvas.theme_svg(vectors[name], one.title) for name in one.figures])
            for one in sections
        ],
        untracked="" if tracked else _UNTRACKED,
        versions=", ".join(f"{name} {text}" for name, text in sorted(source.versions.items())),
        settings=json.dumps(source.config, indent=1, ensure_ascii=False).split("\n"),
        canvas=canvas,
    )


def render_summary(table: Table) -> str:
    """Return the conclusions and the main table as HTML without a style, to embed in another page."""
    return _render("summary.html", table)


def _render(template: str, table: Table, **values: object) -> str:
    """Return a template whose texts are data: one line each, escaped as its format needs."""
    escape = {"html": one_line, "md": _escape_markdown, "tex": _escape_latex}[
        template.rpartition(".")[2]
    ]

    def finish(value: object) -> object:
        return escape(value) if isinstance(value, str) and not isinstance(value, Markup) else value

    environment = Environment(
        loader=PackageLoader("flray.reporting"),
        autoescape=template.endswith(".html"),
        finalize=finish,
        undefined=StrictUndefined,
        trim_blocks=True,
    )
    environment.filters |= {
        "measured": format_measured,
        "printed": printed_reference,
        "comment": _comment,
    }
    found = {"heads": head_rows(table), "legend": legend(table), "notes": notes(table)}
    return environment.get_template(template).render(
        table=table, concluded=CONCLUSIONS, **found, **values
    )


def _comment(text: str) -> Markup:
    return Markup(one_line(text))


# What Markdown reads as markup: everywhere, and where a line begins. An underscore between letters
# is none.
_MARKUP = re.compile(r"[\\`*|\[\]~$!]|(?<![^\W_])_|_(?![^\W_])")
_AT_THE_START = re.compile(r"^(\d*)([#+\-=.):])(?=\s|$|[#=\-])")


def _escape_markdown(text: str) -> str:
    """Return a text of one line that Markdown shows as it is, also within a table and where HTML is let through."""
    text = _MARKUP.sub(r"\\\g<0>", one_line(text).strip())
    for character, name in (("&", "&amp;"), ("<", "&lt;"), (">", "&gt;")):
        text = text.replace(character, name)
    return _AT_THE_START.sub(lambda found: f"{found[1]}\\{found[2]}", text)


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


def _escape_latex(text: str) -> str:
    """Return a text of one line that LaTeX sets as it is."""
    escaped = "".join(_SPECIAL.get(character, character) for character in one_line(text))
    return escaped.replace("--", "-{}-")


def _describe_data(source: ResultSet) -> str:
    """Return which data were used and their origins."""
    found: dict[str, None] = {}
    for trial in source.trials:
        if trial.partition is not None:
            origins = sorted(set(trial.partition["origins"].values()))
            found[f"{trial.partition['dataset']} ({' + '.join(origins)})"] = None
    return ", ".join(found) or str(source.config["experiment"]["data"]["name"])


def report_values(table: Table, costs: Sequence[Cost], files: Iterable[Path]) -> dict[str, object]:
    """Return a report as JSON values; numbers that are not finite become null.

    Parameters
    ----------
    table : Table
        Its main table; shares are in percent.
    costs : sequence of Cost
        By setting.
    files : iterable of Path
        The files of the report.
    """
    studies = table.studies
    compared = studies.frame().to_json(orient="records") if studies.each else "[]"
    return {
        "title": table.title,
        "conclusions": table.conclusions,
        "rows": [
            {
                "name": label,
                "values": [
                    {
                        "column": " ".join(column.head),
                        "measure": column.measure,
                        "client": column.client,
                        "mean": _finite(cell.mean),
                        "std": _finite(cell.std),
                        "seeds": {str(seed): _finite(one) for seed, one in cell.values.items()},
                        "best": cell.best,
                        **({"printed": _finite(cell.printed)} if cell.printed_text else {}),
                    }
                    for column, cell in zip(table.columns, row, strict=True)
                ],
            }
            for label, row in table.rows.items()
        ],
        "comparisons": json.loads(compared),
        "costs": [{name: _finite(value) for name, value in vars(one).items()} for one in costs],
        "notes": notes(table),
        "files": list(map(str, files)),
    }


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
