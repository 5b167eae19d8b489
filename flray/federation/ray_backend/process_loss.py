"""Errors that Ray raises when a process, a node or an object is lost, for all callers of actors."""

from __future__ import annotations

import time

import ray.exceptions

from flray.federation.ray_backend.cluster_state import lost_nodes, node_of

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


VERDICT_SECONDS = 75.0
"""How long Ray may take, by its defaults, to give up a node that does not answer: five checks of ten
seconds, every three seconds. Until then it says only that an actor is unavailable."""


def node_is_gone(error: BaseException, node: str = "") -> bool:
    """Return whether a call failed because the node of its actor died, which is no fault of what was run.

    If Ray does not know yet, this waits for its verdict, `VERDICT_SECONDS` at most.

    Parameters
    ----------
    error : BaseException
        What the call raised.
    node : str
        The id of the actor's node, if it is known. Otherwise Ray is asked, which must not have been
        told to end the actor.
    """
    if not isinstance(error, ray.exceptions.ActorUnavailableError):
        return _says_node_died(error)
    end = time.monotonic() + VERDICT_SECONDS
    while True:
        place, dead = (node, False) if node else node_of(error.actor_id)
        if place in lost_nodes():
            return True
        if dead or time.monotonic() > end:
            return False
        time.sleep(0.2)


def _says_node_died(error: BaseException) -> bool:
    return isinstance(error, ray.exceptions.NodeDiedError) or (
        isinstance(error, ray.exceptions.RayActorError)
        and (error.preempted or NODE_DIED in str(error))
    )


def cause_of_loss(error: BaseException) -> str:
    """Return Ray's reason for the loss of a process, in a few words."""
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        return "OutOfMemoryError: its node had no memory left, and Ray's memory monitor ended it"
    if _says_node_died(error):
        return f"{type(error).__name__}: its node is gone"
    return f"{type(error).__name__}: {PROBABLE_CAUSE}"


def last_line(error: BaseException) -> str:
    """Return the last line of Ray's message, which names the reason."""
    if isinstance(error, ray.exceptions.OutOfMemoryError):
        return cause_of_loss(error)
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__
