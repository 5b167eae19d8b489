"""Files that are there whole or not at all, whenever the process, the machine or the disk gives up."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def write_atomically(path: Path, data: bytes, *, keep_name: bool = True) -> None:
    """Write a file so that it is there whole or not at all, whenever the process or the machine dies.

    Parameters
    ----------
    path : Path
        Its folder is made if missing.
    data : bytes
        The content.
    keep_name : bool
        Have the name survive a crash of the machine too, before this returns; of many files of one
        folder see `sync_folder`.

    Raises
    ------
    OSError
        If it cannot be written; then nothing is left of it.
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
    """Have the names of a folder's files survive a crash of the machine, where the file system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
