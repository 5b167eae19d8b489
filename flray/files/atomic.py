"""Atomic file writes that survive a crash of the process or the machine, and a full disk."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


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
        If it cannot be written; no partial file is left.
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


def sync_folder(folder: Path) -> None:
    """Sync a folder, so that its files' names survive a machine crash, if the file system supports it."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
