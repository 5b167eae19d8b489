"""What may be read at most: files come from anywhere, and one of them must not fill the memory or wait for ever."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import BinaryIO, Protocol

from flray.errors import DataError

#: Bytes of one photo, mask or list of files, in a folder or declared for a member of an archive.
FILE_BYTES = 2**28
#: Pixels of one photo or mask, 8,192 by 8,192.
PIXELS = 2**26
#: Bytes that the members of a zip archive may declare together.
ARCHIVE_BYTES = 2**42
#: Files in an archive or folder.
FILES = 2**24
#: Bytes of one file of arrays (a compressed one: of what it holds) that is decoded whole.
ARRAYS_BYTES = 2**32

_KINDS = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISDIR, "a folder"),
)


class Readable(Protocol):
    """A stream of bytes, plain or out of a compressed file."""

    def read(self, size: int, /) -> bytes:
        """Return at most so many bytes, none at its end."""


def amount(count: int) -> str:
    """Return a number of bytes in words, for example ``256 MiB``."""
    for unit, size in (("TiB", 2**40), ("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10)):
        if count >= size:
            return f"{count / size:.4g} {unit}"
    return f"{count} bytes"


def check_kind(path: Path | str, mode: int) -> None:
    """Refuse what is no regular file: a pipe would be waited for, a device has no end.

    Parameters
    ----------
    path : Path or str
        For the message.
    mode : int
        From ``os.stat``.

    Raises
    ------
    DataError
        Naming the file and its kind.
    """
    if not stat.S_ISREG(mode):
        kind = next((words for holds, words in _KINDS if holds(mode)), "of another kind")
        raise DataError(f"{path}: it is {kind}, and only regular files are read; take it away")


def check_size(path: Path | str, size: int, most: int) -> None:
    """Refuse a file that is too large.

    Parameters
    ----------
    path : Path or str
        For the message.
    size, most : int
        Its bytes, and how many are allowed.

    Raises
    ------
    DataError
        Naming the file, its size and the bound.
    """
    if size > most:
        raise DataError(
            f"{path}: it has {amount(size)}, and at most {amount(most)} are read of one file; "
            "take it away or make it smaller"
        )


def open_file(path: Path, most: int = ARRAYS_BYTES) -> BinaryIO:
    """Return a regular file of at most `most` bytes, open for reading.

    Raises
    ------
    DataError
        If it is of another kind or too large.
    OSError
        If it cannot be opened.
    """
    # Without O_NONBLOCK, opening a pipe waits for who writes into it.
    file = os.fdopen(os.open(path, os.O_RDONLY | os.O_CLOEXEC | getattr(os, "O_NONBLOCK", 0)), "rb")
    try:
        facts = os.fstat(file.fileno())
        check_kind(path, facts.st_mode)
        check_size(path, facts.st_size, most)
    except DataError:
        file.close()
        raise
    return file


def read_at_most(file: Readable, path: Path | str, most: int) -> bytes:
    """Return all that a stream still has.

    Parameters
    ----------
    file : Readable
        May be compressed: what comes out of it counts.
    path : Path or str
        For the message.
    most : int
        Bytes.

    Raises
    ------
    DataError
        If it has more than `most` bytes.
    """
    content = bytearray()
    while part := file.read(min(2**20, most + 1 - len(content))):
        content += part
        if len(content) > most:
            raise DataError(
                f"{path}: more than {amount(most)} come out of it, which is what is read of one "
                "file at most; take it away or make it smaller"
            )
    return bytes(content)
