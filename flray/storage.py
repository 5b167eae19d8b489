"""Object storage: ``s3://``, ``gs://`` and what else Arrow or fsspec knows, with the keys of the environment.

Runs work in a local folder, for a journal is appended to and a checkpoint renamed, which buckets cannot do; a mirror
copies what has changed. Data sets are fetched once per node.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from flray.errors import FlrayError
from flray.tracking.secrets import redacted

EVERY = 20.0
"""Seconds between two copies of what has changed: what a lost head may cost besides the rounds since a checkpoint."""


def is_remote(place: str | Path) -> bool:
    """Tell whether a place is an address rather than a folder."""
    return "://" in str(place)


def filesystem(uri: str) -> tuple[Any, str]:
    """Return Arrow's file system for an address (or a local folder), and the path in it.

    Raises
    ------
    FlrayError
        If there is none for this kind of address, or the address holds a key.
    """
    from pyarrow import ArrowInvalid
    from pyarrow.fs import FileSystem, FSSpecHandler, LocalFileSystem, PyFileSystem

    if not is_remote(uri):
        return LocalFileSystem(), str(Path(uri).absolute())
    _check_keys(uri)
    try:
        found, path = FileSystem.from_uri(uri.rstrip("/"))
        return found, str(path)
    except ArrowInvalid:
        pass
    try:
        import fsspec

        other, path = fsspec.core.url_to_fs(uri)
    except (ImportError, ValueError) as error:
        raise FlrayError(f"{uri}: no such kind of storage ({error}); s3:// and gs:// need nothing more, others the "
                         "fsspec package for them") from None
    return PyFileSystem(FSSpecHandler(other)), str(path).rstrip("/")


def files(uri: str) -> dict[str, int]:
    """Return all files below an address, relative to it, with their sizes; nothing where there is nothing.

    Raises
    ------
    FlrayError
        If the storage cannot be reached.
    """
    from pyarrow.fs import FileSelector, FileType

    found, path = filesystem(uri)
    with _reached(uri):
        return {info.path[len(path):].lstrip("/"): info.size for info in found.get_file_info(
            FileSelector(path, allow_not_found=True, recursive=True)) if info.type == FileType.File}


def names(uri: str) -> set[str]:
    """Return what lies directly below an address, files and folders; nothing where there is nothing."""
    from pyarrow.fs import FileSelector

    found, path = filesystem(uri)
    with _reached(uri):
        return {info.base_name for info in found.get_file_info(FileSelector(path, allow_not_found=True))}


def download(uri: str, folder: Path) -> int:
    """Copy everything below an address into a folder; return the number of files."""
    found, path = filesystem(uri)
    names = files(uri)
    for name in names:
        target = folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        with _reached(uri), found.open_input_stream(f"{path}/{name}") as source, target.open("wb") as file:
            shutil.copyfileobj(source, file, 1 << 20)
    return len(names)


def fetch(uri: str, folder: Path) -> bool:
    """Copy everything below an address into a folder that appears whole, once per node; False if nothing is there."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another process of this node may be at it
        if folder.exists():
            return True
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
        try:
            if not download(uri, temporary):
                return False
            temporary.rename(folder)
            return True
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def workplace(uri: str) -> Path:
    """Return the local folder in which what belongs to an address is worked on."""
    _check_keys(uri)
    base = Path(os.environ.get("FLRAY_WORK") or "~/.cache/flray/work").expanduser()
    parts = urlsplit(uri)
    digest = hashlib.sha256(uri.rstrip("/").encode()).hexdigest()[:8]
    return base / f"{parts.netloc}-{digest}"


def _check_keys(uri: str) -> None:
    """Refuse an address with a key in it.

    Raises
    ------
    FlrayError
        Without the key.
    """
    shown = redacted(uri)
    if shown != uri:
        raise FlrayError(f"{shown}: keep keys out of addresses, which are written to files; use the environment or the "
                         "node's role")


class Mirror:
    """Keeps an address equal to a folder.

    Parameters
    ----------
    folder : Path
        Local.
    uri : str
        Where its copy is; nobody else writes there.
    leave : tuple of str
        Names of folders in it that stay here.
    """

    def __init__(self, folder: Path, uri: str, leave: tuple[str, ...] = ()) -> None:
        self._folder, self._uri, self._leave = folder, uri.rstrip("/"), leave
        self._known: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()

    def push(self) -> None:
        """Copy what is new or changed, lists of files (checkpoints' manifests) after the files, and remove the rest."""
        with self._lock:
            found, path = filesystem(self._uri)
            with _reached(self._uri):
                now = dict(self._present())
                manifests = {name for name in now if Path(name).match("round-*.json")}
                for name in sorted(now, key=lambda n: (n in manifests, n)):
                    if self._known.get(name) != now[name] and (name not in manifests or self._whole(name)):
                        self._copy(found, f"{path}/{name}", name, now[name])
                for name in sorted(set(self._known) - set(now)):
                    found.delete_file(f"{path}/{name}")
                    del self._known[name]

    def _present(self) -> Iterator[tuple[str, tuple[int, int]]]:
        for file in self._folder.rglob("*"):
            name = file.relative_to(self._folder)
            if name.parts[0] in self._leave or file.name.startswith("."):
                continue
            with contextlib.suppress(FileNotFoundError):
                if file.is_file():
                    facts = file.stat()
                    yield str(name), (facts.st_size, facts.st_mtime_ns)

    def _whole(self, name: str) -> bool:
        """Tell whether all files a manifest names are there: an older one's may have been removed meanwhile."""
        folder = Path(name).parent
        try:
            named = json.loads((self._folder / name).read_text())["files"]
        except (OSError, ValueError, KeyError):
            return False
        return all(str(folder / part) in self._known for part in named)

    def _copy(self, found: Any, target: str, name: str, facts: tuple[int, int]) -> None:
        with contextlib.suppress(FileNotFoundError):
            data = (self._folder / name).read_bytes()
            with found.open_output_stream(target) as stream:
                stream.write(data)
            self._known[name] = facts


@contextlib.contextmanager
def mirrored(folder: Path, uri: str | None, say: Callable[[str], None], leave: tuple[str, ...] = ()) -> Iterator[None]:
    """Mirror a folder while something goes on in it, and once more at the end; do nothing without an address.

    Storage that is away for a while is told about once, and tried again; at the end it has to be there.
    """
    if uri is None:
        yield
        return
    mirror, ended, away = Mirror(folder, uri, leave), threading.Event(), False

    def work() -> None:
        nonlocal away
        while not ended.wait(EVERY):
            try:
                mirror.push()
                away = False
            except FlrayError as error:
                if not away:
                    say(f"{error}; trying again")
                away = True

    mirror.push()
    thread = threading.Thread(target=work, name="flray-mirror", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        try:
            mirror.push()
        except FlrayError as error:
            say(f"{error}; everything is kept in {folder}")


@contextlib.contextmanager
def _reached(uri: str) -> Iterator[None]:
    """Word what the storage says."""
    try:
        yield
    except OSError as error:
        reason = " ".join(str(error).split())[:300]
        raise FlrayError(f"{uri}: the storage cannot be used ({reason})") from None
