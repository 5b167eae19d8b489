"""Errors that Ray raises when a process, a node or an object is lost, for all callers of actors."""

from __future__ import annotations

import ray.exceptions

ACTOR_DIED_ERRORS = (
    ray.exceptions.RayActorError,
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.NodeDiedError,
    ray.exceptions.OutOfMemoryError,
)
"""Errors of a call whose actor or node died. Ray's memory monitor, which ends a process before the node
runs out of memory, has its own error, which is not a `RayActorError`."""

NODE_DIED = "its node has died"
"""What Ray writes of an actor whose node is gone."""

PROCESS_DIED = "its worker process has died"
"""What Ray writes of an actor whose process is gone; pages of advice follow."""

PROBABLE_CAUSE = "out of memory, or a crash in native code?"

OBJECT_LOST_ERRORS = (ray.exceptions.ObjectLostError, ray.exceptions.ObjectFetchTimedOutError)
"""Errors of fetching an object whose only node is gone."""

OBJECT_LOST_MESSAGE = "a client's state or reply was lost with the node that held it"


def node_is_gone(error: BaseException) -> bool:
    """Return whether a call failed because the node of its actor died, which is no fault of what was run."""
    return isinstance(error, ray.exceptions.NodeDiedError) or (
        isinstance(error, ray.exceptions.RayActorError)
        and (error.preempted or NODE_DIED in str(error))
    )


def cause_of_loss(error: BaseException) -> str:
    """Return Ray's reason for the loss of a process, in a few words."""
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        return "OutOfMemoryError: its node had no memory left, and Ray's memory monitor ended it"
    if node_is_gone(error):
        return f"{type(error).__name__}: its node is gone"
    return f"{type(error).__name__}: {PROBABLE_CAUSE}"


def last_line(error: BaseException) -> str:
    """Return the last line of Ray's message, which names the reason."""
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        return cause_of_loss(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
