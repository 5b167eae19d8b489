"""Failures of client tasks as data, the errors that end a federation, and those of a method's server hooks."""

import contextlib
import sys
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Literal, TypeVar

import torch

from flray.errors import FlrayError, MethodError, RunFailedError, disk_is_full, memory_is_short

# The second has a name of its own since torch 2.8; before, it is any RuntimeError.
MACHINE_ERRORS: tuple[type[Exception], ...] = (
    torch.OutOfMemoryError,
    getattr(torch, "AcceleratorError", torch.OutOfMemoryError),
)
"""Errors of a device, and not of the client whose task met them; after the second none of its tasks succeeds."""


@dataclass(frozen=True)
class Failure:
    """A client task that failed.

    Attributes
    ----------
    what : str
        ``ValueError: text``, or why no result arrived.
    kind : {"error", "timeout", "actor_died"}
        Its code raised, no result arrived in time, or its process died repeatedly.
    where : str
        File and line; empty where unknown.
    trace : str
        The whole traceback.
    """

    what: str
    kind: Literal["error", "timeout", "actor_died"] = "error"
    where: str = ""
    trace: str = ""

    def __str__(self) -> str:
        return f"{self.what} at {self.where}" if self.where else self.what


class ClientError(MethodError):
    """A client's own code raised; the first line names client, round, exception, file and line."""


class NobodyAnsweredError(RunFailedError):
    """All clients of a round failed or timed out."""


class ServerLostError(RunFailedError):
    """The server actor died, or could not be started."""


class ObjectLostError(RunFailedError):
    """A client's state or reply was lost with its node; resuming from a checkpoint recovers it."""


def error_summary(error: BaseException) -> str:
    """Return an error's type and first line, and advice if memory ran out."""
    what = f"{type(error).__name__}: {error}".rstrip(": ").splitlines()[0]
    if isinstance(error, torch.OutOfMemoryError):
        return (
            f"out of memory ({what}); a smaller local.batch_size needs less, and with a larger "
            "resources.gpus_per_actor fewer share a GPU"
        )
    if memory_is_short(error):
        return f"out of memory ({what}); a smaller local.batch_size or fewer resources.actors need less"
    return what


def describe_failure(error: BaseException) -> Failure:
    """Return an error as a failure, located at the innermost line outside installed libraries."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [
        f
        for f in frames
        if "site-packages" not in f.filename
        and Path(f.filename).name != "client_runner.py"
        and not f.filename.startswith(sys.base_prefix)
    ]
    frame = (own or list(frames))[-1] if frames else None
    return Failure(
        what=error_summary(error),
        where=f"{frame.filename}:{frame.lineno}" if frame else "",
        trace="".join(traceback.format_exception(error)),
    )


Item = TypeVar("Item")


@contextlib.contextmanager
def method_hook(method: str, name: str, round_: int) -> Iterator[None]:
    """Run a hook of a method at the server.

    Parameters
    ----------
    method : str
        The registered name.
    name : str
        The hook's.
    round_ : int
        The round, from 1.

    Raises
    ------
    MethodError
        The first line names method, round, hook, exception, file and line; the traceback follows.
        An error of the machine is its cause.
    """
    try:
        yield
    except FlrayError:
        raise
    except Exception as error:
        if disk_is_full(error) or _of_ray(error):
            raise  # while the hook waited for client replies
        failure = describe_failure(error)
        names = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        # The default of `aggregate` calls `apply`, which the method may have as its only hook.
        if name == "aggregate" and ("aggregate", "apply") in pairwise(names):
            name = "apply"
        line = f"{method} at the server, round {round_}, {name}: {failure}"
        machine = error if isinstance(error, MACHINE_ERRORS) else None
        raise MethodError(f"{line}\n{failure.trace}".rstrip()) from machine


def iterate_hook(items: Iterable[Item], method: str, name: str, round_: int) -> Iterator[Item]:
    """Yield a hook's items; see `method_hook`."""
    left = iter(items)
    while True:
        with method_hook(method, name, round_):
            try:
                item = next(left)
            except StopIteration:
                return
        yield item


def _of_ray(error: BaseException) -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and isinstance(error, ray.exceptions.RayError)
