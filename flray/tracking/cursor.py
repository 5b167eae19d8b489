"""Cursor of a run's journal: the part sent to MLflow, stored in ``tracking.json``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from types import NoneType

from flray.errors import FlrayError
from flray.files.atomic import write_atomically
from flray.files.border import WEIGHTS_BYTES, open_file, read_json
from flray.files.tracking_address import redact
from flray.records.events import JOURNAL

CURSOR = "tracking.json"


@dataclass
class Cursor:
    """The sent part of a journal, and the MLflow run it was sent to.

    Parameters
    ----------
    uri : str
        The tracking address.
    run_id, experiment_id : str, optional
        MLflow's ids of the run; None before it exists.
    offset : int
        Bytes of the journal that have been sent.
    """

    uri: str
    run_id: str | None = None
    experiment_id: str | None = None
    offset: int = 0


def read(run_dir: Path) -> Cursor | None:
    """Return the cursor of `run_dir`, or None if nothing was sent or the file is unreadable."""
    try:
        content = read_json(
            run_dir / CURSOR,
            {"uri": str},
            {"run_id": (str, NoneType), "experiment_id": (str, NoneType), "offset": int},
        )
        cursor = Cursor(**content)
        return cursor if 0 <= cursor.offset <= WEIGHTS_BYTES else None
    except (FlrayError, TypeError):
        return None


def load(run_dir: Path, uri: str) -> Cursor:
    """Return where to resume sending to `uri`; the beginning is always safe, as MLflow stores each point once."""
    cursor = read(run_dir)
    if cursor is None or redact(cursor.uri) != uri:
        return Cursor(uri)
    try:
        with open_file(run_dir / JOURNAL, WEIGHTS_BYTES) as file:
            file.seek(max(cursor.offset - 1, 0))
            if cursor.offset and file.read(1) != b"\n":
                cursor.offset = 0  # a crash of the machine shortened the journal
    except FileNotFoundError:
        cursor.offset = 0
    return cursor


def save(run_dir: Path, cursor: Cursor) -> None:
    """Write the cursor atomically."""
    write_atomically(run_dir / CURSOR, json.dumps(asdict(cursor)).encode())


def unsent_lines(run_dir: Path, offset: int) -> Iterator[tuple[bytes, int]]:
    """Yield each complete line of the journal from byte `offset` on, with the offset of its end."""
    journal = run_dir / JOURNAL
    if not journal.exists():
        return
    with open_file(journal, WEIGHTS_BYTES) as file:
        file.seek(offset)
        for line in file:
            if not line.endswith(b"\n"):
                return
            offset += len(line)
            yield line, offset
