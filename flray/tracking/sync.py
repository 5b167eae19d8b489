"""``flray sync``: send a run's or sweep's events that the tracking server missed."""

import contextlib
import re
from dataclasses import dataclass, field
from pathlib import Path

from flray.errors import DataError, FlrayError
from flray.files.border import WEIGHTS_BYTES, open_file
from flray.records.events import JOURNAL, decode, read_events
from flray.tracking.client import http_limits, read_cursor
from flray.tracking.exporter import MlflowExporter

SETTINGS = "settings"
"""Folder in a sweep's of the runs of its settings, which stand between it and its trials."""


@dataclass(frozen=True)
class SyncReport:
    """The result of `sync`.

    Parameters
    ----------
    runs : int
        Number of runs.
    events : int
        Number of sent events.
    uris : tuple of str
        The addresses they were sent to.
    notices : tuple of str
        Lines for the user on omitted data.
    """

    runs: int
    events: int
    uris: tuple[str, ...] = ()
    notices: tuple[str, ...] = field(default=())


def run_directories(path: Path) -> list[tuple[Path, Path | None]]:
    """Return the run directories in a run or sweep directory, each with its parent's; parents come first.

    Parameters
    ----------
    path : Path
        A directory with a journal, a sweep directory with run directories in ``settings/`` and
        ``trials/``, or both at once.
    """
    own = [(path, parent_of(path))] if (path / JOURNAL).exists() else []
    parts = (sorted(path.glob(f"{part}/*/{JOURNAL}")) for part in (SETTINGS, "trials"))
    return own + [(file.parent, parent_of(file.parent)) for files in parts for file in files]


def parent_of(run_dir: Path) -> Path | None:
    """Return the directory of a run's parent: of a trial its setting's, of a setting its sweep's, else None."""
    folder = run_dir.absolute().parent
    sweep = folder.parent
    if folder.name not in ("trials", SETTINGS) or not (sweep / JOURNAL).exists():
        return None
    if folder.name == "trials":
        with contextlib.suppress(OSError, ValueError, KeyError, DataError):
            with open_file(run_dir / JOURNAL, WEIGHTS_BYTES) as journal:
                named = str(decode(journal.readline())["parent"]).rpartition("-")[2]
            setting = sweep / SETTINGS / named
            if re.fullmatch("[0-9a-f]{12}", named) and (setting / JOURNAL).exists():
                return setting
    return sweep


def sync(path: Path, uri: str | None = None) -> SyncReport:
    """Send all unsent events of a run or sweep.

    Parameters
    ----------
    path : Path
        Run directory or sweep directory.
    uri : str, optional
        MLflow's address; by default each run's own.

    Raises
    ------
    FlrayError
        If `path` holds no run, no address is known, or the server is unreachable or rejects a request.
    """
    directories = run_directories(path)
    if not directories:
        raise FlrayError(
            f"{path}: no run here; expected {JOURNAL} or trials/*/{JOURNAL} in its directory"
        )
    sent = 0
    notices: list[str] = []
    uris: set[str] = set()
    with http_limits():
        for run_dir, parent_dir in directories:
            address = uri or _known_uri(run_dir, parent_dir)
            sender = MlflowExporter(run_dir, address, parent_dir=parent_dir)
            uris.add(sender.uri)
            read_events(run_dir)  # names the invalid line
            before = sender.unsent()
            try:
                left = sender.flush()
            except ValueError as error:  # a damaged end, which a resumed run cuts off
                raise DataError(
                    f"{run_dir / JOURNAL}: {error}; flray resume mends its end"
                ) from None
            sent += before - left
            notices += sender.notices
            if left:
                raise FlrayError(
                    f"tracking at {sender.uri} is still away: {sender.reason}; {left} events of "
                    f"{run_dir} and later runs wait; sent so far: {sent}; run this again later"
                )
    return SyncReport(len(directories), sent, tuple(sorted(uris)), tuple(notices))


def _known_uri(run_dir: Path, parent_dir: Path | None) -> str:
    for folder in (run_dir, parent_dir, parent_dir and parent_of(parent_dir)):
        known = read_cursor(folder) if folder is not None else None
        if known is not None:
            return known.uri
    raise FlrayError(
        f"{run_dir}: this run has never been sent anywhere; say where to, for example "
        f"sqlite:///mlflow.db"
    )
