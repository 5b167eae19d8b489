"""Tables of results: cells with one value per seed, the best of each column, and what can be concluded."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from flray.metrics.direction import lower_is_better
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
        The paper's number, NaN where there is none.
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
    """A column: the measure of one client, or the average, under some arms.

    Attributes
    ----------
    head : tuple of str
        The texts above it, a line each.
    measure : str
        See `flray.config.paper.PaperTable.measures`; decides which value is best.
    client : str
        Its name, or ``avg``.
    arms : tuple of (str, str)
        Axis and arm.
    printed_metric : str
        The paper's name of the measure.
    follows : bool
        Whether the row to mark is the best of the first column, by which it was chosen.
    """

    head: tuple[str, ...]
    measure: str
    client: str = "avg"
    arms: tuple[tuple[str, str], ...] = ()
    printed_metric: str = ""
    follows: bool = False


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
        One for each cell of a row.
    rows : dict of str to list of Cell
        By label.
    conclusions : list of str
        What can be concluded, a sentence each.
    studies : Studies
        The comparisons behind them.
    variances : list of Variance
        Of settings whose partition was varied apart from the run's seed.
    notes : list of str
        What a reader must know.
    """

    title: str
    heading: str
    columns: list[Column]
    rows: dict[str, list[Cell]]
    conclusions: list[str] = field(default_factory=list)
    studies: Studies = field(default_factory=Studies)
    variances: list[Variance] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def heads(self) -> list[list[str]]:
        """The lines of text above each column."""
        return [list(column.head) for column in self.columns]

    @property
    def cells(self) -> Iterator[Cell]:
        """All cells."""
        return (cell for row in self.rows.values() for cell in row)

    @property
    def has_printed(self) -> bool:
        """Whether any cell has a printed number."""
        return any(cell.printed_text for cell in self.cells)

    def sort_rows(self) -> None:
        """Put the row that is best in the first column first; rows without a number last."""
        sign = 1.0 if lower_is_better(self.columns[0].measure) else -1.0
        self.rows = dict(
            sorted(
                self.rows.items(), key=lambda item: np.nan_to_num(sign * item[1][0].mean, nan=1e9)
            )
        )

    def mark_best(self) -> None:
        """Mark the best of every column."""
        for position, column in enumerate(self.columns):
            cells = [r[position] for r in self.rows.values() if math.isfinite(r[position].mean)]
            means = [cell.mean for cell in cells]
            best = (min if lower_is_better(column.measure) else max)(means, default=math.nan)
            for cell in cells:
                cell.best = cell.mean == best
            if column.follows:
                for row in self.rows.values():
                    row[position].best = row[0].best
