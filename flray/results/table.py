"""Tables of results: cells with one value per seed, the best of each column, and the conclusions."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from flray.config.arms import PREFIX
from flray.config.sweep import PaperTable
from flray.papers import PAPERS, printed_numbers, tables
from flray.results import ResultSet, Trial, measures
from flray.results.study import Studies
from flray.results.variance import Variance


@dataclass
class Cell:
    """One number of the table.

    Attributes
    ----------
    values : dict of int to float
        By seed; shares in percent.
    printed : float
        The paper's number; NaN if the paper has none.
    printed_text : str
        The printed digits, with the printed spread.
    note : str
        A remark on an odd printed number.
    best : bool
        Whether its setting is decided to be better than every other there.
    rounds : bool
        Whether the values are rounds until a target is reached, infinite if it never is.
    """

    values: dict[int, float] = field(default_factory=dict)
    printed: float = math.nan
    printed_text: str = ""
    note: str = ""
    best: bool = False
    rounds: bool = False

    @property
    def finite(self) -> list[float]:
        """The values that are numbers."""
        return [value for value in self.values.values() if math.isfinite(value)]

    @property
    def mean(self) -> float:
        """Mean over the seeds, NaN without any; infinite if a model diverged, or never reached a target."""
        if infinite := [value for value in self.values.values() if math.isinf(value)]:
            return sum(infinite)
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
    """A column: the measure of one client, or the average, under some arms.

    Attributes
    ----------
    head : tuple of str
        The texts above it, a line each.
    measure : str
        See `flray.config.sweep.PaperTable.measures`.
    client : str
        Its name, or ``avg``.
    arms : tuple of (str, str)
        Axis and arm.
    printed_metric : str
        The paper's name of the measure.
    compared : bool
        Whether settings are compared by it.
    """

    head: tuple[str, ...]
    measure: str
    client: str = "avg"
    arms: tuple[tuple[str, str], ...] = ()
    printed_metric: str = ""
    compared: bool = False


@dataclass
class Table:
    """Rows of cells.

    Attributes
    ----------
    title : str
        The title of the paper's table, or of the sweep.
    heading : str
        The head of the first column.
    columns : list of Column
        One for each cell of a row.
    rows : dict of str to list of Cell
        The rows by label.
    conclusions : list of str
        The conclusions, one sentence each.
    studies : Studies
        The comparisons behind the conclusions.
    variances : list of Variance
        The components of the variance, of settings or of differences.
    notes : list of str
        Notes for the reader.
    """

    title: str
    heading: str
    columns: list[Column]
    rows: dict[str, list[Cell]] = field(default_factory=dict)
    conclusions: list[str] = field(default_factory=list)
    studies: Studies = field(default_factory=Studies)
    variances: list[Variance] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def cells(self) -> Iterator[Cell]:
        """All cells."""
        return (cell for row in self.rows.values() for cell in row)

    @property
    def has_printed(self) -> bool:
        """Whether any cell has a printed number."""
        return any(cell.printed_text for cell in self.cells)


Arms = tuple[tuple[str, str], ...]


def build_paper_table(source: ResultSet, paper: PaperTable) -> Table:
    """Return a paper's table: an axis of arms as rows, the others with clients and measures as columns.

    Parameters
    ----------
    source : ResultSet
        A sweep with arms.
    paper : PaperTable
        The printed table.
    """
    axes = source.axes
    rows_axis = source.rows
    others = {axis: names for axis, names in axes.items() if axis != rows_axis}
    columns = [
        Column(_head(paper, arms, metric, client), measure, client, arms, metric)
        for combination in itertools.product(*others.values())
        for arms in [tuple(zip(others, combination, strict=True))]
        for metric, measure in paper.measures.items()
        for client in _clients(source, paper, arms, metric)
    ]
    rows = {
        name: [_cell(source, paper, ((rows_axis, name), *c.arms), c) for c in columns]
        for name in axes[rows_axis]
    }
    rows = {name: row for name, row in rows.items() if any(map(_has_content, row))}
    kept = [i for i, _ in enumerate(columns) if any(_has_content(row[i]) for row in rows.values())]
    table = Table(
        f"{PAPERS[paper.name]} {paper.table}: {paper.title}",
        rows_axis,
        [columns[i] for i in kept],
        {name: [row[i] for i in kept] for name, row in rows.items()},
    )
    means = any(column.client == measures.AVERAGE for column in table.columns)
    table.columns = [
        replace(column, compared=column.client == measures.AVERAGE or not means)
        for column in table.columns
    ]
    table.notes = [
        _describe_data(source),
        *(f"differs from the paper: {text}" for text in paper.departures),
        *_printed_notes(table),
    ]
    return table


def printed_rows(paper: PaperTable, arms: Sequence[tuple[str, str]], metric: str) -> pd.DataFrame:
    """Return the printed numbers of a combination of arms, for all clients.

    Parameters
    ----------
    paper : PaperTable
        The printed table.
    arms : sequence of (str, str)
        Axis and arm.
    metric : str
        The printed one.
    """
    printed = printed_numbers(paper.name, paper.table)
    wanted = {"metric": metric}
    for axis, name in arms:
        if axis == "method":
            wanted["method"] = name
        wanted.update(paper.printed.get(axis, {}).get(name, {}).items())
    return printed[(printed[list(wanted)] == pd.Series(wanted)).all(axis=1)]


def _head(paper: PaperTable, arms: Arms, metric: str, client: str) -> tuple[str, ...]:
    head = tuple(name for _, name in arms)
    head += (metric,) if len(paper.measures) > 1 else ()
    head += (client,) if paper.clients is not None else ()
    return head or (metric,)


def _has_numbers(paper: PaperTable) -> bool:
    return paper.table in tables()[paper.name]


def _has_content(cell: Cell) -> bool:
    return bool(cell.values or cell.printed_text)


def _clients(source: ResultSet, paper: PaperTable, arms: Arms, metric: str) -> list[str]:
    """Return the clients of the columns of one combination of arms: those printed, else those that were run."""
    if paper.clients is None:
        return [measures.AVERAGE]
    printed = printed_rows(paper, arms, metric)["client"] if _has_numbers(paper) else ()
    if len(printed):  # data of one's own have no printed numbers
        return list(dict.fromkeys(printed))
    trials = [trial for trial in source.trials if has_arms(trial, arms)]
    names = dict.fromkeys(name for trial in trials for name in measures.clients(trial))
    return [*names, measures.AVERAGE]


def column_value(trial: Trial, column: Column, paper: PaperTable | None = None) -> float:
    """Return a trial's value in a column; a paper may have several names for its client."""
    clients = (paper.clients if paper is not None else None) or {}
    names = clients.get(column.client, (column.client or measures.AVERAGE,))
    found = (measures.value(trial, column.measure, name) for name in names)
    return next((one for one in found if not math.isnan(one)), math.nan)


def _cell(source: ResultSet, paper: PaperTable, arms: Arms, column: Column) -> Cell:
    cell = Cell(
        {
            trial.seed: column_value(trial, column, paper)
            for trial in source.trials
            if has_arms(trial, arms) and trial.status != "failed" and len(trial.history)
        },
        rounds=">=" in column.measure,
    )
    if _has_numbers(paper):
        printed = printed_rows(paper, arms, column.printed_metric)
        wanted = [column.client, ""] if column.client == measures.AVERAGE else [column.client]
        found = printed[printed["client"].isin(wanted)].to_dict("records")
        if len(found) == 1 and found[0]["value"]:
            (row,) = found
            cell.printed, cell.note = float(row["number"]), str(row["note"])
            cell.printed_text = row["value"] + (f" ± {row['std']}" if row["std"] else "")
    return cell


def has_arms(trial: Trial, arms: Arms) -> bool:
    """Return whether a trial is one of the arms, an axis and its arm each."""
    return all(trial.setting.get(f"{PREFIX}{axis}") == name for axis, name in arms)


def _describe_data(source: ResultSet) -> str:
    """Return the data and rounds of the runs; settings on the command line may have changed them."""
    data = dict.fromkeys(
        f"{trial.partition['dataset']} "
        f"({sum(sum(c['train']) for c in trial.partition['clients']):,} training samples)"
        for trial in source.trials
        if trial.partition is not None
    )
    rounds = [int(trial.history["round"].max()) for trial in source.trials if len(trial.history)]
    span = " to ".join(map(str, dict.fromkeys((min(rounds, default=0), max(rounds, default=0)))))
    names = ", ".join(data) or source.config["experiment"]["data"]["name"]
    return f"run on {names} for {span} round{'s' * (span != '1')}"


def _printed_notes(table: Table) -> list[str]:
    """Return remarks on odd printed numbers, with the cells that have them."""
    odd: dict[str, list[str]] = {}
    for label, row in table.rows.items():
        for column, cell in zip(table.columns, row, strict=True):
            if cell.note:
                odd.setdefault(cell.note, []).append(f"{label} ({' '.join(column.head)})")
    return [f"printed number of {', '.join(cells)}: {note}" for note, cells in sorted(odd.items())]
