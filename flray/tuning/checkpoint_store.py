"""Checkpoints of a sweep's trials: in its folder or bucket, or over Ray from nodes that do not see the folder."""

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from flray.errors import FlrayError
from flray.files import read, storage, write_atomically
from flray.records import directory


class Keeper:
    """The Ray actor on the driver's node that reads and writes files for the others."""

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function on the driver's node."""
        return function(*arguments)


def start_keeper(uid: str) -> Any:
    """Start the actor on this node; it lives as long as what is returned.

    Parameters
    ----------
    uid : str
        The sweep's.
    """
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    return (
        ray.remote(Keeper)
        .options(
            name=uid, num_cpus=0, max_restarts=-1, max_task_retries=-1, scheduling_strategy=here
        )
        .remote()
    )


@dataclass(frozen=True)
class CheckpointStore:
    """The checkpoints of a sweep's trials, as a trial reaches them.

    Attributes
    ----------
    uri : str
        A folder in the sweep's folder, or an address in object storage.
    uid : str
        The sweep's, after which its `Keeper` is named; empty if every node sees the folder.
    """

    uri: str
    uid: str = ""

    def of(self, trial: str) -> list[directory.CheckpointRef]:
        """Return a trial's checkpoints, newest first; some may be incomplete after a kill."""
        found: list[directory.CheckpointRef] = self._call(directory.checkpoints, self.uri, trial)
        return found

    @contextlib.contextmanager
    def read(self, stored: directory.CheckpointRef) -> Iterator[Path]:
        """Yield a local folder with a checkpoint's content."""
        if not self._is_far:
            with storage.local_folder(stored.uri) as folder:
                yield folder
            return
        with tempfile.TemporaryDirectory() as name:
            for file in self._call(storage.files, stored.uri):
                data = self._call(read, Path(stored.uri) / file)
                write_atomically(Path(name) / file, data)
            yield Path(name)

    @contextlib.contextmanager
    def write(self, trial: str, round_: int) -> Iterator[Path]:
        """Yield a local folder to write the checkpoint of a trial's round into; it is stored at the end.

        Raises
        ------
        OSError
            If it cannot be stored.
        """
        uri = directory.checkpoint_uri(self.uri, trial, round_)
        if not self._is_far and not storage.is_remote(uri):
            yield Path(uri)
            return
        with tempfile.TemporaryDirectory() as name:
            yield Path(name)
            try:
                for path in directory.in_order(Path(name)):
                    self._call(storage.write, f"{uri}/{path.name}", read(path))
            except FlrayError as error:  # for a moment, perhaps
                raise OSError(str(error)) from None

    def remove(self, trial: str, round_: int) -> None:
        """Remove a checkpoint that was written."""
        self._call(storage.remove_folder, directory.checkpoint_uri(self.uri, trial, round_))

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        if not self._is_far:
            return function(*arguments)
        return ray.get(ray.get_actor(self.uid).call.remote(function, *arguments))

    @cached_property
    def _is_far(self) -> bool:
        """Whether this node does not see the sweep's folder; nodes may come while the sweep runs."""
        if not self.uid:
            return False
        with contextlib.suppress(FlrayError, OSError):
            return str(directory.read(Path(self.uri).parent)["uid"]) != self.uid
        return True
