"""Arrays on disk: written at once or not at all, checked on every read, never executed."""

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Collection, Mapping
from pathlib import Path

import numpy as np

from flray.data.types import Array, Arrays
from flray.errors import DataError, FlrayError, explained
from flray.files import (
    MAPPING,
    check_name,
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


def write_arrays(folder: Path, arrays: Mapping[str, Array]) -> None:
    """Write arrays as ``NAME.npy`` with a manifest of sizes and checksums, replacing what was there.

    Parameters
    ----------
    folder : Path
        Appears complete, by one rename; a process killed meanwhile leaves only a hidden folder
        beside it.
    arrays : mapping of str to ndarray
        Plain numeric arrays.
    """
    _write(folder, lambda temporary: arrays, replace=True)


def decoded(
    folder: Path,
    name: str,
    decode: Callable[[Path], Mapping[str, Array]],
    mapped: Collection[str] = (),
) -> Arrays:
    """Return a data set's decoded arrays; the first use decodes them into the cache.

    Parameters
    ----------
    folder : Path
        The cache folder of the arrays; it differs for other files or settings.
    name : str
        As for `read_arrays`.
    decode : callable
        Returns the arrays; large ones it may write itself, as ``NAME.npy`` into the folder that it
        is given.
    mapped : collection of str
        As for `read_arrays`.
    """
    if not (folder / MANIFEST).exists():
        _write(folder, decode)
    return read_arrays(folder, name, mapped)


def _write(
    folder: Path, decode: Callable[[Path], Mapping[str, Array]], *, replace: bool = False
) -> None:
    """Write arrays into a new folder that takes the place of `folder` when all went well.

    After an error it does not exist, nor do the parent folders that were created for it. Arrays that
    another process has put there meanwhile stay, because it may be reading them, unless `replace`.
    """
    missing = [place for place in (folder.parent, *folder.parent.parents) if not place.exists()]
    while True:
        folder.parent.mkdir(parents=True, exist_ok=True)
        # Taken away by another process, which had made it for nothing.
        with contextlib.suppress(FileNotFoundError):
            temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
            break
    try:
        for name, array in decode(temporary).items():
            np.save(temporary / f"{name}.npy", array, allow_pickle=False)
        files = {}
        for path in sorted(temporary.iterdir()):
            sync_file(path)
            files[path.name] = {"sha256": sha256_file(path), "bytes": path.stat().st_size}
        write_atomically(temporary / MANIFEST, json.dumps({"files": files}, indent=1).encode())
        if replace or not (folder / MANIFEST).exists():
            _put(temporary, folder)
        sync_folder(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        with contextlib.suppress(OSError):  # there are others' folders in it by now
            for place in missing:
                place.rmdir()


def read_arrays(folder: Path, name: str, mapped: Collection[str] = ()) -> Arrays:
    """Read and verify the arrays that `write_arrays` wrote.

    Parameters
    ----------
    folder : Path
        The folder of the arrays.
    name : str
        The data set, which the message tells how to get.
    mapped : collection of str
        Arrays that stay on disk and are memory-mapped.

    Raises
    ------
    DataError
        If a file is missing, truncated or altered; the message names the file and the remedy.
    """
    remedy = f"run `flray data get {name}`"
    manifest = folder / MANIFEST
    place = os.environ.get("FLRAY_DATA", "")
    if storage.is_remote(place) and folder.is_relative_to(data_root()):
        source = f"{place.rstrip('/')}/{folder.relative_to(data_root())}"
        remedy = f"run `flray data get {name}` where FLRAY_DATA is a folder and copy that folder to {place}"
        if not manifest.exists() and not storage.fetch(source, folder):
            raise DataError(f"data set {name} is not at {source}; {remedy}")
    if not manifest.exists():
        raise DataError(f"data set {name} is not in {folder}; {remedy}")
    try:
        files = {
            check_name(file, manifest): (str(facts["sha256"]), int(facts["bytes"]))
            for file, facts in read_json(manifest, MAPPING)["files"].items()
        }
    except (FlrayError, ValueError, KeyError, TypeError, AttributeError):
        raise DataError(f"{manifest} is not a readable manifest; {remedy}") from None
    arrays = {}
    for file, (checksum, size) in files.items():
        path = folder / file
        if not path.is_file():
            raise DataError(f"{path} is missing; {remedy}")
        if (found := path.stat().st_size) != size:
            raise DataError(f"{path} has {found} bytes, expected {size}; {remedy}")
        if (digest := sha256_file(path)) != checksum:
            raise DataError(
                f"{path} was altered: sha256 is {digest}, expected {checksum}; {remedy}"
            )
        with explained((ValueError, EOFError, MemoryError), f"{path} holds no array", remedy):
            arrays[path.stem] = np.load(
                path, "r" if path.stem in mapped else None, allow_pickle=False
            )
    return arrays


def _put(new: Path, folder: Path) -> None:
    """Rename a folder to where another one may be, or may appear meanwhile: other processes write here too."""
    old = new.with_name(f"{new.name}.old")
    while True:
        try:
            new.rename(folder)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        with contextlib.suppress(FileNotFoundError):
            folder.rename(old)
        shutil.rmtree(old, ignore_errors=True)
