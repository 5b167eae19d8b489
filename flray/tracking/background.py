"""Send runs to MLflow: in the background of training, and with ``flray sync`` what the server missed."""

import contextlib
import itertools
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from flray.errors import DataError, FlrayError, explained
from flray.files import WEIGHTS_BYTES, open_file
from flray.files.tracking_address import redact, resolve_uri, without_secrets
from flray.records import JOURNAL, Event, decode, directory, listen, read_events
from flray.tracking.client import HTTP_TIMEOUT, http_limits, read_cursor
from flray.tracking.exporter import MlflowExporter

_FIRST_PAUSE, _LONGEST_PAUSE = 1.0, 30.0
_REST, _LONGEST_REST = 200.0, 5.0
"""After sending, so many times the processor time it took is left to the training, but no more than so many seconds:
many rounds in one request cost little more than one."""


class Tracker:
    """One background thread that sends the journals of one or many run directories, as soon as they grow.

    Whatever happens to the server, training continues: events wait in the journals and are sent when
    the server is back. The user sees one line at an outage and one at recovery.

    Parameters
    ----------
    uri : str
        MLflow's address: ``sqlite:///...`` or ``http(s)://...``.
    say : callable
        Called with lines for the user, from the background thread.
    every : int
        See `flray.tracking.exporter.MlflowExporter`.
    rest : float
        Seconds until the first sending, while processes that start have use for the processors.

    Raises
    ------
    FlrayError
        If the address is invalid.
    """

    def __init__(
        self, uri: str, say: Callable[[str], None], every: int = 1, rest: float = 0.0
    ) -> None:
        self._address, self._every = resolve_uri(uri), every
        self.uri = redact(self._address)
        self._say = say
        self._senders: dict[Path, MlflowExporter] = {}
        self._refused: set[Path] = set()
        self._away = False
        self._pause = _FIRST_PAUSE
        self._retry_at, self._rested_at = 0.0, time.monotonic() + rest
        self._grown: set[Path] = set()
        self._deadline: float | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._ends = contextlib.ExitStack()

    def register(self, run_dir: Path, parent_dir: Path | None = None) -> None:
        """Send the journal of `run_dir` from now on, its run shown under that of `parent_dir`.

        Raises
        ------
        RuntimeError
            If the tracker is closed.
        """
        with self._changed:
            if self._deadline is not None:
                raise RuntimeError("this tracker is closed")
            if run_dir not in self._senders:
                self._senders[run_dir] = MlflowExporter(
                    run_dir, self._address, parent_dir=parent_dir, every=self._every
                )
            if self._thread is None:
                self._ends.callback(listen(self._on_event))
                if self.uri.startswith("http"):
                    self._ends.enter_context(http_limits())
                self._thread = threading.Thread(None, self._work, "flray-tracking", daemon=True)
                self._thread.start()
        self._on_event(run_dir / JOURNAL)

    def _on_event(self, journal: Path) -> None:
        """Record that a journal has grown."""
        with self._changed:
            self._grown.add(journal.parent.absolute())
            self._changed.notify()

    def close(self, timeout: float = 30.0) -> int:
        """Send the rest and stop the thread; return the number of unsent events.

        Parameters
        ----------
        timeout : float
            Seconds for sending. An unreachable server is tried once more. A request in progress is
            waited for, which takes at most MLflow's HTTP timeout longer.
        """
        with self._changed:
            if self._deadline is None:
                self._deadline = time.monotonic() + timeout
            self._changed.notify()
        if self._thread is not None:
            self._thread.join(timeout + HTTP_TIMEOUT + 1)
        self._ends.close()
        left = 0
        for sender in self._senders.values():
            with contextlib.suppress(OSError, DataError):  # a journal that cannot be read was said
                left += sender.unsent()
        return left

    def _work(self) -> None:
        closing = False
        while not closing:
            with self._changed:
                while self._deadline is None and (pause := self._until_due()) != 0.0:
                    self._changed.wait(pause)
                closing = self._deadline is not None
                grown, self._grown = self._grown, set()
                senders = [
                    sender
                    for sender in self._senders.values()
                    if sender.run_dir not in self._refused
                    and (closing or sender.run_dir.absolute() in grown)
                ]
            began = time.thread_time()
            self._flush_all(senders)
            rest = min(_REST * (time.thread_time() - began), _LONGEST_REST)
            self._rested_at = time.monotonic() + rest

    def _until_due(self) -> float | None:
        """Return the seconds until the next flush: 0 for now, None for not before an event."""
        if not self._grown:
            return None
        return max(0.0, max(self._retry_at, self._rested_at) - time.monotonic())

    def _late(self) -> bool:
        return self._deadline is not None and time.monotonic() >= self._deadline

    def _flush_all(self, senders: list[MlflowExporter]) -> None:
        for sender in senders:
            if self._late():
                return
            waiting = False
            try:
                waiting = sender.unsent() > 0
                sender.flush(self._late)
            except FlrayError as error:
                self._give_up(sender, str(error))
            # a full disk, a broken journal: not a reason to end the training
            except Exception as error:
                why = f"{type(error).__name__}: {error}"
                self._give_up(sender, without_secrets(why, self._address))
            for notice in sender.notices:
                self._say(notice)
            sender.notices.clear()
            if sender.reason is not None:
                self._on_outage(sender.reason)
                with self._changed:
                    self._grown.update(one.run_dir.absolute() for one in senders)
                return  # the others go to the same server
            if waiting and sender.run_dir not in self._refused:
                self._on_recovery()

    def _give_up(self, sender: MlflowExporter, why: str) -> None:
        self._refused.add(sender.run_dir)
        self._say(
            f"{why}; {sender.run_dir} is no longer sent, its values stay in {sender.journal.name}"
        )

    def _on_outage(self, reason: str) -> None:
        if not self._away:
            self._say(
                f"tracking at {self.uri} is away: {reason}; training goes on, values are sent later"
            )
        else:
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self._away, self._retry_at = True, time.monotonic() + self._pause

    def _on_recovery(self) -> None:
        if self._away:
            self._say(f"tracking at {self.uri} is back; what was kept is being sent")
        self._away, self._pause, self._retry_at = False, _FIRST_PAUSE, 0.0


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
        named = str(_start_of(run_dir).get("parent")).rpartition("-")[2]
        setting = sweep / SETTINGS / named
        if re.fullmatch("[0-9a-f]{12}", named) and (setting / JOURNAL).exists():
            return setting
    return sweep


def _start_of(run_dir: Path) -> Event:
    """Return the first event of a run's journal; an empty one if that cannot be read."""
    try:
        with open_file(run_dir / JOURNAL, WEIGHTS_BYTES) as journal:
            return decode(journal.readline())
    except (OSError, ValueError, DataError):
        return {}


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
            every = _rounds_between(run_dir, parent_dir)
            sender = MlflowExporter(run_dir, address, parent_dir=parent_dir, every=every)
            uris.add(sender.uri)
            read_events(run_dir)  # names the invalid line
            before = sender.unsent()
            with explained(  # a damaged end, which a resumed run cuts off
                ValueError, f"{run_dir / JOURNAL}: its end is damaged", "flray resume mends it"
            ):
                left = sender.flush()
            sent += before - left
            notices += sender.notices
            if left:
                raise FlrayError(
                    f"tracking at {sender.uri} is still away: {sender.reason}; {left} events of "
                    f"{run_dir} and later runs wait; sent so far: {sent}; run this again later"
                )
    return SyncReport(len(directories), sent, tuple(sorted(uris)), tuple(notices))


def _known_uri(run_dir: Path, parent_dir: Path | None) -> str:
    for folder in _upwards(run_dir, parent_dir):
        if (known := read_cursor(folder)) is not None:
            return known.uri
    raise FlrayError(
        f"{run_dir}: this run has never been sent anywhere; say where to, for example sqlite:///mlflow.db"
    )


def _rounds_between(run_dir: Path, parent_dir: Path | None) -> int:
    """Return ``tracking.every`` as a run's or sweep's file has it, or else as the sweep chose it at its start."""
    folders = _upwards(run_dir, parent_dir)
    files = [one for one in folders if (one / directory.CONFIG).exists()]
    written = (directory.read_config(one)["experiment"]["tracking"] for one in files)
    begun = (_start_of(folder).get("params", {}) for folder in folders)
    chosen = itertools.chain(
        (str(one.get("every")) for one in written),
        (str(one.get("tracking.every")) for one in begun),
    )
    return next((int(text) for text in chosen if re.fullmatch("[1-9][0-9]{0,9}", text)), 1)


def _upwards(run_dir: Path, parent_dir: Path | None) -> list[Path]:
    """Return a run's folder and those above it."""
    above = None if parent_dir is None else parent_of(parent_dir)
    return [folder for folder in (run_dir, parent_dir, above) if folder is not None]
