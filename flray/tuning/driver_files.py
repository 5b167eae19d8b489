"""The sweep's folder for trials on nodes that do not see it: their checkpoints travel over Ray."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import fsspec
import ray
from fsspec.implementations.local import LocalFileSystem
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from flray.errors import FlrayError
from flray.files import border
from flray.files.atomic import write_atomically

PROTOCOL = "flray-driver"


class FileKeeper:
    """The Ray actor on the driver's node that reads and writes files for the others."""

    def call(self, method: str, *arguments: Any, **options: Any) -> Any:
        """Call a method of the local file system."""
        return getattr(LocalFileSystem(), method)(*arguments, **options)

    def read(self, path: str) -> bytes:
        """Return a file's content."""
        return border.read(Path(path))

    def write(self, path: str, content: bytes) -> None:
        """Write a file whole."""
        write_atomically(Path(path), content)


def start_keeper(uid: str) -> Any:
    """Start the actor on this node; it lives as long as what is returned.

    Parameters
    ----------
    uid : str
        The sweep's.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return (
        ray.remote(FileKeeper)
        .options(
            name=uid, num_cpus=0, max_restarts=-1, max_task_retries=-1, scheduling_strategy=here
        )
        .remote()
    )


class DriverFiles(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """The driver's files: read and written in place if this node sees the sweep's folder, else by its keeper.

    Each process decides by itself, because nodes may come while the sweep runs. An address is
    ``flray-driver://UID/PATH``, with the sweep's uid.
    """

    protocol = PROTOCOL
    cachable = False

    def __init__(self, uid: str) -> None:
        super().__init__()
        self._uid = uid
        self._local: bool | None = None

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        text = str(path)
        return urlsplit(text).path if text.startswith(f"{PROTOCOL}://") else text

    @staticmethod
    def _get_kwargs_from_urls(path: str) -> dict[str, str]:
        return {"uid": urlsplit(path).netloc}

    def info(self, path: str, **options: Any) -> Any:
        """Return the description of a file or folder."""
        return self._call("info", path)

    def ls(self, path: str, detail: bool = True, **options: Any) -> Any:
        """Return the direct entries of a folder."""
        return self._call("ls", path, detail=detail)

    def find(self, path: str, *arguments: Any, **options: Any) -> Any:
        """Return all that is in a folder, in one call."""
        return self._call("find", path, *arguments, **options)

    def mkdir(self, path: str, create_parents: bool = True, **options: Any) -> None:
        """Make a folder."""
        self._call("mkdir", path, create_parents=create_parents)

    def rm(self, path: str, recursive: bool = False, maxdepth: int | None = None) -> None:
        """Remove a file or folder."""
        self._call("rm", path, recursive=recursive)

    def _open(self, path: str, mode: str = "rb", **options: Any) -> Any:
        if self._sees(path):
            return Path(path).open(mode)
        if mode == "rb":
            return io.BytesIO(ray.get(self._keeper.read.remote(path)))
        return _Upload(self._keeper, path)

    def _call(self, method: str, path: str, *arguments: Any, **options: Any) -> Any:
        if self._sees(path):
            return getattr(LocalFileSystem(), method)(path, *arguments, **options)
        return ray.get(self._keeper.call.remote(method, path, *arguments, **options))

    @property
    def _keeper(self) -> Any:
        return ray.get_actor(self._uid)

    def _sees(self, path: str) -> bool:
        """Return whether this node sees the sweep's folder, above a path in it."""
        if self._local is None:
            found = (folder / "sweep.json" for folder in Path(path).parents)
            self._local = any(_uid_in(file) == self._uid for file in found if file.is_file())
        return self._local


class _Upload(io.BytesIO):
    """A file that the keeper writes once it is closed."""

    def __init__(self, keeper: Any, path: str) -> None:
        super().__init__()
        self._keeper, self._path = keeper, path

    def close(self) -> None:
        if not self.closed:
            ray.get(self._keeper.write.remote(self._path, self.getvalue()))
        super().close()


def _uid_in(file: Path) -> object:
    try:
        return border.parse_json(border.read(file))["uid"]
    except (OSError, FlrayError, ValueError, LookupError, TypeError):
        return None


fsspec.register_implementation(PROTOCOL, DriverFiles, clobber=True)
