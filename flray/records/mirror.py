"""Mirror a run's folder to object storage during the run, by one worker at a time."""

import contextlib
import ctypes
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from flray.errors import DataError, FlrayError
from flray.files import storage
from flray.files.border import FILE_BYTES, parse_json, read
from flray.files.lease import Lease, LeaseTakenError
from flray.records import directory

MIRROR_INTERVAL_S = 20.0
"""Upload interval in seconds; a lost head node loses at most this much besides the rounds since a checkpoint."""


class Mirror:
    """Uploads a folder's changes to an address.

    Parameters
    ----------
    folder : Path
        The local folder.
    uri : str
        Address of its copy; no one else writes there.
    leave : tuple of str
        Names of subfolders that are not copied.
    """

    def __init__(self, folder: Path, uri: str, leave: tuple[str, ...] = ()) -> None:
        self._folder, self._uri, self._leave = folder, uri.rstrip("/"), leave
        self._known: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()

    def sync(self) -> None:
        """Upload new and changed files, manifests of checkpoints last, and remove deleted ones."""
        with self._lock:
            found, path = storage.filesystem(self._uri)
            with storage.storage_errors(self._uri):
                now = dict(self._present())
                manifests = {name for name in now if Path(name).match("round-*.json")}
                for name in sorted(now, key=lambda n: (n in manifests, n)):
                    if self._known.get(name) != now[name] and (
                        name not in manifests or self._whole(name)
                    ):
                        self._copy(found, f"{path}/{name}", name, now[name])
                for name in sorted(set(self._known) - set(now)):
                    found.delete_file(f"{path}/{name}")
                    del self._known[name]

    def _present(self) -> Iterator[tuple[str, tuple[int, int]]]:
        for file in self._folder.rglob("*"):
            name = file.relative_to(self._folder)
            if name.parts[0] in self._leave or file.name.startswith("."):
                continue
            with contextlib.suppress(FileNotFoundError):
                if file.is_file() and not file.is_symlink():
                    facts = file.stat()
                    yield str(name), (facts.st_size, facts.st_mtime_ns)

    def _whole(self, name: str) -> bool:
        """Return whether all files of a manifest exist: an older one's may have been removed meanwhile."""
        folder = Path(name).parent
        try:
            named = parse_json(read(self._folder / name, FILE_BYTES))["files"]
        except (OSError, ValueError, KeyError, TypeError, DataError):
            return False
        return all(str(folder / part) in self._known for part in named)

    def _copy(self, found: Any, target: str, name: str, facts: tuple[int, int]) -> None:
        with contextlib.suppress(FileNotFoundError):
            data = read(self._folder / name)
            with found.open_output_stream(target) as stream:
                stream.write(data)
            self._known[name] = facts


@contextlib.contextmanager
def mirrored(
    folder: Path, uri: str | None, say: Callable[[str], None], leave: tuple[str, ...] = ()
) -> Iterator[None]:
    """Mirror a folder during the block, and once more at its end; do nothing without an address.

    Temporarily unreachable storage is reported once and retried; at the end it must be reachable.
    If another worker takes over the address, nothing more is written there and this thread is
    interrupted as by Ctrl-C.

    Parameters
    ----------
    folder : Path
        Folder of the run or sweep, with its ``run.json`` or ``sweep.json``.
    uri : str or None
        Address of its copy.
    say : callable
        Called with lines for the user.
    leave : tuple of str
        Names of subfolders that are not copied.

    Raises
    ------
    FlrayError
        If another worker holds it, or has resumed from there meanwhile.
    """
    if uri is None:
        yield
        return
    lease = Lease(uri, say)
    lease.take()
    try:
        directory.check_latest(folder, uri)
        directory.update(folder, workers=[*directory.read(folder).get("workers", ()), lease.token])
        mirror, ended, lost = Mirror(folder, uri, leave), threading.Event(), threading.Event()
        mirror.sync()
        worker = threading.get_ident()
        reasons: list[str] = []

        def stop(error: LeaseTakenError) -> None:
            reasons.append(f"{error}; this process stops, and its copy is kept in {folder}")
            lost.set()
            say(reasons[0])
            # Not by a signal, which a process in the background may have been told to ignore.
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(worker), ctypes.py_object(KeyboardInterrupt)
            )

        lease.keep(stop)
        thread = threading.Thread(
            target=_sync_periodically,
            args=(mirror, lease, ended, lost, say),
            name="flray-mirror",
            daemon=True,
        )
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
            if not lost.is_set():
                try:
                    lease.renew()  # a process that was suspended may have lost it meanwhile
                    mirror.sync()
                except FlrayError as error:
                    say(f"{error}; everything is kept in {folder}")
        if reasons:
            raise LeaseTakenError(reasons[0])
    finally:
        lease.give_back()


def _sync_periodically(
    mirror: Mirror,
    lease: Lease,
    ended: threading.Event,
    lost: threading.Event,
    say: Callable[[str], None],
) -> None:
    """Sync at intervals until the end."""
    away = False
    while not ended.wait(MIRROR_INTERVAL_S) and not lost.is_set():
        try:
            lease.renew()
            mirror.sync()
            away = False
        except FlrayError as error:
            if not away:
                say(f"{error}; trying again")
            away = True
