"""Atomic file writes that survive a crash of the process or the machine, and locks on files."""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from filelock import BaseFileLock, FileLock, Timeout


def write_atomically(path: Path, data: bytes, *, keep_name: bool = True) -> None:
    """Write a file atomically, whenever the process or the machine dies.

    Parameters
    ----------
    path : Path
        Its folder is created if missing.
    data : bytes
        The content.
    keep_name : bool
        Sync the folder too before returning, so that the name survives a machine crash; for many
        files of one folder see `sync_folder`.

    Raises
    ------
    OSError
        If it cannot be written; no partial file remains.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    if keep_name:
        sync_folder(path.parent)


def move_into_place(written: Path, path: Path) -> None:
    """Give a file that another program wrote its name, so that it is there whole or not at all after a crash.

    Parameters
    ----------
    written : Path
        On the same file system.
    path : Path
        What it becomes; an older file of this name is replaced.
    """
    sync_file(written)
    written.replace(path)
    sync_folder(path.parent)


def sync_file(path: Path) -> None:
    """Sync a file's content, so that it survives a machine crash."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that its files' names survive a machine crash, if the file system supports it."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


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
        if not os.path.lexists(path):  # FileLock waits for a file that nobody can make
            path.touch()
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
