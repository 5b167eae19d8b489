"""Events of a run: one line of strict JSON each, the lines of its journal."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, create_model

from flray.errors import DataError
from flray.files.border import parse_json, read

if TYPE_CHECKING:
    import pandas as pd

JOURNAL = "journal.jsonl"
PHASE, TUNED, REPETITION = "flray.phase", "flray.tuned", "flray.repetition"
"""Tags: ``tuning`` or ``comparison``; names of the tuned settings, with commas between them; the number of the
tuning, from 0."""
FIRST = "_"
"""Prefix of parameters that differ between trials: MLflow sorts them before all others."""
Event = dict[str, Any]
_BEGINNING = b'{"type":"'
# JSON escapes control characters: none is in a line. A machine's crash leaves blocks of zeros.
_TORN = re.compile(rb"[^\x00-\x1f]*(\x00[\x00\n]*)?")
_FIELDS: dict[str, dict[str, Any]] = {
    "start": {
        "time": int,
        "uid": str,
        "experiment": str,
        "name": str,
        "parent": str | None,
        "params": dict[str, str],
        "tags": dict[str, str],
    },
    "round": {"time": int, "round": int, "metrics": dict[str, float | str]},
    "artifact": {"path": str, "to": str},
    "data": {"name": str, "digest": str, "source": str, "profile": dict[str, Any]},
    "tags": {"tags": dict[str, str]},
    "params": {"params": dict[str, str]},
    "resume": {"time": int},
    "called": {"callback": str, "round": int},
    "end": {"time": int, "status": str},
}
_FORMS = {
    kind: create_model(kind, __config__=ConfigDict(strict=True), **fields)
    for kind, fields in _FIELDS.items()
}


def encode(event: Mapping[str, Any]) -> bytes:
    """Return an event as one line of strict JSON; metrics that are not finite become strings."""
    if "metrics" in event:
        metrics = {
            name: value if math.isfinite(value) else str(value)
            for name, value in event["metrics"].items()
        }
        event = {**event, "metrics": metrics}
    return (
        json.dumps(event, allow_nan=False, ensure_ascii=False, separators=(",", ":")).encode()
        + b"\n"
    )


def decode(line: bytes) -> Event:
    """Return the event of one line; every metric is restored bit for bit.

    Raises
    ------
    ValueError
        If the line is not an event.
    """
    event: Event = parse_json(line.decode("utf-8", "surrogatepass"))
    if not isinstance(event, dict) or not isinstance(event.get("type"), str):
        raise ValueError("not an event")
    if (form := _FORMS.get(event["type"])) is not None:
        form.model_validate(event)
    if event["type"] == "round":
        event["metrics"] = {name: float(value) for name, value in event["metrics"].items()}
    return event


def read_events(path: Path) -> list[Event]:
    """Return all complete events of a journal, without a last line that a kill truncated.

    Parameters
    ----------
    path : Path
        The journal file, or a run directory. A missing file is an empty journal.

    Raises
    ------
    DataError
        If a line is not an event, or the file is not a regular one.
    """
    file = path / JOURNAL if path.is_dir() and path.name != JOURNAL else path
    return parse_events(read(file), file)[0] if file.exists() else []


def rounds_of(events: Iterable[Event]) -> dict[int, dict[str, float]]:
    """Return the metrics of each round among `events`; later records of a round win."""
    return {event["round"]: event["metrics"] for event in events if event["type"] == "round"}


def history_of(events: Iterable[Event]) -> pd.DataFrame:
    """Return the rounds among `events` as a table: column ``round`` first, then one column per metric."""
    import pandas as pd  # takes a second; processes that only write journals do not need it

    rows = [{"round": round_, **metrics} for round_, metrics in rounds_of(events).items()]
    table = pd.DataFrame(rows) if rows else pd.DataFrame({"round": pd.Series(dtype="int64")})
    return table.sort_values("round", ignore_index=True)


def parse_events(data: bytes, path: Path) -> tuple[list[Event], int]:
    """Return the complete events in `data`, read from `path`, and their length in bytes.

    Raises
    ------
    DataError
        If a line is not an event. A last line that a kill or a crash tore is none: it begins as an
        event does and has no end, or zeros in place of one.
    """
    events: list[Event] = []
    end = 0
    while (newline := data.find(b"\n", end)) >= 0:
        try:
            events.append(decode(data[end:newline]))
        except ValueError:
            break
        end = newline + 1
    torn = data[end:]
    if not _TORN.fullmatch(torn) or not _BEGINNING.startswith(
        torn[: len(_BEGINNING)].rstrip(b"\0\n")
    ):
        raise DataError(
            f"{path}, line {len(events) + 1}: not an event, and no line that a kill cut off; mend or remove that line"
        )
    return events, end
