"""A run's journal: every event as one line of strict JSON, both the history and the outbox to the tracking server.

Also the record of its partition, ``partition.json``.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NotRequired

from filelock import BaseFileLock
from pydantic import ConfigDict, Field, TypeAdapter, create_model, with_config
from typing_extensions import TypedDict

from flray.errors import DataError, FlrayError
from flray.files import BusyError, parse_json, read, read_json, take_lock
from flray.metrics import clean_name

if TYPE_CHECKING:
    import pandas as pd


JOURNAL = "journal.jsonl"
Event = dict[str, Any]
_BEGINNING = b'{"type":"'
Status = Literal["FINISHED", "FAILED", "KILLED"]
_UID = r"^[\w.\-]+$"
_Uid = Annotated[str, Field(pattern=_UID)]
_Time = Annotated[int, Field(ge=0, lt=2**63)]
_Round = Annotated[int, Field(ge=0, le=10**9)]
_FIELDS: dict[str, dict[str, Any]] = {
    "start": {
        "time": _Time,
        "uid": _Uid,
        "experiment": str,
        "name": str,
        "parent": _Uid | None,
        "params": dict[str, str],
        "tags": dict[str, str],
    },
    "round": {"time": _Time, "round": _Round, "metrics": dict[str, float | str]},
    "artifact": {"path": str, "to": str},
    "data": {"name": str, "digest": str, "source": str, "profile": dict[str, Any]},
    "tags": {"tags": dict[str, str]},
    "params": {"params": dict[str, str]},
    "resume": {"time": _Time},
    "called": {"callback": str, "round": _Round},
    "end": {"time": _Time, "status": Status},
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
    # JSON escapes control characters: none is in a line. A machine's crash leaves blocks of zeros.
    if not re.fullmatch(rb"[^\x00-\x1f]*(\x00[\x00\n]*)?", torn) or not _BEGINNING.startswith(
        torn[: len(_BEGINNING)].rstrip(b"\0\n")
    ):
        raise DataError(
            f"{path}, line {len(events) + 1}: not an event, and no line that a kill cut off; mend or remove that line"
        )
    return events, end


Listener = Callable[[Path], None]
_listeners: list[Listener] = []


def listen(listener: Listener) -> Callable[[], None]:
    """Register a function to be called with a journal's path after every event this process writes to any journal.

    Parameters
    ----------
    listener : callable
        Called by the thread that writes, so it must return at once and raise nothing.

    Returns
    -------
    callable
        Unregisters it.
    """
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)


def milliseconds() -> int:
    """Return the current time in milliseconds since 1970, MLflow's unit."""
    return time.time_ns() // 1_000_000


def lock_journal(path: Path) -> BaseFileLock | None:
    """Take the lock of a journal, as `flray.files.take_lock` does.

    Raises
    ------
    FlrayError
        If another process writes the journal.
    """
    try:
        return take_lock(path.with_name(f".{path.name}.lock"), seconds=0)
    except BusyError:
        raise FlrayError(
            f"{path.parent} is being written by a process that still runs; stop it first"
        ) from None


class Journal:
    """The append-only file of a run's events; one process writes it at a time.

    Each line is one write, so a killed process truncates at most the last line; reopening the file
    cuts that line off. Rounds stay as first recorded: a resumed run repeats some rounds, and they
    leave neither a gap nor a second record.

    Parameters
    ----------
    path : Path
        The journal file, by convention ``RUN/journal.jsonl``; its directory is created if needed.

    Raises
    ------
    FlrayError
        If another process (or another `Journal` of this one) has it open.
    DataError
        If a line is not an event, or the file is not a regular one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        self._lock = lock_journal(path)
        self._file = -1
        try:
            events, end = parse_events(read(path) if os.path.lexists(path) else b"", path)
            self._file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
            os.ftruncate(self._file, end)
        except BaseException:
            self.close()
            raise
        self._torn_at: int | None = None
        self._recorded = {event["round"] for event in events if event["type"] == "round"}
        self._started = any(event["type"] == "start" for event in events)

    def append(self, event: Mapping[str, Any]) -> None:
        """Write one event as one line, and notify listeners.

        It survives the death of the process, not of the machine: see `sync`. A partially
        written line, on a full disk for example, is removed, so that the next one does not become
        a part of it.

        Raises
        ------
        OSError
            If the line cannot be written.
        """
        line = encode(event)
        if self._torn_at is not None:
            os.ftruncate(self._file, self._torn_at)
        self._torn_at = os.fstat(self._file).st_size
        try:
            while line:
                line = line[os.write(self._file, line) :]
        except BaseException:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._torn_at)
            raise
        self._torn_at = None
        for listener in tuple(_listeners):
            listener(self.path)

    def start(
        self,
        *,
        uid: str,
        experiment: str,
        name: str,
        parent: str | None = None,
        params: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> None:
        """Record the run's identity, or only that it resumes if that is recorded already.

        Parameters
        ----------
        uid : str
            Unique name that the tracking server finds the run by.
        experiment, name : str
            Its experiment and name on the tracking server.
        parent : str, optional
            The uid of the sweep's run.
        params, tags : mapping of str to str, optional
            Flat settings and labels.

        Raises
        ------
        ValueError
            If `uid` holds anything but letters, digits, ``_``, ``.`` and ``-``.
        """
        if not re.fullmatch(_UID, uid):
            raise ValueError(f"a uid is made of letters, digits, _, . and -; found {uid!r}")
        if self._started:
            self.append({"type": "resume", "time": milliseconds()})
            return
        self._started = True
        self.append(
            {
                "type": "start",
                "time": milliseconds(),
                "uid": uid,
                "experiment": experiment,
                "name": name,
                "parent": parent,
                "params": dict(params or {}),
                "tags": dict(tags or {}),
            }
        )

    def record_round(
        self, round_: int, metrics: Mapping[str, float], *, replace: bool = False
    ) -> bool:
        """Record the metrics of a round; write nothing and return False if the round is recorded already.

        Parameters
        ----------
        round_ : int
            Number of the round.
        metrics : mapping of str to float
            By name; names are cleaned by `flray.metrics.clean_name`, NaN and infinities are
            recorded.
        replace : bool
            Record them anyway: later values of a round replace the earlier ones.

        Raises
        ------
        FlrayError
            If two names are equal after cleaning.
        """
        there = round_ in self._recorded
        if there and not replace:
            return False
        cleaned = {clean_name(name): float(value) for name, value in metrics.items()}
        if len(cleaned) < len(metrics):
            raise FlrayError(
                f"two of these metrics have one name in MLflow, rename one: {', '.join(sorted(metrics))}"
            )
        event = {"type": "round", "round": int(round_), "time": milliseconds(), "metrics": cleaned}
        self.append({**event, "replaces": True} if there else event)
        self._recorded.add(int(round_))
        return True

    def artifact(self, path: str | Path, to: str = "") -> None:
        """Record a file to be uploaded: `path` relative to the run directory, `to` the folder in the run."""
        self.append({"type": "artifact", "path": Path(path).as_posix(), "to": to})

    def tags(self, tags: Mapping[str, str]) -> None:
        """Record labels; the last value of a label wins."""
        self.append({"type": "tags", "tags": dict(tags)})

    def data(self, name: str, digest: str, source: str, profile: Mapping[str, Any]) -> None:
        """Record, once, a data set that the run is trained and tested on.

        Parameters
        ----------
        name, digest : str
            The name of the data set, and its fingerprint.
        source : str
            The origin of the data set, in words.
        profile : mapping
            Facts about it as JSON values, such as its numbers of samples.
        """
        event = {
            "type": "data",
            "name": name,
            "digest": digest,
            "source": source,
            "profile": dict(profile),
        }
        if all(
            known.get("digest") != digest or known["type"] != "data"
            for known in read_events(self.path)
        ):
            self.append(event)

    def end(self, status: Status) -> None:
        """Record the run's end."""
        self.append({"type": "end", "time": milliseconds(), "status": status})

    def sync(self) -> None:
        """Flush everything written so far to disk; call it before each checkpoint."""
        os.fsync(self._file)

    def record_call(self, callback: str, round_: int) -> None:
        """Record that a callback has seen a round."""
        self.append({"type": "called", "callback": callback, "round": int(round_)})

    def called(self) -> dict[str, int]:
        """Return the last round that each callback has seen."""
        events = read_events(self.path)
        return {one["callback"]: one["round"] for one in events if one["type"] == "called"}

    def rounds(self) -> list[Event]:
        """Return the recorded rounds in the order they were recorded, each with round, time [ms] and metrics."""
        return [event for event in read_events(self.path) if event["type"] == "round"]

    def history(self) -> pd.DataFrame:
        """Return the recorded rounds as a table sorted by round: column ``round``, then one per metric."""
        return history_of(self.rounds())

    def close(self) -> None:
        """Close the file. Closing twice is harmless."""
        if self._file >= 0:
            with contextlib.suppress(OSError):
                os.close(self._file)
            self._file = -1
        if self._lock is not None:
            self._lock.release()

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@with_config(ConfigDict(strict=True, extra="allow"))
class ClientRecord(TypedDict):
    """A client in ``partition.json``: training samples by class, and number of test samples."""

    name: str
    domain: str
    train: list[int]
    test: int


@with_config(ConfigDict(strict=True, extra="allow"))
class PartitionRecord(TypedDict):
    """The content of ``partition.json``."""

    dataset: str
    classes: list[str]
    origins: dict[str, str]
    positive: NotRequired[str | None]
    encoding: NotRequired[str]
    fingerprints: NotRequired[dict[str, str]]
    primary: NotRequired[str]  # the method's primary metric
    clients: list[ClientRecord]


_PARTITION = TypeAdapter(PartitionRecord)


def read_partition(path: Path) -> PartitionRecord:
    """Read a partition written by `flray.records.directory.save_partition`.

    Raises
    ------
    FlrayError
        If it is missing, damaged or of another form.
    """
    found = read_json(path, _PARTITION)
    if len({len(client["train"]) for client in found["clients"]}) > 1:
        raise FlrayError(
            f"{path}: found clients with unlike numbers of classes; restore it, or take the file away"
        )
    return found
