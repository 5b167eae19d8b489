"""The numbers printed in the four papers, and the suites that make them again.

One row per printed number. ``method`` holds the registered name, if any, ``setting`` tags joined by
commas, ``client`` a client's name or ``avg``; an empty ``value`` could not be read and its ``note``
says so.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from flray.errors import FlrayError, nearest

if TYPE_CHECKING:
    import pandas as pd


COLUMNS = (
    *("paper", "table", "method", "dataset", "setting"),
    *("client", "metric", "value", "std", "note"),
)
_NUMBERS = Path(__file__).with_name("numbers")
PAPERS = {"fedco2": "Fed-CO2", "fcclplus": "FCCL+", "fedskc": "FedSKC", "lgmix": "LG-Mix"}


def printed_numbers(paper: str, table: str) -> pd.DataFrame:
    """Return the numbers of one table or figure.

    Parameters
    ----------
    paper : str
        ``fedco2``, ``fcclplus``, ``fedskc`` or ``lgmix``.
    table : str
        ``table1``, ``fig7`` and so on; see `tables`.

    Returns
    -------
    DataFrame
        Columns `COLUMNS`. All hold text except for the floats ``number`` (of ``value``) and
        ``spread`` (of ``std``). These are NaN if the paper prints no number there; ``value`` keeps
        the printed digits.

    Raises
    ------
    FlrayError
        If the paper or the table is unknown.
    """
    known = tables()
    if paper not in known:
        raise FlrayError(
            f"unknown paper {paper!r}{nearest(paper, known)}; one of {', '.join(known)}"
        )
    if table not in known[paper]:
        raise FlrayError(
            f"no numbers of {PAPERS[paper]} {table!r}{nearest(table, known[paper])}; there are "
            f"{', '.join(known[paper])}"
        )
    return _read(paper, table).copy()


@cache
def tables() -> dict[str, list[str]]:
    """Return the names of each paper's tables and figures, in the order of the paper."""
    names = sorted(
        (path.stem for path in _NUMBERS.glob("*.csv")),
        key=lambda name: [
            int(part) if part.isdigit() else part for part in re.split(r"(\d+)$", name)
        ],
    )
    return {
        paper: [name.removeprefix(f"{paper}_") for name in names if name.startswith(f"{paper}_")]
        for paper in PAPERS
    }


@cache
def _read(paper: str, table: str) -> pd.DataFrame:
    import pandas as pd  # nearly a second that processes which never print a table need not spend

    path = _NUMBERS / f"{paper}_{table}.csv"
    frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    frame["table"] = table
    frame["number"] = pd.to_numeric(frame["value"], errors="coerce")
    frame["spread"] = pd.to_numeric(frame["std"], errors="coerce")
    return frame
