"""How far a run's journal has been sent to MLflow, kept beside it in ``tracking.json``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import NoneType

from flray.config.shapes import read_json
from flray.errors import FlrayError
from flray.files.atomic import write_atomically
from flray.runs.journal import JOURNAL

CURSOR = "tracking.json"


@dataclass
class Cursor:
    """How far a journal has been sent, and to which run.

    Parameters
    ----------
    uri : str
        The tracking address.
    run_id, experiment_id : str, optional
        MLflow's names of the run; None as long as there is no run.
    offset : int
        Bytes of the journal that have been sent.
    """

    uri: str
    run_id: str | None = None
    experiment_id: str | None = None
    offset: int = 0


def read(run_dir: Path) -> Cursor | None:
    """Return what `run_dir` remembers, None if nothing was sent or the file cannot be read."""
    try:
        content = read_json(
            run_dir / CURSOR,
            {"uri": str},
            {"run_id": (str, NoneType), "experiment_id": (str, NoneType), "offset": int},
        )
        return Cursor(**content)
    except (FlrayError, TypeError):
        return None


def load(run_dir: Path, uri: str) -> Cursor:
    """Return where to go on sending to `uri`; the beginning is always safe, for MLflow keeps each point once."""
    cursor = read(run_dir)
    if cursor is None or cursor.uri != uri:
        return Cursor(uri)
    try:
        with (run_dir / JOURNAL).open("rb") as file:
            file.seek(max(cursor.offset - 1, 0))
            if cursor.offset and file.read(1) != b"\n":
                cursor.offset = 0  # a crash of the machine shortened the journal
    except FileNotFoundError:
        cursor.offset = 0
    return cursor


def save(run_dir: Path, cursor: Cursor) -> None:
    """Write the cursor whole or not at all."""
    write_atomically(run_dir / CURSOR, json.dumps(asdict(cursor)).encode())


def unsent_lines(run_dir: Path, offset: int) -> Iterator[tuple[bytes, int]]:
    """Yield each whole line of the journal from byte `offset` on, with the offset of its end."""
    journal = run_dir / JOURNAL
    if not journal.exists():
        return
    with journal.open("rb") as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            yield line, offset
