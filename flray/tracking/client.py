"""A connection to an MLflow tracking server or database that fails quickly, quietly and with one clear line.

The sent part of a journal is in ``tracking.json``, as a `Cursor`.

The only module that imports mlflow, and only once a connection is wanted: the import takes a second
or more.
"""

import contextlib
import json
import logging
import os
import shlex
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, ParamSpec, TypeVar

from pydantic import Field, TypeAdapter

from flray.errors import FlrayError, explained
from flray.files import WEIGHTS_BYTES, BusyError, hold_lock, open_file, read_json, write_atomically
from flray.files.tracking_address import check, database_path, redact, without_secrets
from flray.process import environment
from flray.records import JOURNAL

P = ParamSpec("P")
R = TypeVar("R")

#: Seconds before one HTTP request is given up, unless the user set MLFLOW_HTTP_REQUEST_TIMEOUT.
HTTP_TIMEOUT = 10
# Transient error codes of MLflow; INTERNAL_ERROR is also what a refused
# connection gives.
_TRANSIENT = {
    "INTERNAL_ERROR", "TEMPORARILY_UNAVAILABLE", "REQUEST_LIMIT_EXCEEDED", "RESOURCE_EXHAUSTED", "DEADLINE_EXCEEDED",
    "ABORTED", "CANCELLED", "RESOURCE_CONFLICT",
}  # fmt: skip
_PERMANENT = (
    "readonly database",
    "unable to open",
    "out-of-date database schema",
    "not a database",
    "no such table",
)
_LOCK_ATTEMPTS = 6
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
    offset: Annotated[int, Field(ge=0, le=WEIGHTS_BYTES)] = 0


_FORM = TypeAdapter(Cursor)


def read_cursor(run_dir: Path) -> Cursor | None:
    """Return the cursor of `run_dir`, or None if nothing was sent or the file is unreadable."""
    try:
        return read_json(run_dir / CURSOR, _FORM)
    except FlrayError:
        return None


def load_cursor(run_dir: Path, uri: str) -> Cursor:
    """Return where to resume sending to `uri`; the beginning is always safe, as MLflow stores each point once."""
    cursor = read_cursor(run_dir)
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


def save_cursor(run_dir: Path, cursor: Cursor) -> None:
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


class TrackingUnavailableError(Exception):
    """The tracking server cannot be reached now; trying again later may help. The text is the reason, one line."""


class TrackingRejectedError(FlrayError):
    """The tracking server rejected the request; retrying does not help.

    Parameters
    ----------
    message : str
        Message for the user.
    code : str
        MLflow's error code.
    """

    def __init__(self, message: str, code: str = "") -> None:
        self.code = code
        super().__init__(message)


def connect(uri: str) -> Any:
    """Return an `mlflow.MlflowClient` of `uri` (from `resolve_uri`); a missing database is created.

    No global state of mlflow changes: neither its tracking address nor its active run.

    Raises
    ------
    TrackingUnavailableError
        If the database stays locked.
    TrackingRejectedError
        If the database cannot be used.
    FlrayError
        If the kind of address is unknown, or its driver is not installed.
    """
    database = database_path(uri)
    if database is None:
        check(uri)
    mlflow = _import_mlflow()
    with silence_mlflow_logs():
        if database is None:
            return call(uri, mlflow.MlflowClient, tracking_uri=uri)
        _prepare_database(uri, database)
        return call(uri, mlflow.MlflowClient, tracking_uri=f"sqlite:///{database}")


def _import_mlflow() -> Any:
    os.environ.setdefault("MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR", "false")
    # mlflow decides at import whether to start a thread that reports usage over the network; not on
    # our behalf.
    with environment({"MLFLOW_DISABLE_TELEMETRY": "true"}):
        import mlflow
    return mlflow


def _prepare_database(uri: str, database: Path) -> None:
    """Create a missing database under another name and rename it into place.

    MLflow creates its tables in some sixty steps without a lock: two processes at once break each
    other ("duplicate column name"), and one killed midway leaves an unusable database.
    """
    try:  # not documented: MLflow's client would put the default experiment's files into the current folder
        from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore
    except ImportError:
        raise TrackingRejectedError(
            f"mlflow {_import_mlflow().__version__} has no SqlAlchemyStore, which makes {redact(uri)}; "
            "pip install 'mlflow>=3.5,<4', or give the address of a server"
        ) from None

    with explained(
        OSError,
        f"tracking database {database} cannot be used",
        "name another one",
        TrackingRejectedError,
    ):
        database.parent.mkdir(parents=True, exist_ok=True)
        written = database if database.exists() else database.parent
        if database.is_dir() or not os.access(written, os.W_OK):
            raise PermissionError("not a file that can be written")
        if database.exists() and database.stat().st_size > 0:
            return
        with lock(database.with_name(f".{database.name}.lock"), seconds=60):
            if database.exists() and database.stat().st_size > 0:
                return
            made = database.with_name(f".{database.name}.new")
            for rest in (made, made.with_name(f"{made.name}-journal")):  # left by a killed process
                rest.unlink(missing_ok=True)
            made.touch()  # MLflow tries for a minute
            store = call(uri, SqlAlchemyStore, f"sqlite:///{made}", str(database.parent / "mlruns"))
            store.engine.dispose()
            made.replace(database)


@contextlib.contextmanager
def lock(path: Path, *, seconds: float) -> Iterator[None]:
    """Hold the lock of `path` (a folder, or a file that is made) against other processes and threads.

    Raises
    ------
    TrackingUnavailableError
        If another process holds it for longer than `seconds`.
    """
    try:
        with hold_lock(path / ".flray-lock" if path.is_dir() else path, seconds):
            yield
    except BusyError:
        raise TrackingUnavailableError(f"another process is busy with {path}") from None


def call(uri: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    """Call a function of mlflow; retry briefly if another process has locked the database.

    Raises
    ------
    TrackingUnavailableError
        If the server or database cannot be used now.
    TrackingRejectedError
        If it rejected the request.
    """
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    for attempt in range(_LOCK_ATTEMPTS):
        try:
            return function(*args, **kwargs)
        except (MlflowException, SQLAlchemyError) as error:
            text = _one_line(without_secrets(str(error), uri))
            if "database is locked" in text and attempt + 1 < _LOCK_ATTEMPTS:
                # Neighbours that collided once must not collide again in step: the process number
                # sets them apart.
                time.sleep(0.05 * 2**attempt * (1 + os.getpid() % 7 / 7))
                continue
            code = getattr(error, "error_code", "INTERNAL_ERROR")
            if code in _TRANSIENT and not any(sign in text for sign in _PERMANENT):
                raise TrackingUnavailableError(text) from None
            raise TrackingRejectedError(f"tracking at {redact(uri)}: {text}", code) from None
    raise AssertionError("the last attempt returns or raises")


def _one_line(text: str) -> str:
    """Return an error's text without line breaks and the retry machinery's wrapping."""
    text = " ".join(text.split())
    if "NewConnectionError" in text or "Connection refused" in text:
        refused = "nobody answers there (connection refused)"
        return refused if "refused" in text else "the host cannot be reached"
    return text if len(text) <= 300 else text[:299] + "…"


def http_limits() -> contextlib.AbstractContextManager[None]:
    """Keep mlflow's HTTP client from waiting minutes for a dead server, and from printing addresses.

    MLflow reads these limits from the environment at every request, so the environment changes
    during the block. A timeout that the user has set stays.
    """
    limits = {
        "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
        "MLFLOW_HTTP_REQUEST_TIMEOUT": os.environ.get(
            "MLFLOW_HTTP_REQUEST_TIMEOUT", str(HTTP_TIMEOUT)
        ),
        "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    }
    return environment(limits)


@contextlib.contextmanager
def silence_mlflow_logs() -> Iterator[None]:
    """Drop log messages of mlflow and alembic from this thread: failures reach the user as one line of ours."""
    own = threading.get_ident()

    def from_elsewhere(record: logging.LogRecord) -> bool:
        return record.thread != own

    with contextlib.ExitStack() as restored:
        for name in ("mlflow.store.db.utils", "alembic.runtime.migration"):
            logger = logging.getLogger(name)
            logger.addFilter(from_elsewhere)
            restored.callback(logger.removeFilter, from_elsewhere)
        yield


def ui_links(uri: str, folder: Path) -> list[str]:
    """Return the UI links, or the command that starts the UI.

    Parameters
    ----------
    uri : str
        MLflow's address.
    folder : Path
        The folder of the run or sweep.
    """
    served = uri.startswith("http")
    shown = redact(uri)
    command = "" if served else "mlflow ui --backend-store-uri "
    lines = [f"see it: {command}{shown if served else shlex.quote(shown)}"]
    known = read_cursor(folder)
    if known is not None and known.experiment_id is not None:
        # MLflow's start page is for language models; this one has the runs' charts, which are four
        # clicks from there.
        server = shown.rstrip("/") if served else "http://127.0.0.1:5000"
        charts = "runs?workflowType=machine_learning&compareRunsMode=CHART"
        lines.append(f"charts: {server}/#/experiments/{known.experiment_id}/{charts}")
    return lines
