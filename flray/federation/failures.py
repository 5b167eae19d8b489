"""Failures of client tasks as data, and the errors that end a federation."""

from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from flray.errors import MethodError, RunFailedError, memory_is_short

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
