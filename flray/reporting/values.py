"""A report's tables as JSON values."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from flray.reporting import formatting
from flray.results.costs import Cost
from flray.results.table import Cell, Column, Table


def report_values(table: Table, costs: Sequence[Cost], files: Iterable[Path]) -> dict[str, object]:
    """Return a report as JSON values; what is no finite number is null.

    Parameters
    ----------
    table : Table
        Its main table; shares are in percent.
    costs : sequence of Cost
        By setting.
    files : iterable of Path
        What was written.
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
                    _cell(column, cell) for column, cell in zip(table.columns, row, strict=True)
                ],
            }
            for label, row in table.rows.items()
        ],
        "comparisons": json.loads(compared),
        "costs": [{name: _finite(value) for name, value in vars(one).items()} for one in costs],
        "notes": list(formatting.notes(table)),
        "files": [str(path) for path in files],
    }


def _cell(column: Column, cell: Cell) -> dict[str, object]:
    values: dict[str, object] = {
        "column": " ".join(column.head),
        "measure": column.measure,
        "client": column.client,
        "mean": _finite(cell.mean),
        "std": _finite(cell.std),
        "seeds": {str(seed): _finite(value) for seed, value in cell.values.items()},
        "best": cell.best,
    }
    return values | ({"printed": _finite(cell.printed)} if cell.printed_text else {})


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
