"""Processes, nodes and objects that Ray has lost, and nodes that will soon be gone (a drain)."""

import contextlib
import time
from collections.abc import Iterator

import ray
import ray.exceptions

from flray import ray_private as private
from flray.errors import FlrayError, disk_is_full

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


@contextlib.contextmanager
def unwrapped() -> Iterator[None]:
    """Raise flray's own error of a call, and that of a full disk, without Ray's wrapper and its traceback."""
    try:
        yield
    except ray.exceptions.RayTaskError as error:
        if isinstance(error.cause, FlrayError) or disk_is_full(error.cause):
            raise error.cause from None
        raise


VERDICT_SECONDS = 75.0
"""How long Ray may take, by its defaults, to give up a node that does not answer: five checks of ten
seconds, every three seconds. Until then it says only that an actor is unavailable."""


def node_is_gone(error: BaseException, node: str = "") -> bool:
    """Return whether a call failed because the node of its actor died; then the task is not to blame.

    If Ray does not know yet, this waits for its verdict, `VERDICT_SECONDS` at most.

    Parameters
    ----------
    error : BaseException
        The error of the call.
    node : str
        The id of the actor's node, if it is known. Otherwise this asks Ray, which works only if
        nobody has ended the actor.
    """
    if not isinstance(error, ray.exceptions.ActorUnavailableError):
        return _says_node_died(error)
    end = time.monotonic() + VERDICT_SECONDS
    while True:
        found = {} if node else private.member(private.ACTOR_TABLE)(error.actor_id)
        place = node or found.get("Address", {}).get("NodeID", "")
        if place in {one["NodeID"] for one in ray.nodes() if not one["Alive"]}:
            return True
        if found.get("State") == "DEAD" or time.monotonic() > end:
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


LOOK_SECONDS = 1.0
"""Seconds between two looks; a cloud gives notice of 30 seconds at least."""


class NodeWatch:
    """Knows which nodes Ray drains; asks for them at most once in `LOOK_SECONDS`.

    Attributes
    ----------
    leaving : frozenset of str
        Their ids, as of the last look.
    """

    def __init__(self) -> None:
        self.leaving: frozenset[str] = frozenset()
        self._next = 0.0

    def look(self) -> frozenset[str]:
        """Return the leaving nodes that were not known before."""
        if time.monotonic() < self._next:
            return frozenset()
        before, ask = self.leaving, private.member(private.DRAINING)
        # A look that fails is made again; a Ray that is asked in another way is an error.
        with contextlib.suppress(ray.exceptions.RayError, OSError, RuntimeError):
            self.leaving = frozenset(ask())
        self._next = time.monotonic() + LOOK_SECONDS
        return self.leaving - before

    def leaves(self) -> bool:
        """Return whether the node of this process is drained."""
        self.look()
        return bool(self.leaving) and ray.get_runtime_context().get_node_id() in self.leaving
