"""Lease on a run in object storage: an object beside the run that its one worker keeps renewing.

Every write of it is conditional: it is made only if there is none, and replaced only if nobody has
replaced it since it was read. So the storage decides between two workers, however slow one of them is.
A worker that finds another's lease waits until it has not been renewed for `LAPSE_S` seconds.
"""

import contextlib
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

from flray.errors import FlrayError
from flray.files import storage
from flray.files.border import parse_json

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
    """Exclusive access to a run or sweep at an address.

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
            alive = False if version is None else owner_is_alive(found)
            if alive or (first and version and found.get("beat") != first.get("beat")):
                raise FlrayError(
                    f"{self._uri} is being worked on by {_owner(found)}; stop it there first"
                )
            left = 0.0 if alive is False else LAPSE_S - max(self._age(), time.monotonic() - begun)
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

        # "beat" differs each time: in S3 equal contents would be the same version.
        note = {
            "token": self.token,
            "beat": uuid.uuid4().hex,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            **process_facts(os.getpid()),
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


def process_facts(pid: int) -> dict[str, Any]:
    """Return the machine's boot, the namespace that numbers its processes, and a process's start, as Linux has them.

    The start [clock ticks since boot] is missing if the process cannot be seen; it is None if the
    process has ended. Elsewhere than on Linux nothing is returned.
    """
    try:
        facts: dict[str, Any] = {
            "boot": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            "namespace": Path("/proc/self/ns/pid").stat().st_ino,
        }
    except OSError:
        return {}
    try:
        os.kill(pid, 0)
        state, *fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        facts["start"] = None if state in "ZX" else int(fields[18])
    except ProcessLookupError:
        facts["start"] = None
    except (OSError, OverflowError):
        pass
    return facts


def owner_is_alive(note: dict[str, Any]) -> bool | None:
    """Return whether a lease's holder is alive; None if this process cannot know it.

    It knows only of processes of the same boot and namespace: names of hosts and numbers of
    processes repeat among containers and images.
    """
    pid = note.get("pid")
    if type(pid) is not int or pid <= 0 or note.get("start") is None:
        return None
    here = {"host": socket.gethostname(), **process_facts(pid)}
    if "start" not in here or any(note.get(k) != here[k] for k in ("host", "boot", "namespace")):
        return None
    return bool(here["start"] == note["start"])
