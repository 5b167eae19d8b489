"""Text of numbers and tables in the terminal, the same for sweeps, reports and kept files."""

from __future__ import annotations

import math
from collections.abc import Sequence

from rich.table import Table
from rich.text import Text

from flray.errors import one_line

MISSING, NOT_REACHED = "–", "never"
CONCLUSIONS = "What can be concluded:"


def conclusion_text(lines: Sequence[str]) -> str:
    """Return conclusions as plain text below a heading; empty without any."""
    return "\n".join([CONCLUSIONS, *(f"- {one_line(line)}" for line in lines)]) if lines else ""


def format_mean_std(mean: float, std: float, digits: int = 2, missing: str = MISSING) -> str:
    """Return ``80.12 ± 0.30``, or only ``80.12`` if the deviation is NaN."""
    if math.isinf(mean):
        return NOT_REACHED
    if math.isnan(mean):
        return missing
    return f"{mean:.{digits}f}" + ("" if math.isnan(std) else f" ± {std:.{digits}f}")


def rich_table(
    title: str, left: Sequence[str], right: Sequence[Sequence[str]], caption: str = ""
) -> Table:
    """Return an empty table for a terminal; names are data, never markup.

    Parameters
    ----------
    title : str
        Above it.
    left : sequence of str
        Heads of the first columns, which hold text.
    right : sequence of sequence of str
        Heads of the others, which hold numbers, a line each.
    caption : str
        Below it.
    """
    table = Table(
        title=Text(one_line(title), "table.title"),
        title_justify="left",
        caption=Text(caption, "table.caption") if caption else None,
        caption_justify="left",
    )
    for head in left:
        table.add_column(Text(one_line(head)))
    for lines in right:
        table.add_column(Text("\n".join(map(one_line, lines))), justify="right")
    return table
