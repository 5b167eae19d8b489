"""What Ray raises when a process, a node or an object is gone: one definition for everybody who calls actors."""

from __future__ import annotations

import ray.exceptions

ACTOR_DIED_ERRORS = (
    ray.exceptions.RayActorError,
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.NodeDiedError,
    ray.exceptions.OutOfMemoryError,
)
"""What a call raises when its actor or its node is gone. Ray's memory monitor, which ends a process before the node has
no memory left, has an error of its own, which is no `RayActorError`."""

OBJECT_LOST_ERRORS = (ray.exceptions.ObjectLostError, ray.exceptions.ObjectFetchTimedOutError)
"""What asking for an object raises when the only node that held it is gone."""

OBJECT_LOST_MESSAGE = "a client's state or reply was lost with the node that held it"


def cause_of_loss(error: BaseException) -> str:
    """Return in a few words why a process is gone, as far as Ray knows."""
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        return "OutOfMemoryError: its node had no memory left, and Ray's memory monitor ended it"
    if isinstance(error, ray.exceptions.NodeDiedError):
        return "NodeDiedError: its node is gone"
    return f"{type(error).__name__}: out of memory, or a crash in native code?"


def last_line(error: BaseException) -> str:
    """Return in one line what Ray says of a loss: of its many the last one names the reason."""
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        return cause_of_loss(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
