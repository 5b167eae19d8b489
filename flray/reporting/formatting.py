"""Texts of a report that are the same in every format."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from flray.results.build_table import describe_seeds
from flray.results.costs import Cost
from flray.results.formatting import MISSING, NOT_REACHED, format_mean_std
from flray.results.ranks import Ranks, win_matrix
from flray.results.table import Cell, Table
from flray.results.variance import Variance

COST_HEADS = (
    "setting",
    "rounds to target",
    "bytes up",
    "bytes down",
    "seconds",
    "s/round",
    "memory",
)


def format_measured(cell: Cell) -> str:
    """Return ``80.12 ± 0.30``; a dash where nothing was measured, and how many seeds reach a target if not all."""
    if math.isinf(cell.mean) and cell.finite:
        return _of_some(f"{np.mean(cell.finite):.2f}", len(cell.finite), len(cell.values))
    return format_mean_std(cell.mean, cell.std)


def printed_reference(cell: Cell) -> str:
    """Return ``82.35 (-2.23)``: the printed number and how far the measured one is from it."""
    if not cell.printed_text:
        return ""
    return cell.printed_text + (
        f" ({cell.difference:+.2f})" if math.isfinite(cell.difference) else ""
    )


def legend(table: Table) -> str:
    """Return what a reader of the table must know."""
    units = f"{describe_seeds(table)[:1].upper()}{describe_seeds(table)[1:]}; shares in percent; best in bold."
    return units + (
        " Below: the printed number (measured minus printed)." if table.has_printed else ""
    )


def notes(table: Table) -> list[str]:
    """Return what a reader of the numbers must know."""
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


@dataclass(frozen=True)
class Listing:
    """A table below the main one, the same in every format.

    Attributes
    ----------
    title : str
        Above it.
    heads : sequence of str
        Of the columns.
    rows : sequence of sequence of str
        Its cells.
    note : str
        Below it.
    """

    title: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def listings(table: Table, costs: Sequence[Cost]) -> list[Listing]:
    """Return the tables below the main one: wins over places, shares of the variance, costs."""
    found = [_wins(measure, ranks, table) for measure, ranks in table.studies.ranks.items()]
    if table.variances:
        found.append(_shares(table.variances))
    for group, members in itertools.groupby(costs, key=lambda cost: cost.group):
        every = list(members)
        title = f"Costs{f' · {group}' if group else ''} (means over seeds; target {target_text(every[0])})"
        found.append(Listing(title, COST_HEADS, list(map(cost_row, every))))
    return found


def _wins(measure: str, ranks: Ranks, table: Table) -> Listing:
    several = f" · {measure}" if len(table.studies.ranks) > 1 else ""
    rows = [[name, *cells] for name, cells in zip(ranks.names, win_matrix(ranks), strict=True)]
    return Listing(
        f"Wins, ties and losses over {len(ranks.places)} places{several}",
        ["setting", *ranks.names],
        rows,
        "In how many places the mean of the row's setting is better than that of the column's, "
        "equal, and worse.",
    )


def _shares(variances: Sequence[Variance]) -> Listing:
    rows = [
        [
            one.name,
            f"{one.partitions} x {one.seeds}",
            format_number(math.sqrt(one.partition + one.seed + one.both)),
            *(MISSING if math.isnan(share) else f"{100 * share:.0f} %" for share in one.shares),
        ]
        for one in variances
    ]
    heads = [
        "setting",
        "partitions x seeds",
        "std",
        "who holds what",
        "run's seed",
        "both together",
    ]
    return Listing(
        "Shares of the variance",
        heads,
        rows,
        "std: of a single run, under another partition and another seed. Of its square: partition.seed "
        "(who holds what), seed (initialisation, order, sampling), and what only both together "
        "explain; from mean squares. With few of each the shares are rough.",
    )


def cost_row(cost: Cost) -> list[str]:
    """Return a setting's costs under `COST_HEADS`."""
    rounds = _of_some(f"{cost.rounds:.1f}", cost.reached, cost.seeds)
    return [
        cost.label,
        rounds if cost.reached else NOT_REACHED,
        format_bytes(cost.up),
        format_bytes(cost.down),
        format_number(cost.seconds),
        format_number(cost.round_seconds),
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
    return (
        MISSING if math.isnan(value) else f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    )
