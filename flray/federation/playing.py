"""Gives jobs to actors and takes their results: longest first, two waiting at each, none far ahead of its turn."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import ray
import ray.exceptions

from flray.errors import DataError, FlrayError
from flray.federation.executor import Failure, Job, LostObjectError, Outcome, Result

if TYPE_CHECKING:
    from flray.federation.clients import RayExecutor

LOST = (ray.exceptions.RayActorError, ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError)
"""What a call raises when its actor or its node is gone: its turn is played again elsewhere."""

GONE = (ray.exceptions.ObjectLostError, ray.exceptions.ObjectFetchTimedOutError)
"""What asking for an object raises when the only node that held it is gone."""

WENT = "a client's state or reply was lost with the node that held it"

BLOCK = 64
"""Turns among which the longest begins first."""

KEPT = 512 * 2**20
"""Bytes of replies that may wait for those before them."""


@dataclass
class Worker:
    """One actor with the jobs waiting at it, oldest first; none until it has started, for its node may never come."""

    actor: Any
    starting: Any
    number: int
    bundle: int
    waiting: deque[Call] = field(default_factory=deque)


@dataclass
class Call:
    """One job under way."""

    position: int
    outcome: Any
    bulk: Any
    state: Any


class Play:
    """One call of `flray.federation.clients.RayExecutor.play`.

    Parameters
    ----------
    executor : RayExecutor
        Whose actors play.
    jobs : sequence of Job
        Results come in their order.
    timeout : float or None
        Seconds; what has not ended by then ends as a failure.
    """

    def __init__(self, executor: RayExecutor, jobs: Sequence[Job], timeout: float | None) -> None:
        self._executor, self._jobs, self._timeout = executor, jobs, timeout
        if timeout is not None:
            executor.wait_until_ready()  # a process that only just starts is no slow client
        self._deadline = None if timeout is None else time.monotonic() + timeout
        # Longest first, but within blocks of neighbours and not far ahead of the reply that is to be handed on next:
        # what comes too early has to be kept.
        self._open = deque(sorted(range(len(jobs)), key=lambda i: (i // BLOCK, -jobs[i].turn.cost, i)))
        self._next, self._largest = 0, 1
        self._attempts = [0] * len(jobs)
        self._failed_starts = 0
        self._done: dict[int, Result] = {}

    def results(self) -> Iterator[Result]:
        """Yield every job's result as soon as it and those before it are there."""
        try:
            for position in range(len(self._jobs)):
                self._next = position
                self._refill()
                while position not in self._done:
                    self._advance()
                yield self._done.pop(position)
        finally:
            self._abandon()

    def _refill(self) -> None:
        """Give every actor work up to its queue's length, the least busy first."""
        depth = self._executor.config.resources.queued
        workers = [worker for worker in self._executor.workers if worker.starting is None]
        while self._open and workers:
            worker = min(workers, key=lambda w: len(w.waiting))
            position = self._allowed()
            if len(worker.waiting) >= depth or position is None:
                return
            self._open.remove(position)
            self._submit(worker, position)

    def _allowed(self) -> int | None:
        """Return the next job that is not too far ahead; the one waited for always is near enough."""
        depth = self._executor.config.resources.queued + 1
        ahead = max(depth * len(self._executor.workers), min(BLOCK, KEPT // self._largest))
        return next((position for position in self._open if position < self._next + ahead), None)

    def _submit(self, worker: Worker, position: int) -> None:
        job = self._jobs[position]
        outcome, bulk, state = worker.actor.play.remote(
            job.turn, job.common, job.private, job.state)
        worker.waiting.append(Call(position, outcome, bulk, state))

    def _advance(self) -> None:
        """Wait for something to end, and take it in."""
        waiting = {call.outcome: (worker, call) for worker in self._executor.workers for call in worker.waiting}
        starting = {worker.starting: worker for worker in self._executor.workers if worker.starting is not None}
        left = None if self._deadline is None else max(0.0, self._deadline - time.monotonic())
        ready, _ = ray.wait([*waiting, *starting], num_returns=1, timeout=left)
        if not ready:
            self._time_out()
            return
        if ready[0] in starting:
            self._began(starting[ready[0]])
            return
        worker, call = waiting[ready[0]]
        try:
            outcome = ray.get(call.outcome)
        except LOST as error:
            self._lost(worker, error)
            return
        except GONE as error:
            raise LostObjectError(WENT) from error
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, GONE):
                raise LostObjectError(WENT) from error
            outcome = Outcome(self._jobs[call.position].turn.client,
                              failure=Failure(f"{type(error.cause).__name__}: {error.cause}", trace=str(error)))
        worker.waiting.remove(call)
        self._finish(call.position, outcome, call, worker.number)
        self._refill()

    def _began(self, worker: Worker) -> None:
        """Give an actor that has started its first work; one that died on the way is started once more."""
        try:
            ray.get(worker.starting)
            worker.starting = None
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, DataError):
                raise error.cause from None
            raise
        except LOST as error:
            self._failed_starts += 1
            if self._failed_starts > self._executor.config.faults.attempts * len(self._executor.workers):
                raise FlrayError(f"client actors die while they start: {str(error).splitlines()[0]}") from error
            self._executor.replace(worker)
        self._refill()

    def _finish(self, position: int, outcome: Outcome, call: Call | None, actor: int = 0) -> None:
        failed = call is None or outcome.failure is not None
        self._largest = max(self._largest, outcome.up)
        self._done[position] = Result(
            self._jobs[position].turn, outcome,
            bulk=call.bulk if call is not None and not failed and outcome.entries else None,
            state=call.state if call is not None and not failed and outcome.stateful else None, actor=actor)

    def _lost(self, worker: Worker, error: Exception) -> None:
        """Replace a dead actor and play its turns again; only the oldest can have been its undoing."""
        calls = list(worker.waiting)
        worker.waiting.clear()
        self._executor.replace(worker)
        self._attempts[calls[0].position] += 1
        for call in reversed(calls):
            if self._attempts[call.position] >= self._executor.config.faults.attempts:
                times = self._attempts[call.position]
                failure = Failure(f"its actor died {times} times while playing this turn "
                                  f"({type(error).__name__}: out of memory, or a crash in native code?)",
                                  trace=str(error))
                self._finish(call.position, Outcome(self._jobs[call.position].turn.client, failure=failure), None)
            else:
                self._open.appendleft(call.position)
        self._refill()

    def _time_out(self) -> None:
        """Give up on everything that has not ended; actors in the middle of a turn are replaced."""
        failure = Failure(f"no answer within {self._timeout:g} s")
        for position in range(len(self._jobs)):
            if position not in self._done and (position in self._open or self._under_way(position)):
                self._finish(position, Outcome(self._jobs[position].turn.client, failure=failure), None)
        self._open.clear()
        for worker in self._executor.workers:
            if worker.waiting:
                worker.waiting.clear()
                self._executor.replace(worker)

    def _under_way(self, position: int) -> bool:
        return any(call.position == position for worker in self._executor.workers for call in worker.waiting)

    def _abandon(self) -> None:
        """Forget what nobody waits for any more; turns under way end by themselves."""
        self._open.clear()
        for worker in self._executor.workers:
            worker.waiting.clear()
