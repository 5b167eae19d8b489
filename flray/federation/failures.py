"""Failures of client tasks as data, and the errors that end a federation."""

from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

from flray.errors import MethodError, RunFailedError


@dataclass(frozen=True)
class Failure:
    """A client's turn that did not end well.

    Attributes
    ----------
    what : str
        ``ValueError: text``, or why no answer came.
    kind : {"error", "timeout", "actor_died"}
        Whether its code raised, no answer came in time, or its process died again and again.
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
    """All clients of a round failed or were too late, one by one left out."""


class ServerLostError(RunFailedError):
    """The server actor died, or could not be started."""


class ObjectLostError(RunFailedError):
    """A client's state or reply went with the node that held it; going on from a checkpoint brings it back."""


def error_summary(error: BaseException) -> str:
    """Return the kind of an error and the first line of its text, and what helps where memory was lacking."""
    what = f"{type(error).__name__}: {error}".rstrip(": ").splitlines()[0]
    if isinstance(error, MemoryError | torch.OutOfMemoryError) or (
        isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    ):
        return f"out of memory ({what}); a smaller local.batch_size or fewer resources.actors need less"
    return what


def describe_failure(error: BaseException) -> Failure:
    """Return what went wrong and where: the innermost line outside of installed libraries."""
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
