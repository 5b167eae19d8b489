"""Mirror a run's folder to object storage during the run, by one worker at a time."""

import contextlib
import ctypes
import json
import os
import re
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import timedelta
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from flray.errors import DataError, FlrayError
from flray.files import FILE_BYTES, parse_json, read, storage
from flray.records import directory

RENEW_INTERVAL_S = 15.0
"""Seconds between two renewals."""
LAPSE_S = 60.0
"""Seconds without a renewal after which a worker is considered dead."""
CONDITIONAL = ("s3", "gs", "gcs", "abfs", "abfss")
"""Kinds of address whose storage writes conditionally; elsewhere nothing keeps two workers apart."""
_POLL_S = 2.0
_RETRIES = {"max_retries": 3, "retry_timeout": timedelta(seconds=20)}


class LeaseTakenError(FlrayError):
    """Another worker has taken the run."""


class Lease:
    """Exclusive access to a run or sweep at an address: an object beside it that its one worker keeps renewing.

    Every write of it is conditional: it is made only if there is none, and replaced only if nobody
    has replaced it since it was read. So the storage decides between two workers, however slow one
    of them is. A worker that finds another's lease waits until it has not been renewed for
    `LAPSE_S` seconds.

    Parameters
    ----------
    uri : str
        The run's or sweep's address in object storage; the lease lies beside it.
    say : callable
        Called with a line for the user if another's lease has to lapse first.

    Attributes
    ----------
    token : str
        Names this worker.
    """

    def __init__(self, uri: str, say: Callable[[str], None]) -> None:
        self._uri, self._place, self._say = uri, f"{uri.rstrip('/')}.lease", say
        self.token = uuid.uuid4().hex
        self._guarded = urlsplit(uri).scheme in CONDITIONAL
        self._version: dict[str, str] | None = None
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self) -> None:
        """Take the lease, waiting for one that is no longer renewed to lapse.

        Raises
        ------
        FlrayError
            If a living process holds it, or the storage cannot be reached.
        """
        if not self._guarded:
            self._say(f"{self._uri}: this kind of storage cannot keep a second worker from the run")
            return
        first: dict[str, Any] | None = None
        begun = time.monotonic()
        while True:
            found, version = self._read()
            if found.get("token") == self.token:  # an answer that was lost
                self._version = version
                return
            if first and version and found.get("beat") != first.get("beat"):
                raise FlrayError(
                    f"{self._uri} is being worked on by {_owner(found)}; stop it there first"
                )
            waited = max(self._age(), time.monotonic() - begun) if version else LAPSE_S
            left = LAPSE_S - waited
            if left <= 0:
                if self._write(version):
                    return
                continue
            if first is None:
                first = found
                self._say(
                    f"{self._uri} was worked on by {_owner(found)}; continuing when it has not been "
                    f"heard of for {LAPSE_S:.0f} s (in {left:.0f} s)"
                )
            time.sleep(min(left, _POLL_S))

    def keep(self, lost: Callable[[LeaseTakenError], None]) -> None:
        """Renew the lease in the background until `give_back`; call `lost` if another worker took it."""

        def work() -> None:
            while not self._ended.wait(RENEW_INTERVAL_S):
                try:
                    self.renew()
                except LeaseTakenError as error:
                    lost(error)
                    return
                except FlrayError:
                    continue  # temporarily unreachable storage is retried

        self._thread = threading.Thread(target=work, name="flray-lease", daemon=True)
        self._thread.start()

    def renew(self) -> None:
        """Say that this worker is alive.

        Raises
        ------
        LeaseTakenError
            Naming the other worker that took the lease.
        FlrayError
            If the storage cannot be reached.
        """
        with self._lock:
            while self._guarded and not self._write(self._version):
                found, version = self._read()
                if version is not None and found.get("token") != self.token:
                    raise LeaseTakenError(f"{self._uri}: {_owner(found)} works on it now")
                self._version = version

    def give_back(self) -> None:
        """Stop renewing, and remove the lease if it is still this worker's."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        if self._version is not None:
            with contextlib.suppress(FlrayError):
                self.renew()  # nobody takes it within the next LAPSE_S
                storage.remove(self._place)

    def _age(self) -> float:
        """Return the lease's age [s] by the storage's clock; 0 if it reports no times."""
        probe = f"{self._place}-{self.token}"
        storage.write(probe, b"")
        try:
            written, now = storage.written_at(self._place), storage.written_at(probe)
        finally:
            storage.remove(probe)
        return 0.0 if written is None or now is None else now - written

    @cached_property
    def _store(self) -> Any:
        """The object, as a store whose prefix is its whole address."""
        from obstore.store import from_url
        from pyarrow.fs import S3FileSystem

        found, _ = storage.filesystem(self._place)
        options: dict[str, Any] = {}
        if isinstance(found, S3FileSystem):
            options["region"] = found.region
            if "AWS_ACCESS_KEY_ID" not in os.environ:
                with contextlib.suppress(ImportError, ValueError):  # then only roles are looked for
                    from obstore.auth.boto3 import Boto3CredentialProvider

                    options["credential_provider"] = Boto3CredentialProvider()
        with _lease_errors(self._uri):
            return from_url(
                self._place.replace("gcs://", "gs://", 1),
                client_options={"allow_http": True},
                retry_config=_RETRIES,
                **options,
            )

    def _read(self) -> tuple[dict[str, Any], dict[str, str] | None]:
        """Return the note, empty if it cannot be read, and its version, None if there is none."""
        with _lease_errors(self._uri):
            try:
                answer = self._store.get("")
            except FileNotFoundError:
                return {}, None
            data = bytes(answer.bytes())
        try:
            note = parse_json(data)
        except ValueError:
            note = {}
        return note if isinstance(note, dict) else {}, _version_of(answer.meta)

    def _write(self, version: dict[str, str] | None) -> bool:
        """Write the note if the object has still this version, or if there is none; return whether it was."""
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        note = {
            "token": self.token,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "beat": uuid.uuid4().hex,  # in S3 equal contents would be the same version
        }
        with _lease_errors(self._uri):
            try:
                written = self._store.put("", json.dumps(note).encode(), mode=version or "create")
            except (AlreadyExistsError, PreconditionError):
                return False
            except FileNotFoundError:
                if version is None:  # there is no such bucket
                    raise
                return False
        self._version = _version_of(written)
        return True


@contextlib.contextmanager
def _lease_errors(uri: str) -> Iterator[None]:
    """Convert errors of the store that writes conditionally.

    Raises
    ------
    FlrayError
        Instead of any of its errors.
    """
    from obstore.exceptions import BaseError

    try:
        yield
    except (BaseError, FileNotFoundError) as error:
        reason = str(error).partition("\n")[0][:300]
        raise FlrayError(f"{uri}: the storage cannot be used ({reason})") from None


def _version_of(facts: Any) -> dict[str, str]:
    return {name: facts[name] for name in ("e_tag", "version") if facts[name] is not None}


def _owner(note: dict[str, Any]) -> str:
    pid, host = (
        re.sub(r"[^\w.-]", "?", str(note[name]))[:80] if name in note else None
        for name in ("pid", "host")
    )
    return f"process {pid or '?'} on {host or 'an unknown host'}"


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
                    with contextlib.suppress(FileNotFoundError):
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
    folder: Path, uri: str, say: Callable[[str], None], leave: tuple[str, ...] = ()
) -> Iterator[None]:
    """Mirror a folder during the block, and once more at its end.

    Temporarily unreachable storage is reported once and retried; at the end it must be reachable.
    If another worker takes over the address, nothing more is written there and this thread is
    interrupted as by Ctrl-C.

    Parameters
    ----------
    folder : Path
        Folder of the run or sweep, with its ``run.json`` or ``sweep.json``.
    uri : str
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
    lease = Lease(uri, say)
    lease.take()
    try:
        if directory.continued_elsewhere(folder, uri):
            raise FlrayError(
                f"{uri} went on elsewhere since the copy in {folder} was made; give the same command again to go on "
                "from the latest"
            )
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
        except LeaseTakenError:
            return  # the thread that keeps the lease says so
        except FlrayError as error:
            if not away:
                say(f"{error}; trying again")
            away = True
