"""Locks between processes of one machine, beside what they guard."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout


class BusyError(Exception):
    """Another process holds the lock."""


def take_lock(path: Path, seconds: float | None = None) -> BaseFileLock | None:
    """Take the lock in a file; whoever takes it gives it back with ``release``, or by ending.

    Parameters
    ----------
    path : Path
        The lock's file, which is made; it holds nothing and stays.
    seconds : float, optional
        The longest wait; None waits without limit.

    Returns
    -------
    FileLock or None
        None on a file system without locks: the check is lost there, the work is not.

    Raises
    ------
    BusyError
        If another process held it all the time.
    """
    lock = FileLock(path, is_singleton=False)
    try:
        lock.acquire(timeout=-1 if seconds is None else seconds, poll_interval=0.02)
    except Timeout:
        raise BusyError(str(path)) from None
    except (OSError, NotImplementedError):
        return None
    return lock


@contextlib.contextmanager
def hold_lock(path: Path, seconds: float | None = None) -> Iterator[None]:
    """Hold the lock in a file during a block; see `take_lock`."""
    lock = take_lock(path, seconds)
    try:
        yield
    finally:
        if lock is not None:
            lock.release()
