"""The table of a sweep: a paper's own, made again beside its printed numbers, or one row per setting."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd

from flray.config.arms import PREFIX
from flray.config.paper import PaperTable
from flray.config.suites import SMOKE
from flray.papers import PAPERS, printed_numbers
from flray.results import measures
from flray.results.load import ResultSet, Trial
from flray.results.significance import Comparison, compare

_MOST_CLIENTS = 12
SMOKE_NOTE = "a smoke run: two short rounds on a few samples show that every method runs; its numbers mean nothing"
AVERAGE_COLUMN = "avg"
"""The client of a column that is a mean over clients, or the value of one model."""


@dataclass
class Cell:
    """One number of the table.

    Attributes
    ----------
    values : dict of int to float
        By seed; shares in percent.
    printed : float
        What the paper prints, NaN where nothing.
    printed_text : str
        The printed digits, with the printed spread.
    note : str
        What is odd about the printed number.
    best : bool
        Whether it is the best of its column.
    """

    values: dict[int, float] = field(default_factory=dict)
    printed: float = math.nan
    printed_text: str = ""
    note: str = ""
    best: bool = False

    @property
    def finite(self) -> list[float]:
        """The values that are numbers."""
        return [value for value in self.values.values() if math.isfinite(value)]

    @property
    def mean(self) -> float:
        """Mean over the seeds, NaN without any; infinite where a target was never reached at some seed."""
        if any(math.isinf(value) for value in self.values.values()):
            return math.inf
        return float(np.mean(self.finite)) if self.finite else math.nan

    @property
    def std(self) -> float:
        """Standard deviation over the seeds (n - 1), NaN with fewer than two."""
        return float(np.std(self.finite, ddof=1)) if len(self.finite) > 1 else math.nan

    @property
    def difference(self) -> float:
        """Mean minus the printed number."""
        return self.mean - self.printed


@dataclass(frozen=True)
class Column:
    """A column: the arms it stands for, and what is measured.

    Attributes
    ----------
    arms : tuple of (str, str)
        Axis and arm.
    client : str
        Or ``avg``.
    printed_metric, measure : str
        The paper's name and what it is here.
    """

    arms: tuple[tuple[str, str], ...]
    client: str
    printed_metric: str
    measure: str


@dataclass
class Table:
    """Rows of cells.

    Attributes
    ----------
    title : str
        Of the paper's table, or of the sweep.
    heading : str
        Of the first column.
    columns : list of Column
        With the texts above them in `heads`, one list of lines each.
    rows : dict of str to list of Cell
        By label.
    comparisons : list of (str, Comparison)
        By column: the best against the second.
    notes : list of str
        What a reader must know.
    """

    title: str
    heading: str
    columns: list[Column]
    heads: list[list[str]]
    rows: dict[str, list[Cell]]
    comparisons: list[tuple[str, Comparison]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def has_printed(self) -> bool:
        """Whether any cell has a printed number beside it."""
        return any(cell.printed_text for row in self.rows.values() for cell in row)


def main_table(source: ResultSet) -> Table:
    """Return the table of a sweep, the paper's where it belongs to one."""
    paper = source.paper
    table = (
        _paper_table(source, paper) if paper is not None and source.axes else _plain_table(source)
    )
    for position in range(len(table.columns)):
        mark_best(table, position)
    most = max((len(cell.values) for row in table.rows.values() for cell in row), default=0)
    for label, row in table.rows.items():
        counts = [len(cell.values) for cell in row]
        if len(set(counts)) == 1 and 0 < counts[0] < most:
            table.notes.append(f"{label}: {counts[0]} of {most} seeds")
        elif len(set(counts)) > 1:
            table.notes += [
                f"{label} · {' '.join(head)}: {count} of {most} seeds"
                for head, count in zip(table.heads, counts, strict=True)
                if 0 < count < most
            ]
    if source.name.endswith(SMOKE):
        table.title += " (smoke run)"
        table.notes.insert(0, SMOKE_NOTE)
    if source.protocol == "mean-last":
        table.notes.append(f"value of a run: mean of the last {source.last} evaluated rounds")
    if source.protocol == "best":
        table.notes.append(
            "value of a run: round of the best mean validation value, the last where there is none"
        )
    failed = [trial for trial in source.trials if trial.status == "failed"]
    table.notes += [
        f"failed: {source.label(trial)} seed {trial.seed}: {trial.failure}" for trial in failed
    ]
    stopped = sum(trial.status == "stopped" for trial in source.trials)
    waiting = sum(trial.status not in ("finished", "stopped", "failed") for trial in source.trials)
    if stopped:
        table.notes.append(
            f"{stopped} of {len(source.trials)} trials were stopped early by the scheduler"
        )
    if waiting:
        table.notes.append(
            f"{waiting} of {len(source.trials)} trials have not ended: the table is not complete"
        )
    table.notes += [
        f"not ended, counted with what it has reached: {source.label(trial)} seed {trial.seed}, "
        f"round "
        f"{int(trial.history['round'].max())}"
        for trial in source.trials
        if trial.status not in ("finished", "stopped", "failed") and len(trial.history)
    ]
    return table


def seeds_text(table: Table) -> str:
    """Return over how many seeds the means are."""
    counts = sorted(
        {len(cell.finite) for row in table.rows.values() for cell in row if cell.finite}
    )
    if counts == [1]:
        return "values of one seed, without a deviation"
    text = " or ".join(map(str, counts)) or "0"
    return f"mean ± standard deviation over {text} seeds" + (
        ", none for one seed" if 1 in counts else ""
    )


def _plain_table(source: ResultSet) -> Table:
    measured = [trial for trial in source.trials if trial.metric]
    names = list(dict.fromkeys(name for trial in measured for name in clients(trial)))
    names = [AVERAGE_COLUMN, *(names if len(names) <= _MOST_CLIENTS else [])]
    kinds = dict.fromkeys(client_measure(trial).partition("/")[0] for trial in measured)
    # Where models are judged on the other clients' data, how they do on their own is the other half
    # of the answer.
    also = [(f"own {AVERAGE_COLUMN}", AVERAGE_COLUMN, "own/")] if "others" in kinds else []
    shown = [("score" if name == AVERAGE_COLUMN else name, name, "") for name in names]
    metric = " or ".join(sorted({trial.metric for trial in measured}))
    columns = [
        Column(
            (), client, "", "auto" if client == AVERAGE_COLUMN and not kind else f"{kind}{metric}"
        )
        for _, client, kind in (*shown, *also)
    ]
    rows: dict[str, list[Cell]] = {}
    for trial in source.trials:
        row = rows.setdefault(source.label(trial), [Cell() for _ in columns])
        if trial.status == "failed" or not len(trial.history):
            continue
        for cell, (_, client, kind) in zip(row, (*shown, *also), strict=True):
            measure = (
                client_measure(trial, own=bool(kind))
                if kind or client != AVERAGE_COLUMN
                else "auto"
            )
            cell.values[trial.seed] = measures.value(
                trial, measure, client, source.protocol, source.last
            )
    sign = 1.0 if measures.lower_is_better(metric) else -1.0
    ordered = dict(
        sorted(rows.items(), key=lambda item: np.nan_to_num(sign * item[1][0].mean, nan=1e9))
    )
    table = Table(
        f"{source.name}: {metric}",
        "setting",
        columns,
        [[head] for head, _, _ in (*shown, *also)],
        ordered,
    )
    held: dict[str, set[str]] = {}
    for trial in measured:
        held.setdefault(source.label(trial), set()).add(trial.fingerprints.get("partition", ""))
    if len(names) > 1 and any(len(partitions) > 1 for partitions in held.values()):
        table.notes.append(
            "the seeds have other partitions: a client's mean is over clients with other data"
        )
    return table


def client_measure(trial: Trial, own: bool = False) -> str:
    """Return what a trial's clients are judged by: as the trial's metric has it, or (`own`) on their own test parts."""
    _, scope, name = (
        trial.metric.split("/", 2) if trial.metric.count("/") > 1 else ("", "", trial.metric)
    )
    return f"{'others' if scope == 'others' and not own else 'own'}/{name}"


def clients(trial: Trial) -> list[str]:
    """Return the clients for which a trial's measure was tracked."""
    return measures.clients(trial, f"{trial.view}/local/{trial.metric.rpartition('/')[2]}")


def _paper_table(source: ResultSet, paper: PaperTable) -> Table:
    printed = printed_numbers(paper.name, paper.table) if _has_numbers(paper) else None
    axes = source.axes
    rows_axis = paper.rows if paper.rows in axes else next(iter(axes))
    others = {axis: names for axis, names in axes.items() if axis != rows_axis}
    columns = []
    for combination in itertools.product(*others.values()):
        arms = tuple(zip(others, combination, strict=True))
        for metric, measure in paper.measures.items():
            for client in _clients(source, paper, printed, arms, metric):
                columns.append(Column(arms, client, metric, measure))
    made = {
        name: [_cell(source, paper, printed, (rows_axis, name), column) for column in columns]
        for name in axes[rows_axis]
    }
    rows = {
        name: row
        for name, row in made.items()
        if any(cell.values or cell.printed_text for cell in row)
    }
    keep = [
        i
        for i, _ in enumerate(columns)
        if any(row[i].values or row[i].printed_text for row in rows.values())
    ]
    heads = [
        [
            *(name for _, name in columns[i].arms),
            *([columns[i].printed_metric] if len(paper.measures) > 1 else []),
            *([columns[i].client] if paper.clients is not None else []),
        ]
        or [columns[i].printed_metric]
        for i in keep
    ]
    table = Table(
        f"{PAPERS[paper.name]} {paper.table}: {paper.title}",
        rows_axis,
        [columns[i] for i in keep],
        heads,
        {name: [row[i] for i in keep] for name, row in rows.items()},
    )
    # Settings given on the command line may have changed what the heads say.
    held = dict.fromkeys(
        f"{trial.partition['dataset']} "
        f"({sum(sum(c['train']) for c in trial.partition['clients']):,} "
        "training samples)"
        for trial in source.trials
        if trial.partition is not None
    )
    rounds = sorted(
        {int(trial.history["round"].max()) for trial in source.trials if len(trial.history)}
    )
    table.notes.append(
        f"run on {', '.join(held) or source.config['experiment']['data']['name']} for "
        f"{' to '.join(map(str, dict.fromkeys((rounds[0], rounds[-1]))))} rounds"
    )
    table.notes += [f"differs from the paper: {text}" for text in paper.departures]
    odd: dict[str, list[str]] = {}
    for label, row in table.rows.items():
        for head, cell in zip(table.heads, row, strict=True):
            if cell.note:
                odd.setdefault(cell.note, []).append(f"{label} ({' '.join(head)})")
    table.notes += [
        f"printed number of {', '.join(cells)}: {note}" for note, cells in sorted(odd.items())
    ]
    return table


def _has_numbers(paper: PaperTable) -> bool:
    from flray.papers import tables

    return paper.table in tables()[paper.name]


def _clients(
    source: ResultSet,
    paper: PaperTable,
    printed: pd.DataFrame | None,
    arms: Sequence[tuple[str, str]],
    metric: str,
) -> list[str]:
    """Return the clients of the columns of one combination of arms: those printed, else those that were run."""
    if paper.clients is None:
        return [AVERAGE_COLUMN]
    if printed is not None:
        return list(dict.fromkeys(_select(printed, paper, arms, metric)["client"]))
    trials = [trial for trial in source.trials if _is(trial, arms)]
    return [*dict.fromkeys(name for trial in trials for name in clients(trial)), AVERAGE_COLUMN]


def _cell(
    source: ResultSet,
    paper: PaperTable,
    printed: pd.DataFrame | None,
    row: tuple[str, str],
    column: Column,
) -> Cell:
    arms = (row, *column.arms)
    names = (paper.clients or {}).get(column.client, (column.client or AVERAGE_COLUMN,))
    cell = Cell(
        {
            trial.seed: measures.first_available(
                trial, column.measure, names, source.protocol, source.last
            )
            for trial in source.trials
            if _is(trial, arms) and trial.status != "failed" and len(trial.history)
        }
    )
    if printed is not None:
        found = _select(printed, paper, arms, column.printed_metric)
        found = found[
            found["client"].isin(
                [column.client, ""] if column.client == AVERAGE_COLUMN else [column.client]
            )
        ]
        if len(found) == 1 and len(found["value"].item()):
            cell.printed, cell.note = float(found["number"].item()), str(found["note"].item())
            spread = found["std"].item()
            cell.printed_text = found["value"].item() + (f" ± {spread}" if spread else "")
    return cell


def printed_rows(paper: PaperTable, arms: Sequence[tuple[str, str]], metric: str) -> pd.DataFrame:
    """Return the printed numbers of a combination of arms, for all clients.

    Parameters
    ----------
    paper : PaperTable
        Which table.
    arms : sequence of (str, str)
        Axis and arm.
    metric : str
        The printed one.
    """
    return _select(printed_numbers(paper.name, paper.table), paper, arms, metric)


def _select(
    printed: pd.DataFrame, paper: PaperTable, arms: Sequence[tuple[str, str]], metric: str
) -> pd.DataFrame:
    wanted = {"metric": metric}
    for axis, name in arms:
        if axis == "method":
            wanted["method"] = name
        wanted |= paper.printed.get(axis, {}).get(name, {})
    keep = np.ones(len(printed), dtype=bool)
    for column, text in wanted.items():
        keep &= (printed[column] == text).to_numpy()
    return printed[keep]


def _is(trial: Trial, arms: Sequence[tuple[str, str]]) -> bool:
    return all(trial.setting.get(f"{PREFIX}{axis}") == name for axis, name in arms)


def mark_best(table: Table, position: int) -> None:
    """Mark the best of a column and compare it with the second.

    Parameters
    ----------
    table : Table
        Is changed.
    position : int
        Of the column.
    """
    measure = table.columns[position].measure
    sign = 1.0 if measures.lower_is_better(measure) else -1.0
    cells: list[tuple[str, Any]] = [
        (name, row[position])
        for name, row in table.rows.items()
        if math.isfinite(row[position].mean)
    ]
    if not cells:
        return
    ranked = sorted(cells, key=lambda item: sign * item[1].mean)
    for _, cell in cells:
        cell.best = cell.mean == ranked[0][1].mean
    if len(ranked) > 1:
        head = " ".join(table.heads[position])
        table.comparisons.append(
            (head, compare(ranked[0][0], ranked[0][1].values, ranked[1][0], ranked[1][1].values))
        )
