"""Schedule client tasks on the actor pool: longest first, bounded queue per actor, bounded reordering.

A call of an actor costs the server more than adding up a small reply. Therefore one call carries
several short tasks; the actor runs them one after another and returns separate replies.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar, Generic, TypeVar

import ray
import ray.exceptions

from flray.errors import DataError, RunFailedError
from flray.federation.failures import Failure, ObjectLostError, error_summary
from flray.federation.messages import (
    Ref,
    SumResult,
    SumTask,
    TaskBlock,
    TaskBlockResult,
    TaskInput,
    TaskOutcome,
    TaskResult,
    failed_block,
    failed_task,
)
from flray.federation.ray_backend.handles import (
    ClientHandle,
    MultipleResults,
    ObjectRef,
    Place,
    ReplyInCall,
)
from flray.federation.ray_backend.losses import (
    ACTOR_DIED_ERRORS,
    LOOK_SECONDS,
    OBJECT_LOST_ERRORS,
    OBJECT_LOST_MESSAGE,
    cause_of_loss,
    last_line,
    node_is_gone,
)
from flray.federation.ray_backend.pool import ActorPool, InFlight, PoolWorker

SCHEDULING_WINDOW = 64
"""Tasks among which the longest starts first."""

MAX_BUFFERED_REPLY_BYTES = 512 * 2**20
"""Bytes of replies that may be buffered until those before them arrive."""

CALL_SECONDS, CALL_TASKS, CALL_BYTES = 0.05, 16, 16 * 2**20
"""Expected seconds of a call, tasks in it and bytes of their replies, beyond which no task is added to it."""


Work = TypeVar("Work", bound=TaskInput | TaskBlock | SumTask)
WorkResult = TypeVar("WorkResult", bound=TaskResult | TaskBlockResult | SumResult)


class TaskScheduler(ABC, Generic[Work, WorkResult]):
    """Runs units of work on a pool of actors, and yields their results in the units' order.

    Attributes
    ----------
    unit : str
        Name of a unit in messages.

    Parameters
    ----------
    pool : ActorPool
        The actors that run them.
    jobs : sequence
        Results come in their order.
    timeout : float or None
        Seconds, not counting those before the first actor has started; units unfinished by then
        fail.
    idle : float, optional
        Seconds without any result, after which running units fail, and queued ones are run.
    """

    unit: ClassVar[str]

    def __init__(
        self,
        pool: ActorPool,
        jobs: Sequence[Work],
        timeout: float | None,
        idle: float | None = None,
    ) -> None:
        self._pool, self._timeout, self._idle = pool, timeout, idle
        self._jobs: Sequence[Work] = jobs
        if timeout is not None or idle is not None:
            pool.wait_until_ready()  # a starting process is not a slow client
        limits = [limit for limit in (timeout, idle) if limit is not None]
        self._deadline = time.monotonic() + min(limits) if limits else None
        # Longest first, but within blocks of neighbours and not far ahead of the reply that is
        # needed next: early replies have to be buffered.
        self._open = deque(
            sorted(range(len(jobs)), key=lambda i: (i // SCHEDULING_WINDOW, -jobs[i].cost, i))
        )
        self._next, self._largest = 0, 1
        self._losses: list[list[tuple[Exception, str]]] = [[] for _ in jobs]  # and on which nodes
        self._failed_starts: list[Exception] = []
        self._alone: set[int] = set()  # after a failed call, whose other units are not to blame
        self._done: dict[int, WorkResult] = {}

    @abstractmethod
    def _call(self, actor: ClientHandle, jobs: Sequence[Work]) -> list[ObjectRef]:
        """Submit units to an actor; return references to small results, large results and client states."""

    @abstractmethod
    def _answers(
        self, jobs: Sequence[Work], outcome: Any, call: InFlight, actor: int
    ) -> list[WorkResult]:
        """Return the results of a finished call's units."""

    def _expected_seconds(self, job: Work) -> float:
        """Return the expected seconds of a unit; infinite if units must not be batched."""
        return math.inf

    @abstractmethod
    def _failure(self, job: Work, failure: Failure) -> WorkResult:
        """Return the result of a failed unit."""

    def results(self) -> Iterator[WorkResult]:
        """Yield every unit's result as soon as it and all before it are done."""
        try:
            for position in range(len(self._jobs)):
                self._next = position
                self._fill_queues()
                while position not in self._done:
                    self._advance()
                yield self._done.pop(position)
        finally:
            self._cancel_all()

    def _fill_queues(self) -> None:
        """Fill every actor's queue, the least busy first."""
        depth = self._pool.config.resources.queued
        workers = self._pool.ready_workers()
        while self._open and workers:
            worker = min(workers, key=lambda w: len(w.waiting))
            if len(worker.waiting) >= depth:
                return
            positions = self._next_call()
            if not positions:
                return
            for position in positions:
                self._open.remove(position)
            outcome, bulk, *states = self._call(worker.actor, [self._jobs[p] for p in positions])
            worker.waiting.append(InFlight(positions, outcome, bulk, states))

    def _next_call(self) -> list[int]:
        """Return the units of the next call: the first within the reordering bound, and short ones behind it."""
        least = (self._pool.config.resources.queued + 1) * len(self._pool.workers)
        window = max(SCHEDULING_WINDOW, 4 * least)
        ahead = max(least, min(window, MAX_BUFFERED_REPLY_BYTES // self._largest))
        # The fewer are left, the shorter the calls: all actors should end at the same time.
        # What limits the time of single units must see them end.
        most = len(self._open) // (4 * len(self._pool.workers)) if self._deadline is None else 1
        most = min(most, CALL_TASKS, CALL_BYTES // self._largest)
        seconds, found = 0.0, list[int]()
        for position in self._open:
            if position < self._next + ahead:
                seconds += self._expected_seconds(self._jobs[position])
                if found and (seconds > CALL_SECONDS or position in self._alone):
                    break
                found.append(position)
                if len(found) >= most or position in self._alone:
                    break
        return found

    def _advance(self) -> None:
        """Wait for an event, and handle it."""
        waiting = {
            call.outcome: (worker, call) for worker in self._pool.workers for call in worker.waiting
        }
        starting = {
            worker.starting: worker for worker in self._pool.workers if worker.starting is not None
        }
        begun = time.monotonic()
        left = math.inf if self._deadline is None or not waiting else self._deadline - begun
        seconds = max(0.0, min(left, LOOK_SECONDS))
        ready, _ = ray.wait([*waiting, *starting], num_returns=1, timeout=seconds)
        self._pool.look_at_nodes(ref for done in self._done.values() for ref in done.references)
        if self._deadline is not None and not waiting:
            self._deadline += time.monotonic() - begun  # no actor could have answered
        elif self._idle is not None and ready:
            self._deadline = time.monotonic() + self._idle
        if not ready:
            if left <= seconds:
                self._time_out()
            return
        if ready[0] in starting:
            self._on_actor_started(starting[ready[0]])
            return
        worker, call = waiting[ready[0]]
        try:
            outcome = ray.get(call.outcome)
        except ACTOR_DIED_ERRORS as error:
            self._on_actor_died(worker, error)
            return
        except OBJECT_LOST_ERRORS as error:
            raise ObjectLostError(OBJECT_LOST_MESSAGE) from error
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, OBJECT_LOST_ERRORS):
                raise ObjectLostError(OBJECT_LOST_MESSAGE) from error
            if len(call.positions) > 1:
                self._run_alone(call)
            else:
                self._fail(call.positions[0], Failure(error_summary(error.cause), trace=str(error)))
        else:
            jobs = [self._jobs[position] for position in call.positions]
            answers = self._answers(jobs, outcome, call, worker.number)
            self._done.update(zip(call.positions, answers, strict=True))
            self._largest = max(self._largest, *(answer.up for answer in answers))
            if worker.node in self._pool.nodes.leaving:
                self._pool.nodes.copy_here(ref for one in answers for ref in one.references)
        worker.waiting.remove(call)
        self._fill_queues()

    def _on_actor_started(self, worker: PoolWorker) -> None:
        """Give a started actor its first work; restart one that died while starting."""
        try:
            self._pool.started(worker, ray.get(worker.starting))
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, DataError):
                raise error.cause from None
            raise
        except ACTOR_DIED_ERRORS as error:
            self._failed_starts.append(error)
            most = self._pool.config.faults.attempts * len(self._pool.workers)
            if len(self._failed_starts) > most:
                self._failed_starts = [e for e in self._failed_starts if not node_is_gone(e)]
            if len(self._failed_starts) > most:
                raise RunFailedError(
                    f"client actors die while they start: {last_line(error)}"
                ) from error
            self._pool.replace(worker)
        self._fill_queues()

    def _run_alone(self, call: InFlight) -> None:
        """Run the units of a failed call once more, each by itself."""
        self._alone.update(call.positions)
        self._open.extendleft(reversed(call.positions))

    def _fail(self, position: int, failure: Failure) -> None:
        self._done[position] = self._failure(self._jobs[position], failure)

    def _on_actor_died(self, worker: PoolWorker, error: Exception) -> None:
        """Replace a dead actor and requeue its tasks.

        Only the oldest task, which was running, is charged an attempt. None is charged if the node was
        lost, or if it is not known which of several units was running. This asks Ray about the node
        only before a last attempt, because the answer may take a while.
        """
        calls, node = list(worker.waiting), worker.node
        worker.waiting.clear()
        self._pool.replace(worker)
        first, *queued = calls
        for call in reversed(queued):
            self._open.extendleft(reversed(call.positions))
        position = first.positions[0]
        if len(first.positions) > 1:
            self._run_alone(first)
        else:
            losses, most = self._losses[position], self._pool.config.faults.attempts
            losses.append((error, node))
            if len(losses) >= most:
                losses[:] = [lost for lost in losses if not node_is_gone(*lost)]
            if len(losses) >= most:
                self._fail(
                    position,
                    Failure(
                        f"its actor died {len(losses)} times while running this {self.unit} "
                        f"({cause_of_loss(error)})",
                        trace=str(error),
                    ),
                )
            else:
                self._open.appendleft(position)
        self._fill_queues()

    def _time_out(self) -> None:
        """Fail all unfinished units, or only the running ones, and replace their actors."""
        if self._timeout is None:
            assert self._idle is not None
            for worker in self._pool.workers:
                if worker.waiting:
                    first, *others = worker.waiting
                    failure = Failure(f"no answer within {self._idle:g} s", "timeout")
                    self._fail(first.positions[0], failure)
                    self._open.extendleft(call.positions[0] for call in reversed(others))
                    worker.waiting.clear()
                    self._pool.replace(worker)
            self._deadline = time.monotonic() + self._idle
            self._fill_queues()
            return
        failure = Failure(f"no answer within {self._timeout:g} s", "timeout")
        for position in range(len(self._jobs)):
            if position not in self._done and (
                position in self._open or self._is_running(position)
            ):
                self._fail(position, failure)
        self._open.clear()
        for worker in self._pool.workers:
            if worker.waiting:
                worker.waiting.clear()
                self._pool.replace(worker)

    def _is_running(self, position: int) -> bool:
        return any(
            position in call.positions for worker in self._pool.workers for call in worker.waiting
        )

    def _cancel_all(self) -> None:
        """Drop all pending units; running tasks end by themselves."""
        self._open.clear()
        for worker in self._pool.workers:
            worker.waiting.clear()


class SingleTasks(TaskScheduler[TaskInput, TaskResult]):
    """Single tasks: one call of `flray.federation.ray_backend.executor.RayExecutor.run_tasks`."""

    unit = "task"

    def _call(self, actor: ClientHandle, jobs: Sequence[TaskInput]) -> list[ObjectRef]:
        return _send(actor.run, jobs)

    def _answers(
        self, jobs: Sequence[TaskInput], outcome: Any, call: InFlight, actor: int
    ) -> list[TaskResult]:
        outcomes: list[TaskOutcome] = outcome
        for job, done in zip(jobs, outcomes, strict=True):
            self._pool.note_pace(job, done.seconds)
        return [
            TaskResult(
                job.client_task,
                done,
                bulk=ReplyInCall(call.bulk, place, len(jobs))
                if done.failure is None and done.entries
                else None,
                state=state if done.failure is None and done.stateful else None,
                actor=actor,
            )
            for place, (job, done, state) in enumerate(
                zip(jobs, outcomes, call.states, strict=True)
            )
        ]

    def _expected_seconds(self, job: TaskInput) -> float:
        return self._pool.expected_seconds(job)

    def _failure(self, job: TaskInput, failure: Failure) -> TaskResult:
        return failed_task(job, failure)


class BlockTasks(TaskScheduler[TaskBlock, TaskBlockResult]):
    """Whole blocks: one call of `flray.federation.ray_backend.executor.RayExecutor.run_blocks`."""

    unit = "block"

    def _call(self, actor: ClientHandle, jobs: Sequence[TaskBlock]) -> list[ObjectRef]:
        (block,) = jobs
        return _send(actor.run_block, block.jobs)

    def _answers(
        self, jobs: Sequence[TaskBlock], outcome: Any, call: InFlight, actor: int
    ) -> list[TaskBlockResult]:
        (job,) = jobs
        outcomes, up = outcome
        results = tuple(
            TaskResult(one.client_task, done, state=state if done.stateful else None, actor=actor)
            for one, done, state in zip(job.jobs, outcomes, call.states, strict=False)
        )
        return [TaskBlockResult(results, None if up is None else call.bulk, up or 0)]

    def _failure(self, job: TaskBlock, failure: Failure) -> TaskBlockResult:
        return failed_block(job, failure)


class SumTasks(TaskScheduler[SumTask, SumResult]):
    """Sums of replies: one call of `flray.federation.ray_backend.executor.RayExecutor.add_up`."""

    unit = "sum"

    def _call(self, actor: ClientHandle, jobs: Sequence[SumTask]) -> list[ObjectRef]:
        (task,) = jobs
        calls: dict[int, tuple[int, ObjectRef]] = {}
        parts: list[tuple[str, float, Ref]] = []
        for architecture, weight, part in task.parts:
            if isinstance(part, ReplyInCall):
                number, _ = calls.setdefault(id(part.call), (len(calls), part.call))
                part = Place(number, part.place)
            parts.append((architecture, weight, part))
        held = [call for _, call in calls.values()]
        return list(actor.add_up.options(num_returns=2).remote(task.entry, parts, *held))

    def _answers(
        self, jobs: Sequence[SumTask], outcome: Any, call: InFlight, actor: int
    ) -> list[SumResult]:
        return [SumResult(call.bulk, outcome)]

    def _failure(self, job: SumTask, failure: Failure) -> SumResult:
        return SumResult(failure=failure)


def _send(method: MultipleResults, jobs: Sequence[TaskInput]) -> list[ObjectRef]:
    """Call an actor's method with jobs; return references to its results, and to each client's state.

    Ray resolves a reference only if it is an argument itself, so the jobs hold indices into these
    arguments. A state is a separate object, because it is sent alone to the actor that runs its
    client next.
    """
    objects: list[Ref] = []
    places: dict[int, int] = {}

    def place(handle: Ref) -> int | None:
        if handle is None:
            return None
        if id(handle) not in places:
            places[id(handle)] = len(objects)
            objects.append(handle)
        return places[id(handle)]

    placed = [replace(one, common=place(one.common), state=place(one.state)) for one in jobs]
    return list(method.options(num_returns=2 + len(placed)).remote(placed, *objects))
