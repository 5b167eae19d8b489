"""CSV files safe from formula injection: spreadsheets evaluate cells that start with = + - or @."""

import re
from pathlib import Path
from typing import IO, Any

import pandas as pd

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
