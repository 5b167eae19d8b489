"""Lease on a run in object storage: an object beside the run that its one worker keeps renewing.

Buckets have no locks. A worker writes its own name, checks a moment later that the name is still
its own, and renews it while it works; a worker that finds another's name waits until it has not
been renewed for `LAPSE` seconds.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from typing import Any

import psutil

from flray.errors import FlrayError
from flray.files import storage

RENEW_INTERVAL_S = 15.0
"""Seconds between two renewals."""
LAPSE_S = 60.0
"""Seconds without a renewal after which a worker is considered dead."""
_READS = 3
_SETTLE = 1.0
"""Seconds after which a written name is checked: two simultaneous writers see one of the two."""


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
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None

    def take(self) -> None:
        """Take the lease, waiting for one that is no longer renewed to lapse.

        Raises
        ------
        FlrayError
            If a living process holds it, or the storage cannot be reached.
        """
        self._await_lapse()
        self._write()
        time.sleep(_SETTLE)
        self.check()

    def keep(self, lost: Callable[[LeaseTakenError], None]) -> None:
        """Renew the lease in the background until `give_back`; call `lost` if another worker took it."""

        def work() -> None:
            while not self._ended.wait(RENEW_INTERVAL_S):
                try:
                    self.check()
                    self._write()
                except LeaseTakenError as error:
                    lost(error)
                    return
                except FlrayError:
                    continue  # temporarily unreachable storage is retried

        self._thread = threading.Thread(target=work, name="flray-lease", daemon=True)
        self._thread.start()

    def check(self) -> None:
        """Verify that no other worker took the lease.

        Raises
        ------
        LeaseTakenError
            Naming the other worker.
        FlrayError
            If the storage cannot be reached.
        """
        found = self._read()
        if found and found.get("token") != self.token:
            raise LeaseTakenError(f"{self._uri}: {_owner(found)} works on it now")

    def give_back(self) -> None:
        """Stop renewing, and remove the lease if it is still this worker's."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()
        with contextlib.suppress(FlrayError):
            found = self._read()
            if found is not None and found.get("token") == self.token:
                storage.remove(self._place)

    def _await_lapse(self) -> None:
        first = found = self._read()
        said, begun = False, time.monotonic()
        while found is not None and not _owner_is_dead(found):
            if (
                found.get("beat") != (first or found).get("beat")
                or found.get("host") == socket.gethostname()
            ):
                raise FlrayError(
                    f"{self._uri} is being worked on by {_owner(found)}; stop it there first"
                )
            left = LAPSE_S - max(self._age(), time.monotonic() - begun)
            if left <= 0:
                return
            if not said:
                self._say(
                    f"{self._uri} was worked on by {_owner(found)}; going on when it has not been "
                    f"heard of for "
                    f"{LAPSE_S:.0f} s (in {left:.0f} s)"
                )
                said = True
            time.sleep(min(left, 2.0))
            found = self._read()

    def _age(self) -> float:
        """Return the lease's age [s] by the storage's clock; 0 if it reports no times."""
        probe = f"{self._place}-{self.token}"
        storage.write(probe, b"")
        try:
            written, now = storage.written_at(self._place), storage.written_at(probe)
        finally:
            storage.remove(probe)
        return 0.0 if written is None or now is None else now - written

    def _write(self) -> None:
        note = {
            "token": self.token,
            "beat": uuid.uuid4().hex,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "begun": psutil.Process().create_time(),
        }
        storage.write(self._place, json.dumps(note).encode())

    def _read(self) -> dict[str, Any] | None:
        """Return the lease's note, None if there is none, empty if it cannot be read.

        A read during another's write may be truncated, as the size is requested before the
        content: that says nothing about the holder.
        """
        for attempt in range(_READS):
            if attempt:
                time.sleep(0.1)
            data = storage.read(self._place)
            if data is None:
                return None
            try:
                note = json.loads(data)
            except ValueError:
                continue
            return note if isinstance(note, dict) else {}
        return {}


def _owner(note: dict[str, Any]) -> str:
    return f"process {note.get('pid', '?')} on {note.get('host', 'an unknown host')}"


def _owner_is_dead(note: dict[str, Any]) -> bool:
    """Return whether the holder was a process of this machine that has ended."""
    if note.get("host") != socket.gethostname():
        return False
    try:
        return bool(
            abs(psutil.Process(int(note["pid"])).create_time() - float(note["begun"])) > 1.0
        )
    except (psutil.NoSuchProcess, KeyError, TypeError, ValueError):
        return True
