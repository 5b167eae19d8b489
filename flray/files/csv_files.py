"""CSV files in which no name is a formula: spreadsheets compute what starts with = + - or @, whoever wrote it."""

from __future__ import annotations

import re
from pathlib import Path
from typing import IO, Any

import pandas as pd

_FORMULA = re.compile("^'*[=+\\-@\t\r\n＝＋－＠]")
_GUARDED = re.compile("^'+[=+\\-@\t\r\n＝＋－＠]")


def guard_formula(value: Any) -> Any:
    """Return a text with an apostrophe before it if a spreadsheet would compute it; numbers as they are.

    A carriage return, which would end a row, is written as Python writes it.
    """
    if not isinstance(value, str):
        return value
    value = value.replace("\r", "\\r")
    return f"'{value}" if _FORMULA.match(value) else value


def unguard_formula(value: Any) -> Any:
    """Return the text that `guarded` was given."""
    return value[1:] if isinstance(value, str) and _GUARDED.match(value) else value


def csv_text(frame: pd.DataFrame) -> str:
    """Return a table as CSV, a line per row, names of columns and texts guarded.

    Parameters
    ----------
    frame : DataFrame
        Numbers stay numbers. What UTF-8 cannot hold (bytes of a file's name) is written as Python
        writes it.
    """
    text: str = (
        frame.map(guard_formula)
        .rename(columns=guard_formula)
        .to_csv(index=False, lineterminator="\n")
    )
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def read_csv(path: Path | IO[str]) -> pd.DataFrame:
    """Return what `csv_text` wrote, all of it as text.

    Parameters
    ----------
    path : Path or file
        Where it stands.

    Raises
    ------
    OSError, ValueError
        If there is none, or it is no table.
    """
    frame = pd.read_csv(path, dtype=str, keep_default_na=False)
    return frame.map(unguard_formula).rename(columns=unguard_formula)
