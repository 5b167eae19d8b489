"""The executor on Ray: client tasks on a pool of client actors, any client on any actor.

Longest first, with a bounded queue for each actor and bounded reordering. A call of an actor costs
the server more than adding up a small reply. Therefore one call carries several short tasks; the
actor runs them one after another and returns separate replies.
"""

import math
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice, product
from typing import Any

import ray
import ray.exceptions

from flray.errors import RunFailedError
from flray.federation.messages import (
    Executor,
    Failure,
    ObjectLostError,
    Ref,
    TaskBlock,
    TaskBlockResult,
    error_summary,
)
from flray.federation.ray_backend import losses
from flray.federation.ray_backend.pool import (
    ActorPool,
    InFlight,
    ObjectRef,
    Place,
    PoolWorker,
    ReplyInCall,
)
from flray.trees import Packed

MAX_INLINE_ARG_BYTES = int(0.9 * int(os.environ.get("RAY_max_direct_call_object_size", 100 * 1024)))  # noqa: SIM112
"""Bytes up to which Ray sends an argument within the call; see `flray.ray_session.ray_session`."""

SCHEDULING_WINDOW = 64
"""Tasks among which the longest starts first."""

MAX_BUFFERED_REPLY_BYTES = 512 * 2**20
"""Bytes of replies that may be buffered until those before them arrive."""

CALL_SECONDS, CALL_TASKS, CALL_BYTES = 0.05, 16, 16 * 2**20
"""Expected seconds of a call, tasks in it and bytes of their replies, beyond which no task is added to it."""


class RayExecutor(ActorPool, Executor):
    """Runs client tasks on the pool; a dead actor's tasks are run again."""

    _last_call: tuple[ObjectRef | None, list[Packed]] = (None, [])

    def put(self, packed: Packed) -> Ref:
        """Put a packed tree into the object store; a small one is sent with each call instead, which is quicker."""
        return packed if packed.data.nbytes <= MAX_INLINE_ARG_BYTES else ray.put(packed)

    def fetch(self, handle: Ref) -> Packed:
        """Return a packed tree from the object store, without a copy if it is on this node."""
        if isinstance(handle, ReplyInCall):
            return self._replies(handle)[handle.place]
        if isinstance(handle, Packed):
            return handle
        packed: Packed = self._get(handle)
        return packed

    def _replies(self, handle: ReplyInCall) -> list[Packed]:
        """Return the replies of a call, and keep those of the last call until the next one is fetched."""
        call, replies = self._last_call
        if call is not handle.call:
            replies = self._get(handle.call)
            self._last_call = (handle.call, replies) if handle.number > 1 else (None, [])
        return replies

    def _get(self, reference: ObjectRef) -> Any:
        try:
            return ray.get(reference)
        except losses.OBJECT_LOST_ERRORS as error:
            raise ObjectLostError(losses.OBJECT_LOST_MESSAGE) from error

    def run_blocks(
        self, blocks: Sequence[TaskBlock], timeout: float | None = None, idle: float | None = None
    ) -> Iterator[TaskBlockResult]:
        """Run all blocks, longest first; two calls queue at each actor, so that none idles between blocks."""
        self._last_call = (None, [])
        return TaskScheduler(self, blocks, timeout, idle).results()


class TaskScheduler:
    """Runs blocks of tasks on a pool of actors, and yields their results in the blocks' order.

    Parameters
    ----------
    pool : ActorPool
        The actors that run them.
    blocks : sequence of TaskBlock
        Results come in their order.
    timeout : float or None
        Seconds, not counting those before the first actor has started; blocks unfinished by then
        fail.
    idle : float, optional
        Seconds without any result, after which running blocks fail, and queued ones are run.
    """

    def __init__(
        self,
        pool: ActorPool,
        blocks: Sequence[TaskBlock],
        timeout: float | None = None,
        idle: float | None = None,
    ) -> None:
        self._pool, self._blocks, self._timeout, self._idle = pool, blocks, timeout, idle
        if timeout is not None or idle is not None:
            pool.wait_until_ready()  # a starting process is not a slow client
        limits = [limit for limit in (timeout, idle) if limit is not None]
        self._deadline = time.monotonic() + min(limits) if limits else None
        # Longest first, but within neighbours and not far ahead of the reply that is needed next:
        # early replies have to be buffered.
        self._open = deque(
            sorted(range(len(blocks)), key=lambda i: (i // SCHEDULING_WINDOW, -blocks[i].cost, i))
        )
        self._next, self._largest = 0, 1
        self._losses: list[list[tuple[Exception, str]]] = [[] for _ in blocks]  # and on which nodes
        self._failed_starts: list[Exception] = []
        self._alone: set[int] = set()  # after a failed call, whose other blocks are not to blame
        self._done: dict[int, TaskBlockResult] = {}
        self._bounded = True  # whether queues have room that the next yielded result may fill

    def results(self) -> Iterator[TaskBlockResult]:
        """Yield every block's result as soon as it and all before it are done."""
        try:
            for position in range(len(self._blocks)):
                self._next = position
                if self._bounded:
                    self._fill_queues()
                while position not in self._done:
                    self._advance()
                yield self._done.pop(position)
        finally:  # what is left is dropped; running tasks end by themselves
            for worker in self._pool.workers:
                worker.waiting.clear()

    def _fill_queues(self) -> None:
        """Fill every actor's queue, the least busy first."""
        depth, self._bounded = self._pool.config.resources.queued, False
        for length, worker in product(range(depth), self._pool.ready_workers()):
            if not self._open or len(worker.waiting) > length:
                continue
            positions = self._next_call()
            if not positions:
                self._bounded = True
                return
            for position in positions:
                self._open.remove(position)
            outcome, bulk, *states = _send(worker.actor, [self._blocks[p] for p in positions])
            worker.waiting.append(InFlight(positions, outcome, bulk, states))

    def _next_call(self) -> list[int]:
        """Return the blocks of the next call: the first within the reordering bound, and short ones behind it."""
        least = (self._pool.config.resources.queued + 1) * len(self._pool.workers)
        window = max(SCHEDULING_WINDOW, 4 * least)
        ahead = max(least, min(window, MAX_BUFFERED_REPLY_BYTES // self._largest))
        # The fewer are left, the shorter the calls: all actors should end at the same time.
        # What limits the time of single blocks must see them end.
        most = len(self._open) // (4 * len(self._pool.workers)) if self._deadline is None else 1
        most = min(most, CALL_TASKS, CALL_BYTES // self._largest)
        seconds, found = 0.0, list[int]()
        for position in self._open:
            if position < self._next + ahead:
                seconds += self._pool.expected_seconds(self._blocks[position])
                if found and (seconds > CALL_SECONDS or position in self._alone):
                    break
                found.append(position)
                if len(found) >= most or position in self._alone:
                    break
        return found

    def _advance(self) -> None:
        """Wait for an event, and handle all that have happened."""
        waiting = {
            call.outcome: (worker, call) for worker in self._pool.workers for call in worker.waiting
        }
        starting = {
            worker.starting: worker for worker in self._pool.workers if worker.starting is not None
        }
        begun, awaited = time.monotonic(), [*waiting, *starting]
        left = math.inf if self._deadline is None or not waiting else self._deadline - begun
        seconds = max(0.0, min(left, losses.LOOK_SECONDS))
        # Each look goes over all actors: one for every result would be quadratic in them.
        ready, _ = ray.wait(awaited, num_returns=max(1, len(awaited)), timeout=0)
        if not ready:
            ready, _ = ray.wait(awaited, num_returns=1, timeout=seconds)
        self._pool.look_at_nodes(ref for done in self._done.values() for ref in done.references)
        if self._deadline is not None and not waiting:
            self._deadline += time.monotonic() - begun  # no actor could have answered
        elif self._idle is not None and ready:
            self._deadline = time.monotonic() + self._idle
        if not ready and left <= seconds:
            self._time_out()
        for reference in ready:
            if reference in starting:
                self._on_actor_started(starting[reference])
            elif waiting[reference][1] in waiting[reference][0].waiting:  # its actor is not dead
                self._receive(*waiting[reference])
        self._fill_queues()

    def _receive(self, worker: PoolWorker, call: InFlight) -> None:
        """Take a finished call's results, or handle its failure."""
        try:
            outcome = ray.get(call.outcome)
        except losses.ACTOR_DIED_ERRORS as error:
            self._on_actor_died(worker, error)
            return
        except losses.OBJECT_LOST_ERRORS as error:
            raise ObjectLostError(losses.OBJECT_LOST_MESSAGE) from error
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, losses.OBJECT_LOST_ERRORS):
                raise ObjectLostError(losses.OBJECT_LOST_MESSAGE) from error
            if len(call.positions) > 1:
                self._run_alone(call)
            else:
                self._fail(call.positions[0], Failure(error_summary(error.cause), trace=str(error)))
        else:
            answers = self._answers(call, outcome, worker.number)
            self._done.update(zip(call.positions, answers, strict=True))
            self._largest = max(self._largest, *(answer.up for answer in answers))
            if worker.node in self._pool.nodes.leaving:
                self._pool.copy_here(ref for one in answers for ref in one.references)
        worker.waiting.remove(call)

    def _answers(self, call: InFlight, outcome: Any, actor: int) -> list[TaskBlockResult]:
        """Return the results of a finished call's blocks."""
        answers, states, number = list[TaskBlockResult](), iter(call.states), len(call.positions)
        for place, (position, (outcomes, up)) in enumerate(
            zip(call.positions, outcome, strict=True)
        ):
            block = self._blocks[position]
            self._pool.note_pace(block, sum(one.seconds for one in outcomes))
            bulk = None if up is None else ReplyInCall(call.bulk, place, number)
            of_block = list(islice(states, len(block.jobs)))
            answers.append(
                TaskBlockResult.of(block, outcomes, bulk, of_block, up=up or 0, actor=actor)
            )
        return answers

    def _on_actor_started(self, worker: PoolWorker) -> None:
        """Record a started actor; restart one that died while starting."""
        try:
            with losses.unwrapped():
                self._pool.started(worker, ray.get(worker.starting))
        except losses.ACTOR_DIED_ERRORS as error:
            self._failed_starts.append(error)
            most = self._pool.config.faults.attempts * len(self._pool.workers)
            if len(self._failed_starts) > most:
                self._failed_starts = [e for e in self._failed_starts if not losses.node_is_gone(e)]
            if len(self._failed_starts) > most:
                raise RunFailedError(
                    f"client actors die while they start: {losses.last_line(error)}"
                ) from error
            self._pool.replace(worker)

    def _put_back(self, *calls: InFlight) -> None:
        """Run the blocks of calls once more, before all others."""
        for call in reversed(calls):
            self._open.extendleft(reversed(call.positions))

    def _run_alone(self, call: InFlight) -> None:
        """Run the blocks of a failed call once more, each by itself."""
        self._alone.update(call.positions)
        self._put_back(call)

    def _fail(self, position: int, failure: Failure) -> None:
        self._done[position] = TaskBlockResult.failed(self._blocks[position], failure)

    def _on_actor_died(self, worker: PoolWorker, error: Exception) -> None:
        """Replace a dead actor and requeue its tasks.

        Only the oldest task, which was running, is charged an attempt. None is charged if the node was
        lost, or if it is not known which of several blocks was running. This asks Ray about the node
        only before a last attempt, because the answer may take a while.
        """
        (first, *queued), node = worker.waiting, worker.node
        self._pool.replace(worker)
        self._put_back(*queued)
        position = first.positions[0]
        lost, most = self._losses[position], self._pool.config.faults.attempts
        if len(first.positions) > 1:
            self._run_alone(first)
            return
        lost.append((error, node))
        if len(lost) >= most:
            lost[:] = [one for one in lost if not losses.node_is_gone(*one)]
        if len(lost) >= most:
            unit = "block" if self._blocks[position].summed else "task"
            what = f"its actor died {len(lost)} times while running this {unit}"
            self._fail(
                position, Failure(f"{what} ({losses.cause_of_loss(error)})", trace=str(error))
            )
        else:
            self._put_back(first)

    def _time_out(self) -> None:
        """Fail all unfinished blocks, or only the running ones, and replace their actors."""
        limit = self._idle if self._timeout is None else self._timeout
        failure = Failure(f"no answer within {limit:g} s", "timeout")
        for worker in self._pool.workers:
            if worker.waiting:
                first, *queued = worker.waiting
                self._fail(first.positions[0], failure)
                self._put_back(*queued)
                self._pool.replace(worker)
        if self._timeout is not None:
            while self._open:
                self._fail(self._open.popleft(), failure)
        elif self._idle is not None:
            self._deadline = time.monotonic() + self._idle


def _send(actor: Any, blocks: Sequence[TaskBlock]) -> list[ObjectRef]:
    """Call an actor with blocks; return references to its results, and to each task's state.

    Ray resolves a reference only if it is an argument itself, so the tasks hold their places among
    these arguments. A state is a separate object, because it is sent alone to the actor that runs
    its client next.
    """
    objects: list[Ref] = []
    places: dict[int, int] = {}

    def place(handle: Ref) -> Place | None:
        if handle is None:
            return None
        whole, index = (
            (handle.call, handle.place) if isinstance(handle, ReplyInCall) else (handle, None)
        )
        if id(whole) not in places:
            places[id(whole)] = len(objects)
            objects.append(whole)
        return Place(places[id(whole)], index)

    placed = [block.with_references(place) for block in blocks]
    states = sum(len(block.jobs) for block in blocks)
    return list(actor.run.options(num_returns=2 + states).remote(placed, *objects))
