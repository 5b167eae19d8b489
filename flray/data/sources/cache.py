"""Arrays on disk: written at once or not at all, checked on every read, never executed."""

import contextlib
import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import numpy as np

from flray.data.types import Array, Arrays
from flray.errors import DataError, FlrayError, explained
from flray.files import (
    MAPPING,
    check_name,
    hold_lock,
    read_json,
    storage,
    sync_file,
    sync_folder,
    write_atomically,
)
from flray.files.tracking_address import at_home

MANIFEST = "manifest.json"


def data_root() -> Path:
    """Return the folder of the data cache: ``$FLRAY_DATA``, or `flray.files.storage.cache_folder`.

    Where ``$FLRAY_DATA`` is an address (``s3://...``, ``gs://...``), this node's copy of it.
    """
    place = os.environ.get("FLRAY_DATA")
    if not place:
        return storage.cache_folder()
    return storage.local_cache_of(place) if storage.is_remote(place) else Path(at_home(place))


def sha256_file(path: Path) -> str:
    """Return the SHA-256 (hex) of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def decoded(
    folder: Path,
    decode: Callable[[Path], Mapping[str, Array]],
    mapped: Collection[str] = (),
    trusted: bool = False,
) -> Arrays:
    """Return a data set's decoded arrays; the first use, or one that finds damage, decodes them into the cache.

    Parameters
    ----------
    folder : Path
        The cache folder of the arrays; it differs for other files or settings. It appears complete,
        by one rename; a process killed meanwhile leaves only a hidden folder beside it.
    decode : callable
        Returns plain numeric arrays; large ones it may write itself, as ``NAME.npy`` into the folder
        that it is given.
    mapped : collection of str
        Arrays that stay on disk and are memory-mapped.
    trusted : bool
        Whether sizes are enough of a check, because many processes of a node read the same large arrays.

    Raises
    ------
    DataError
        If the arrays are not there and cannot be written.
    """
    found = _stamp(folder)
    with contextlib.suppress(DataError):
        return _verified(folder, mapped, "", trusted)
    with contextlib.ExitStack() as stack:
        problem = f"{folder} is missing or damaged, and cannot be written"
        with explained(OSError, problem, "set FLRAY_DATA to a folder that can be"):
            folder.parent.mkdir(parents=True, exist_ok=True)
            stack.enter_context(hold_lock(folder.parent / f".{folder.name}.lock"))
            place = stack.enter_context(
                tempfile.TemporaryDirectory(
                    prefix=f".{folder.name}.", dir=folder.parent, ignore_cleanup_errors=True
                )
            )
        if _stamp(folder) == found:  # otherwise another process had the lock, and has decoded them
            new = Path(place) / folder.name  # others may read it, unlike the folder that it is in
            new.mkdir()
            for name, array in decode(new).items():
                np.save(new / f"{name}.npy", array, allow_pickle=False)
            files = {}
            for path in sorted(new.iterdir()):
                sync_file(path)
                files[path.name] = {"sha256": sha256_file(path), "bytes": path.stat().st_size}
            write_atomically(new / MANIFEST, json.dumps({"files": files}, indent=1).encode())
            if _stamp(folder) == found:  # as it may differ without locks
                if folder.exists():
                    folder.rename(Path(place) / "old")
                new.rename(folder)
                sync_folder(folder.parent)
    return _verified(folder, mapped, f"remove {folder}", trusted)


def _stamp(folder: Path) -> tuple[int, int] | None:
    """Return values that differ once other arrays are in a folder; None if there are none."""
    try:
        status = (folder / MANIFEST).stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def read_arrays(folder: Path, name: str) -> Arrays:
    """Read and verify the arrays that `decoded` wrote, here or into the bucket of ``$FLRAY_DATA``.

    Parameters
    ----------
    folder : Path
        The folder of the arrays.
    name : str
        The data set, which the message tells how to get.

    Raises
    ------
    DataError
        If a file is missing or altered; the message names the file and the remedy.
    """
    where, remedy = f"in {folder}", f"run `flray data get {name}`"
    damaged, place = remedy, os.environ.get("FLRAY_DATA", "")
    there = (folder / MANIFEST).exists()
    if storage.is_remote(place) and folder.is_relative_to(data_root()):
        source = f"{place.rstrip('/')}/{folder.relative_to(data_root())}"
        where, damaged = f"at {source}", f"remove {folder}, a copy of {source}"
        remedy += f" where FLRAY_DATA is a folder and copy that folder to {place}"
        there = there or storage.fetch(source, folder)
    if not there:
        raise DataError(f"data set {name} is not {where}; {remedy}")
    return _verified(folder, (), damaged)


def _verified(folder: Path, mapped: Collection[str], remedy: str, trusted: bool = False) -> Arrays:
    """Return arrays that are as they were written; an error ends with the remedy."""
    manifest, arrays = folder / MANIFEST, {}
    try:
        files = {
            folder / check_name(file, manifest): (facts["sha256"], facts["bytes"])
            for file, facts in read_json(manifest, MAPPING)["files"].items()
        }
    except (FlrayError, KeyError, TypeError, AttributeError):
        raise DataError(f"{manifest} is not a readable manifest; {remedy}") from None
    for path, (checksum, size) in files.items():
        same = path.is_file() and path.stat().st_size == size
        if not same or not (trusted or sha256_file(path) == checksum):
            raise DataError(f"{path} is missing or was altered; {remedy}")
        with explained((ValueError, EOFError), f"{path} holds no array", remedy):
            arrays[path.stem] = np.load(
                path, "r" if path.stem in mapped else None, allow_pickle=False
            )
    return arrays
