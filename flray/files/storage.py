"""Object storage: ``s3://``, ``gs://`` and other schemes of Arrow or fsspec, with the environment's keys.

Runs work in a local folder, as buckets can neither append to a journal nor rename a checkpoint;
`flray.records.mirror` copies the changes. Data sets are fetched once per node.
"""

import contextlib
import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from platformdirs import user_cache_path

from flray.errors import FlrayError, explained
from flray.files import FILE_BYTES, check_name, hold_lock, read_at_most, write_atomically
from flray.files.tracking_address import at_home, redact


def is_remote(place: str | Path) -> bool:
    """Return whether a path is an address rather than a folder."""
    return "://" in str(place)


def filesystem(uri: str) -> tuple[Any, str]:
    """Return Arrow's file system for an address (or a local folder), and the path in it.

    Raises
    ------
    FlrayError
        If there is none for this kind of address, the address contains a key, or the storage
        cannot be reached.
    """
    from pyarrow import ArrowInvalid
    from pyarrow.fs import FileSystem, FSSpecHandler, LocalFileSystem, PyFileSystem

    if not is_remote(uri):
        return LocalFileSystem(), str(Path(uri).absolute())
    _check_keys(uri)
    with storage_errors(uri):
        with contextlib.suppress(ArrowInvalid):
            found, path = FileSystem.from_uri(uri.rstrip("/"))
            return found, str(path)
        with explained(
            (ImportError, ValueError),
            f"{uri}: no such kind of storage",
            "s3:// and gs:// need nothing more, others the fsspec package for them",
            FlrayError,
        ):
            import fsspec

            other, path = fsspec.core.url_to_fs(uri)
    return PyFileSystem(FSSpecHandler(other)), str(path).rstrip("/")


@contextlib.contextmanager
def _opened(uri: str) -> Iterator[tuple[Any, str]]:
    """Yield the file system and the path of an address, and convert errors of the storage."""
    found = filesystem(uri)
    with storage_errors(uri):
        yield found


def files(uri: str) -> dict[str, int]:
    """Return all files below an address, relative to it, with their sizes; empty if there are none.

    Raises
    ------
    FlrayError
        If the storage cannot be reached, or a name leads out of the address.
    """
    from pyarrow.fs import FileSelector, FileType

    with _opened(uri) as (found, path):
        every = found.get_file_info(FileSelector(path, allow_not_found=True, recursive=True))
        return {
            check_name(info.path.removeprefix(path).removeprefix("/"), uri): info.size
            for info in every
            if info.type == FileType.File
        }


def names(uri: str) -> set[str]:
    """Return the names of files and folders directly below an address; empty if there are none."""
    from pyarrow.fs import FileSelector

    with _opened(uri) as (found, path):
        below = found.get_file_info(FileSelector(path, allow_not_found=True))
        return {check_name(info.base_name, uri) for info in below}


def read(uri: str) -> bytes | None:
    """Return the content of a single small file at an address, or None if it is missing."""
    with (
        _opened(uri) as (found, path),
        contextlib.suppress(FileNotFoundError),
        found.open_input_stream(path) as source,
    ):
        return read_at_most(source, uri, FILE_BYTES)
    return None


def write(uri: str, data: bytes) -> None:
    """Write a single small file at an address or in a folder, whole or not at all."""
    if is_remote(uri):
        with _opened(uri) as (found, path), found.open_output_stream(path) as stream:
            stream.write(data)
    else:
        write_atomically(Path(uri), data)


def remove(uri: str) -> None:
    """Remove a single file; a missing one is not an error."""
    with _opened(uri) as (found, path), contextlib.suppress(FileNotFoundError):
        found.delete_file(path)


def remove_folder(uri: str) -> None:
    """Remove a folder with its whole content; a missing one is not an error."""
    with _opened(uri) as (found, path), contextlib.suppress(FileNotFoundError):
        found.delete_dir(path)


def written_at(uri: str) -> float | None:
    """Return a file's write time [s since 1970, by the storage's clock]; None if unknown."""
    with _opened(uri) as (found, path):
        time: Any = found.get_file_info([path])[0].mtime_ns
        return None if time is None else time / 1e9


DOWNLOADS = 5
"""Attempts at a copy of files of which another process removes some meanwhile, such as old checkpoints."""


def download(uri: str, folder: Path) -> int:
    """Copy everything below an address into a folder, empty before; return the number of files."""
    from pyarrow.fs import FileType

    with _opened(uri) as (found, path):
        for attempt in range(1, DOWNLOADS + 1):
            names = files(uri)
            for name in names:
                source, target = f"{path}/{name}", folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                try:
                    with found.open_input_stream(source) as stream, target.open("wb") as file:
                        shutil.copyfileobj(stream, file, 1 << 20)
                except OSError:
                    gone = found.get_file_info([source])[0].type == FileType.NotFound
                    if not gone or attempt == DOWNLOADS:
                        raise
                    break
            else:
                break
            shutil.rmtree(folder)
    return len(names)


@contextlib.contextmanager
def local_folder(uri: str) -> Iterator[Path]:
    """Yield a folder with everything below an address: a temporary copy, or the folder itself."""
    if not is_remote(uri):
        yield Path(uri)
        return
    with tempfile.TemporaryDirectory() as folder:
        download(uri, Path(folder))
        yield Path(folder)


def fetch(uri: str, folder: Path, mark: str | None = None) -> bool:
    """Download everything below an address into a folder atomically, once per node; False if there is nothing.

    Parameters
    ----------
    uri : str
        The source.
    folder : Path
        The target; unchanged if it exists.
    mark : str, optional
        Name of an empty file that is put into the folder, to mark its
        origin.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    with hold_lock(folder.parent / f".{folder.name}.lock"):  # another process may be at it
        if folder.exists():
            return True
        with tempfile.TemporaryDirectory(
            prefix=f".{folder.name}.", dir=folder.parent, ignore_cleanup_errors=True
        ) as place:
            temporary = Path(place, folder.name)  # for all whom the umask lets in, unlike `place`
            temporary.mkdir()
            if not download(uri, temporary):
                return False
            if mark is not None:
                (temporary / mark).touch()
            temporary.rename(folder)
            return True


def cache_folder() -> Path:
    """Return this user's cache folder as the platform has it, or ``~/.cache/flray`` where only that is there.

    ``$XDG_CACHE_HOME/flray`` or ``~/.cache/flray`` on Linux, ``~/Library/Caches/flray`` on macOS.
    """
    usual, before = user_cache_path("flray"), Path(at_home("~/.cache/flray"))
    return before if before.is_dir() and not usual.is_dir() else usual


def local_cache_of(uri: str) -> Path:
    """Return the local working folder of an address."""
    _check_keys(uri)
    work = os.environ.get("FLRAY_WORK")
    base = Path(at_home(work)) if work else cache_folder() / "work"
    parts = urlsplit(uri)
    digest = hashlib.sha256(uri.rstrip("/").encode()).hexdigest()[:8]
    return base / f"{parts.netloc}-{digest}"


def _check_keys(uri: str) -> None:
    """Reject an address with a key in it.

    Raises
    ------
    FlrayError
        Its message omits the key.
    """
    shown = redact(uri)
    if shown != uri:
        raise FlrayError(
            f"{shown}: keep keys out of addresses, which are written to files; use the environment or the node's role"
        )


@contextlib.contextmanager
def storage_errors(uri: str) -> Iterator[None]:
    """Convert errors of the storage.

    Raises
    ------
    FlrayError
        Instead of any error of the storage.
    """
    try:
        yield
    except OSError as error:
        reason = " ".join(str(error).split())[:300]
        raise FlrayError(f"{uri}: the storage cannot be used ({reason})") from None
