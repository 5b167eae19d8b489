"""Files are written whole or not at all, and the border: whatever is not the user's own is checked before it is used.

From a bucket, an archive, a hub, a table or another user's folder:

- Names and links lead to no place outside their folder: `check_name`, `check_links`, `numbered`.
- Bytes come from regular files and have an end: `open_file`, `read`, `read_npz`.
- JSON has the form that was written: `parse_json`, `read_json`.
- Settings and addresses of a run that is `foreign` are followed only if they are the user's own:
  `own_tracking`, `check_settings`. Its `origin` tells which runs it has on a tracking server.

Texts are made harmless by `flray.errors.one_line`, which every error and the console of
`flray.cli.display` call before they show them.
"""

import contextlib
import io
import json
import os
import re
import stat
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO, TypeVar

from filelock import BaseFileLock, FileLock, Timeout
from pydantic import TypeAdapter, ValidationError

from flray.errors import DataError, FlrayError, brief
from flray.files.tracking_address import redact, resolve_uri

T = TypeVar("T")
MAPPING = TypeAdapter(dict[str, Any])
"""The form of a JSON file whose values are checked where they are used."""

FETCHED_MARK = ".fetched"
"""Name of the file that marks a folder from object storage."""

#: Bytes of one photo, mask or list of files, in a folder or declared for a member of an archive.
FILE_BYTES = 2**28
#: Bytes of one file of arrays (a compressed one: of what it holds) that is decoded whole.
ARRAYS_BYTES = 2**32
#: Rows by columns of one table.
CELLS = 2**29
#: Bytes of one file of weights, or of a run's journal.
WEIGHTS_BYTES = 2**36


def check_size(path: Path | str, size: int, most: int) -> None:
    """Refuse a file that is too large.

    Parameters
    ----------
    path : Path or str
        The file, which the message names.
    size, most : int
        The size of the file and the limit, in bytes.

    Raises
    ------
    DataError
        Naming the file, its size and the bound.
    """
    if size > most:
        raise DataError(
            f"{path}: it has {size:,} bytes, and at most {most:,} are read of one file; "
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
        if not stat.S_ISREG(facts.st_mode):  # a pipe would be waited for, a device has no end
            raise DataError(f"{path}: not a regular file, and only those are read; take it away")
        check_size(path, facts.st_size, most)
    except DataError:
        file.close()
        raise
    return file


def read_at_most(file: IO[bytes] | io.BufferedIOBase, path: Path | str, most: int) -> bytes:
    """Return all that a stream still has.

    Parameters
    ----------
    file : stream of bytes
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
                f"{path}: more than {most:,} bytes come out of it, which is what is read of one "
                "file at most; take it away or make it smaller"
            )
    return bytes(content)


def read(path: Path, most: int = WEIGHTS_BYTES) -> bytes:
    """Return the content of a regular file of at most `most` bytes; raises as `open_file` does."""
    with open_file(path, most) as file:
        return file.read()


def read_npz(path: Path) -> dict[str, Any]:
    """Return the arrays of an .npz file, by name.

    Raises
    ------
    DataError
        If it is not one, or its arrays are too large.
    """
    import numpy as np  # not every command needs it

    try:
        with open_file(path) as file:
            if zipfile.is_zipfile(file):
                for entry in zipfile.ZipFile(file).infolist():
                    check_size(path / entry.filename, entry.file_size, ARRAYS_BYTES)
            file.seek(0)
            with np.load(file, allow_pickle=False) as found:
                return dict(found)
    except (
        *(OSError, EOFError, TypeError, ValueError, zipfile.BadZipFile, zlib.error),
        RuntimeError,  # of a changed bit that says "encrypted", or names another compression
    ) as error:
        # Not with numpy's own words, which propose to unpickle what is there.
        what = str(error) if isinstance(error, zipfile.BadZipFile) else "not plain arrays"
        raise DataError(f"{path}: not a readable .npz file ({what}); fetch it again") from None


def check_cells(path: Path, rows: int, columns: int) -> None:
    """Refuse a table that is too large, because a small file can hold endless rows that are alike."""
    if rows * columns > CELLS:
        raise DataError(
            f"{path}: it holds {rows:,} rows of {columns:,} columns, and at most {CELLS:,} cells are "
            "read; make it smaller"
        )


def check_name(name: str, where: str | Path) -> str:
    """Return the name of a file below a folder or an address.

    Parameters
    ----------
    name : str
        Its parts, with slashes between them.
    where : str or Path
        The folder or address that holds the name; the message shows it.

    Raises
    ------
    DataError
        If a part is empty or ``..``, or if the name is absolute or holds a backslash, a drive or
        a control character.
    """
    parts = name.split("/")
    if (
        any(part in ("", ".", "..") for part in parts)
        or re.match("[A-Za-z]:", name)
        or re.search("[\\\\\x00-\x1f\x7f-\x9f\ud800-\udfff]", name)
    ):
        raise DataError(
            f"{where}: it holds {name!r}, a name that could lead out of its folder; nothing of it is "
            "used until that is taken away"
        )
    return name


def check_links(folder: Path) -> None:
    """Refuse a folder with links out of it, because files written into it would land elsewhere.

    Parameters
    ----------
    folder : Path
        The folder of a run or sweep; it may be a link itself.

    Raises
    ------
    DataError
        Naming the link.
    """
    whole, left = folder.resolve(), [str(folder)]
    while left:
        # A folder may be gone meanwhile: a sweep that is under way removes old checkpoints.
        with contextlib.suppress(FileNotFoundError), os.scandir(left.pop()) as entries:
            for entry in entries:
                target = Path(os.path.realpath(entry.path))
                if entry.is_symlink() and not target.is_relative_to(whole):
                    raise DataError(
                        f"{entry.path}: it is a link out of the folder of the run; put the file or folder itself there"
                    )
                if entry.is_dir(follow_symlinks=False):
                    left.append(entry.path)


def numbered(names: Iterable[str]) -> list[str]:
    """Return the names that are numbers, as runs and sessions have them, sorted by number."""
    return sorted((name for name in names if re.fullmatch("[0-9]{1,18}", name)), key=int)


def parse_json(data: bytes | str) -> Any:
    """Return the content of a JSON text.

    Raises
    ------
    ValueError
        If it is not JSON, or nested too deeply.
    """
    try:
        return json.loads(data)
    except RecursionError:
        raise ValueError("too many parts within each other") from None


def read_json(path: Path, form: TypeAdapter[T]) -> T:
    """Read and validate a JSON file that flray wrote.

    Parameters
    ----------
    path : Path
        The file.
    form : TypeAdapter
        The type of its content.

    Raises
    ------
    FlrayError
        If it is missing, damaged or of another form.
    """
    try:
        return form.validate_json(read(path, FILE_BYTES))
    except OSError as error:
        raise FlrayError(
            f"{path}: cannot be read ({brief(error)}); restore it, or start anew"
        ) from None
    except ValidationError as error:
        raise misshapen(path, error) from None


def misshapen(path: Path, error: ValidationError) -> FlrayError:
    """Return the error that a file is not of the form that flray wrote."""
    first = error.errors()[0]
    where = ".".join(map(str, first["loc"])) or "its content"
    return FlrayError(
        f"{path}: {where} is not what was written ({first['msg']}); restore it, or start anew"
    )


def foreign(folder: Path) -> bool:
    """Return whether others may have written a run's folder: it was fetched from object storage, or they own it.

    Parameters
    ----------
    folder : Path
        Of a run or sweep, or of a sweep's trial. Root, as containers have it, may use anybody's.
    """
    whole = folder.resolve()
    return _fetched(whole) is not None or os.geteuid() not in (0, whole.stat().st_uid)


def origin(folder: Path) -> str:
    """Return the part of its path that all copies of a run share.

    Parameters
    ----------
    folder : Path
        Of a run, sweep or trial. Fetched from object storage, it has a name that its address
        decides on every machine, such as ``bucket-1f0a22b3/demo/001``; else its whole path.
    """
    fetched = _fetched(folder.resolve())
    return str(folder.resolve()) if fetched is None else "/".join(fetched.parts[-3:])


def _fetched(whole: Path) -> Path | None:
    """Return the folder of the run or sweep that was fetched, if this is one or lies in one."""
    places = (whole, whole.parent, whole.parent.parent)
    return next((place for place in places if (place / FETCHED_MARK).exists()), None)


def own_tracking(folder: Path, uri: str | None) -> str | None:
    """Return the tracking address that a run's settings name, having refused a stranger's.

    The user's own is that of the environment, or the default. Nothing else learns of the run or is
    given the user's name and password.

    Parameters
    ----------
    folder : Path
        The run's or sweep's folder.
    uri : str or None
        From its settings.

    Raises
    ------
    FlrayError
        If the folder is `foreign` and the address is not the user's own.
    """
    own = os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///mlflow.db"
    if uri is None or not foreign(folder) or redact(resolve_uri(uri)) == redact(resolve_uri(own)):
        return uri
    remedy = "set MLFLOW_TRACKING_URI to your own server's address"
    raise _not_own(folder, "tracking.uri", uri, remedy)


def check_settings(folder: Path, experiment: Mapping[str, Any], address: str | None) -> None:
    """Refuse settings of a `foreign` run that would write or send where the user did not say.

    Parameters
    ----------
    folder : Path
        The run's or sweep's folder.
    experiment : mapping
        Its settings, as plain values.
    address : str, optional
        The output folder in object storage that it was fetched from.

    Raises
    ------
    FlrayError
        Naming the setting.
    """
    if not foreign(folder):
        return
    own_tracking(folder, experiment["tracking"]["uri"])
    if "://" in experiment["output"] and experiment["output"] != address:
        raise _not_own(folder, "output", experiment["output"], "name where the run came from")
    for number, callback in enumerate(experiment["callbacks"]):
        for option, harmless in (("folder", None), ("mode", "offline")):
            if callback.get(option, harmless) != harmless:
                setting = f"callbacks.{number}.{option}"
                raise _not_own(folder, setting, callback[option], f"write {harmless}")


def _not_own(folder: Path, setting: str, value: str, remedy: str) -> FlrayError:
    return FlrayError(
        f"{folder / 'config.yaml'}: experiment.{setting} names {redact(value)!r}, and others may have "
        f"written it; {remedy}, or, if you trust it, make the folder your own "
        f"(rm {folder / FETCHED_MARK}, or copy one of another user)"
    )


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
