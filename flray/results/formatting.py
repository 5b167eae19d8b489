"""Text of tables: cells, notes, costs, all of it for a terminal, and CSV files that no spreadsheet evaluates."""

import itertools
import math
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import pandas as pd
from rich import table as rich
from rich.console import Group, RenderableType
from rich.text import Text

from flray.errors import one_line
from flray.results.costs import Cost
from flray.results.table import Cell, Table

MISSING, NOT_REACHED = "–", "never"
CONCLUSIONS = "What can be concluded:"
_COST_HEADS = (
    "setting",
    "rounds to target",
    "steps",
    "bytes up",
    "bytes down",
    "seconds",
    "s/round",
    "memory",
)
_VARIANCE_NOTE = (
    "std: of a single run, under another one of each. Of its square: each one's share, from mean squares, with 95 % "
    "intervals. A run's seed decides initialisation, order and sampling. More of the last narrow an interval most."
)
_PLACES_NOTE = "Mean ± standard deviation over the seeds. Rank 1 is best, without the seeds at which any failed."


def format_mean_std(mean: float, std: float, digits: int = 2) -> str:
    """Return ``80.12 ± 0.30``, or only ``80.12`` if the deviation is NaN."""
    if math.isnan(mean):
        return MISSING
    return f"{mean:.{digits}f}" + ("" if math.isnan(std) else f" ± {std:.{digits}f}")


def format_measured(cell: Cell) -> str:
    """Return ``80.12 ± 0.30``; a dash without a value; how many seeds have a finite one if not all do."""
    if math.isinf(cell.mean) and cell.finite:
        return _of_some(f"{np.mean(cell.finite):.2f}", len(cell.finite), len(cell.values))
    never = cell.rounds and math.isinf(cell.mean)
    return NOT_REACHED if never else format_mean_std(cell.mean, cell.std)


def _of_some(text: str, reached: int, seeds: int) -> str:
    return text if reached == seeds else f"{text} ({reached} of {seeds} seeds)"


def printed_reference(cell: Cell) -> str:
    """Return ``82.35 (-2.23)``: the printed number and how far the measured one is from it."""
    away = f" ({cell.difference:+.2f})" if math.isfinite(cell.difference) else ""
    return cell.printed_text and cell.printed_text + away


def legend(table: Table) -> str:
    """Return the legend: seeds, units and marks of the table."""
    counts = sorted({len(cell.finite) for cell in table.cells if cell.finite})
    text = f"Mean ± standard deviation over {' or '.join(map(str, counts)) or 0} seeds"
    text += ", none for one seed" * (1 in counts)
    if counts == [1]:
        text = "Values of one seed, without a deviation"
    bold = "; in bold: decided to be better than every other" * any(c.best for c in table.cells)
    printed = " Below: the printed number (measured minus printed)." * table.has_printed
    return f"{text}; shares in percent{bold}.{printed}"


def notes(table: Table) -> list[str]:
    """Return the notes below the table, with the method of the comparisons."""
    compared = [f"comparisons: {table.studies.method}"] if table.studies.each else []
    return [*table.notes, *compared]


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
    """Return the tables below the main one: places, shares of the variance, costs."""
    found = list(_over_places(table))
    for parts, split in itertools.groupby(table.variances, key=lambda one: tuple(one.parts)):
        of_mean = "both together" not in parts
        heads = ["difference" if of_mean else "setting", "design", "std", *parts]
        heads += ["most of the interval"] * of_mean
        rows = [
            [
                one.name,
                one.design,
                format_number(math.sqrt(sum(one.parts.values()))),
                *(
                    MISSING
                    if math.isnan(share)
                    else f"{100 * share:.0f} % ({100 * low:.0f} to {100 * high:.0f})"
                    for share, (low, high) in zip(
                        one.shares.values(), one.intervals.values(), strict=True
                    )
                ),
                *([one.widest] if of_mean else []),
            ]
            for one in split
        ]
        found.append(Listing("Shares of the variance", heads, rows, _VARIANCE_NOTE))
    for group, members in itertools.groupby(costs, key=lambda cost: cost.group):
        every = list(members)
        one = every[0]
        percent = one.share and not math.isnan(one.target)
        target = f"{100 * one.target:.1f} %" if percent else format_number(one.target)
        title = f"Costs{f' · {group}' if group else ''} (means over seeds; target {target})"
        found.append(Listing(title, _COST_HEADS, list(map(cost_row, every))))
    return found


def _over_places(table: Table) -> Iterator[Listing]:
    """Yield the settings' values at each place, unless places are columns."""
    for measure, ranks in table.studies.ranks.items():
        of = f" · {measure}" if len(table.studies.ranks) > 1 else ""
        values = [one.values for one in table.studies.each if one.measure == measure]
        rows = [
            [name, *(format_measured(Cell(dict(at[name]))) for at in values), f"{mean:.2f}"]
            for name, mean in zip(ranks.names, ranks.means, strict=True)
        ]
        if sum(column.compared for column in table.columns) == 1:
            heads = ["setting", *ranks.places, "mean rank"]
            title = f"Settings at each of {len(ranks.places)} places{of}"
            yield Listing(title, heads, rows, _PLACES_NOTE)


def cost_row(cost: Cost) -> list[str]:
    """Return a setting's costs: rounds to the target, optimiser steps, bytes, seconds, memory."""
    rounds = _of_some(f"{cost.rounds:.1f}", cost.reached, cost.seeds)
    return [
        cost.label,
        rounds if cost.reached else NOT_REACHED,
        format_number(cost.steps),
        *map(format_bytes, (cost.up, cost.down)),
        *map(format_number, (cost.seconds, cost.round_seconds)),
        format_bytes(cost.memory),
    ]


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


def terminal(table: Table, costs: Sequence[Cost] = ()) -> RenderableType:
    """Return a terminal's text of the conclusions, the main table with its notes, and the tables below it."""
    main = _rich_table(table.title, legend(table))
    main.add_column(Text(one_line(table.heading)))
    for column in table.columns:
        main.add_column(Text("\n".join(map(one_line, column.head))), justify="right")
    for label, row in table.rows.items():
        main.add_row(Text(one_line(label)), *map(_rich_cell, row), end_section=table.has_printed)
    concluded = [f"- {one_line(line)}" for line in table.conclusions]
    concluded[:0] = [CONCLUSIONS] if concluded else []
    lines = (Text(one_line(f"- {note}")) for note in notes(table))
    return Group(*map(Text, concluded), main, *lines, *map(_rich_listing, listings(table, costs)))


def _rich_listing(listing: Listing) -> rich.Table:
    made = _rich_table(listing.title, listing.note)
    for head in listing.heads:
        made.add_column(Text(one_line(head)))
    for line in listing.rows:
        made.add_row(*(Text(one_line(text)) for text in line))
    return made


def _rich_table(title: str, caption: str) -> rich.Table:
    """Return an empty table for a terminal; names are data, never markup."""
    return rich.Table(
        title=Text(one_line(title), "table.title"),
        title_justify="left",
        caption=Text(caption, "table.caption") if caption else None,
        caption_justify="left",
    )


def _rich_cell(cell: Cell) -> Text:
    text = Text(format_measured(cell), style="bold" if cell.best else "")
    if cell.printed_text:
        text.append(f"\n{printed_reference(cell)}", style="not bold dim")
    return text


_FORMULA = re.compile("^'*[=+\\-@\t\r\n＝＋－＠]")
_GUARDED = re.compile("^'+[=+\\-@\t\r\n＝＋－＠]")


def guard_formula(value: Any) -> Any:
    """Return a text, prefixed with an apostrophe if a spreadsheet would evaluate it; numbers unchanged.

    A carriage return, which would end a row, is written as Python writes it.
    """
    if not isinstance(value, str):
        return value
    value = value.replace("\r", "\\r")
    return f"'{value}" if _FORMULA.match(value) else value


def unguard_formula(value: Any) -> Any:
    """Undo `guard_formula`."""
    return value[1:] if isinstance(value, str) and _GUARDED.match(value) else value


def csv_text(frame: pd.DataFrame) -> str:
    """Return a table as CSV, a line per row, names of columns and texts guarded.

    Parameters
    ----------
    frame : DataFrame
        The table. Numbers stay numbers. Characters that UTF-8 cannot hold (bytes of a file's name)
        become Python's escapes.
    """
    text: str = (
        frame.map(guard_formula)
        .rename(columns=guard_formula)
        .to_csv(index=False, lineterminator="\n")
    )
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def read_csv(path: Path | IO[str]) -> pd.DataFrame:
    """Read a table written by `csv_text`, with all cells as text.

    Parameters
    ----------
    path : Path or file
        The CSV file.

    Raises
    ------
    OSError, ValueError
        If it is missing, or not a table.
    """
    frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    return frame.map(unguard_formula).rename(columns=unguard_formula)
