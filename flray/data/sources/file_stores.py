"""Files in a folder or a zip archive: listed, read and compared. Nothing is unpacked or executed."""

from __future__ import annotations

import hashlib
import os
import stat
import struct
import threading
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Hashable, Sequence
from pathlib import Path, PurePosixPath
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from flray.errors import DataError
from flray.files.border import (
    ARCHIVE_BYTES,
    FILE_BYTES,
    FILES,
    amount,
    check_kind,
    check_size,
    open_file,
    read_at_most,
)

IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp")
_DAMAGED = (
    *(KeyError, OSError, EOFError, RuntimeError, ValueError),
    *(struct.error, zlib.error, zipfile.BadZipFile),
)
_LITTER = ("thumbs.db", "desktop.ini", "__macosx")


class Item(NamedTuple):
    """A file: its path from the top with ``/`` between names, its size, and what changes when its content does."""

    path: str
    size: int
    stamp: str

    @property
    def is_image(self) -> bool:
        """Whether its name is that of an image."""
        return PurePosixPath(self.path).suffix.lower() in IMAGES


class Store(Protocol):
    """Files by their path."""

    where: Path

    def items(self) -> list[Item]:
        """Return all files in the order of their paths, without hidden ones and what operating systems leave behind."""

    def read(self, path: str, length: int = -1) -> bytes:
        """Return a file's content, or its first `length` bytes.

        Raises
        ------
        DataError
            Naming the file, if it is not there, damaged, no regular file or larger than is read of
            one.
        """


class Folder:
    """Files in a folder; symbolic links are followed.

    Parameters
    ----------
    where : Path
        The folder.
    """

    def __init__(self, where: Path) -> None:
        self.where = where

    def items(self) -> list[Item]:
        """Return all files (see `Store`)."""
        found: list[Item] = []
        self._walk(self.where, "", found, ())
        return sorted(found)

    def read(self, path: str, length: int = -1) -> bytes:
        """Return a file's content (see `Store`)."""
        try:
            with open_file(self.where / path, FILE_BYTES) as file:
                return file.read(length)
        except OSError as error:
            raise DataError(f"{self.where / path}: cannot be read ({error.strerror})") from None

    def _walk(
        self, folder: Path, prefix: str, found: list[Item], above: tuple[tuple[int, int], ...]
    ) -> None:
        try:
            facts = folder.stat()
            if (facts.st_dev, facts.st_ino) in above:
                raise DataError(f"{folder}: a link to a folder that it lies in; remove it")
            with os.scandir(folder) as entries:
                for entry in entries:
                    if _is_litter(entry.name):
                        continue
                    if entry.is_dir():
                        self._walk(
                            Path(entry.path),
                            f"{prefix}{entry.name}/",
                            found,
                            (*above, (facts.st_dev, facts.st_ino)),
                        )
                    else:
                        facts_of = entry.stat()
                        check_kind(entry.path, facts_of.st_mode)
                        found.append(
                            Item(prefix + entry.name, facts_of.st_size, str(facts_of.st_mtime_ns))
                        )
        except OSError as error:
            raise DataError(
                f"{error.filename or folder}: cannot be read ({error.strerror})"
            ) from None


class Zip:
    """Files in a zip archive, which stays packed: none is written anywhere, and what is no image's name is not read.

    Parameters
    ----------
    where : Path
        The archive.

    Raises
    ------
    DataError
        If it is not a zip archive, truncated, or declares more than is read.
    """

    def __init__(self, where: Path) -> None:
        self.where = where
        try:
            self._archive = zipfile.ZipFile(where)
        except _DAMAGED as error:
            raise DataError(
                f"{where}: not a readable zip archive ({error}); fetch it again, or unpack it "
                "into a folder if it is of another kind"
            ) from None
        self._lock = threading.Lock()
        entries = self._archive.infolist()
        declared = sum(entry.file_size for entry in entries)
        if len(entries) > FILES or declared > ARCHIVE_BYTES:
            raise DataError(
                f"{where}: it declares {len(entries):,} files of {amount(declared)} together, and "
                f"at most {FILES:,} of {amount(ARCHIVE_BYTES)} are read; take what is needed out "
                "of it"
            )

    def items(self) -> list[Item]:
        """Return all files (see `Store`)."""
        found = [
            entry
            for entry in self._archive.infolist()
            if not entry.is_dir() and not any(map(_is_litter, entry.filename.split("/")))
        ]
        for entry in found:
            mode = entry.external_attr >> 16  # of Unix; elsewhere 0
            if stat.S_IFMT(mode):
                check_kind(self.where / entry.filename, mode)
        return sorted(Item(entry.filename, entry.file_size, f"{entry.CRC:08x}") for entry in found)

    def read(self, path: str, length: int = -1) -> bytes:
        """Return a file's content (see `Store`)."""
        try:
            entry = self._archive.getinfo(path)
            check_size(self.where / path, entry.file_size, FILE_BYTES)
            if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                # zipfile unpacks all of bzip2 and LZMA that it has read, however much that is.
                raise NotImplementedError(
                    "it is neither stored nor deflated; pack the archive again"
                )
            with self._lock, self._archive.open(entry) as file:
                content = read_at_most(file, self.where / path, FILE_BYTES)
            if len(content) != entry.file_size:
                raise EOFError(
                    f"{len(content)} bytes instead of the {entry.file_size} that it declares"
                )
            return content[:length] if length >= 0 else content
        except _DAMAGED as error:
            raise DataError(
                f"{self.where}: {path} cannot be read ({error}); fetch the archive again"
            ) from None


def open_store(path: Path) -> Store | None:
    """Return the files of a folder or zip archive, of the only archive in a folder without anything else, or None."""
    if path.is_dir():
        inside = [entry for entry in path.iterdir() if not _is_litter(entry.name)]
        if len(inside) == 1 and inside[0].is_file() and inside[0].suffix.lower() == ".zip":
            return Zip(inside[0])
        return Folder(path) if inside else None
    if path.exists():
        check_kind(path, path.stat().st_mode)
    return Zip(path) if path.is_file() else None


def content_groups(store: Store, items: Sequence[Item]) -> NDArray[np.int64]:
    """Return a number for each file that it shares with the files of the same bytes.

    Parameters
    ----------
    store : Store
        Where they lie. Of a folder's files those of equal size are read; of an archive nothing has
        to be.
    items : sequence of Item
        Which.

    Returns
    -------
    ndarray of int64 [n]
        The position of the first file with these bytes.
    """
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for row, item in enumerate(items):
        groups[item.size, item.stamp if isinstance(store, Zip) else ""].append(row)
    numbers = np.arange(len(items))
    for alike in groups.values():
        first: dict[Hashable, int] = {}
        for row in alike if len(alike) > 1 else ():
            same = (
                not isinstance(store, Zip) and hashlib.sha256(store.read(items[row].path)).digest()
            )
            numbers[row] = first.setdefault(same, row)
    return numbers


def _is_litter(name: str) -> bool:
    return name.startswith(".") or name.lower() in _LITTER
