"""The resident pool of Ray client actors: any actor plays any client, and a dead one's turns are played again."""

from __future__ import annotations

import contextlib
import os
import time
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
import ray.exceptions
import torch
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from flray.config import Experiment
from flray.data.types import Pooled
from flray.errors import DataError, FlrayError
from flray.federation.executor import Failure, Handle, Job, LostObjectError, Outcome, Result, Turn
from flray.federation.nodedata import node_samples
from flray.federation.player import Player
from flray.federation.workshop import threads_of
from flray.federation.world import World
from flray.trees import Packed

LOST = (ray.exceptions.RayActorError, ray.exceptions.WorkerCrashedError, ray.exceptions.NodeDiedError)
"""What a call raises when its actor or its node is gone: its turn is played again elsewhere."""

GONE = (ray.exceptions.ObjectLostError, ray.exceptions.ObjectFetchTimedOutError)
"""What asking for an object raises when the only node that held it is gone."""

WENT = "a client's state or reply was lost with the node that held it"

BLOCK = 64
"""Turns among which the longest begins first."""

KEPT = 512 * 2**20
"""Bytes of replies that may wait for those before them."""

INLINE = int(0.9 * int(os.environ.get("RAY_max_direct_call_object_size", 100 * 1024)))  # noqa: SIM112
"""Bytes up to which Ray sends an argument within the call; see `flray.federation.cluster.ray_session`."""


class ClientActor:
    """A process that plays clients' turns one at a time, on its share of the CPUs or of a GPU."""

    def __init__(self, world: World, threads: int, samples: Pooled | None = None) -> None:
        self.reset(world, threads, samples)

    def reset(self, world: World, threads: int, samples: Pooled | None = None) -> None:
        """Play for another federation from now on; the process and its imports stay."""
        cuda = bool(ray.get_runtime_context().get_accelerator_ids().get("GPU")) and torch.cuda.is_available()
        self._lacking = ""
        if world.config.resources.data == "node":
            try:
                samples = node_samples(world.config, world.data.fingerprint)
            except DataError as error:
                self._lacking = str(error)
        if samples is not None:
            world = world.with_samples(samples)
        self._player = Player(world, torch.device("cuda:0" if cuda else "cpu"), threads)

    @ray.method(num_returns=3)  # type: ignore[untyped-decorator]
    def play(self, turn: Turn, common: Packed, private: Packed | None,
             state: Packed | None) -> tuple[Outcome, Packed | None, Packed | None]:
        """Play a turn; see `flray.federation.player.Player.play`."""
        return self._player.play(turn, common, private, state)

    def describe(self) -> dict[str, int]:
        """Return the process id and the resident bytes.

        Raises
        ------
        DataError
            If this node lacks the data.
        """
        import psutil

        if self._lacking:
            raise DataError(self._lacking)
        return {"pid": os.getpid(), "resident": psutil.Process().memory_info().rss}

    def networks(self) -> dict[str, int]:
        """Return how many instances of each architecture this process holds."""
        return self._player.networks()


@dataclass
class _Worker:
    """One actor with the jobs waiting at it, oldest first; none until it has started, for its node may never come."""

    actor: Any
    starting: Any
    number: int
    bundle: int
    waiting: deque[_Call] = field(default_factory=deque)


@dataclass
class _Call:
    """One job under way."""

    position: int
    outcome: Any
    bulk: Any
    state: Any


class RayExecutor:
    """Plays turns on a fixed pool of client actors.

    Parameters
    ----------
    world : ObjectRef of World
        In the object store once; every actor of a node reads its arrays without a copy.
    config : Experiment
        For its resources and faults.
    actors : int
        Size of the pool.
    gpus : float
        GPUs of each actor.
    group : PlacementGroup
        Where the actors live, one bundle each.
    first_bundle : int
        Bundle of the first actor.
    samples : ObjectRef of Pooled, optional
        The world's large arrays, where the world was put without them.
    """

    def __init__(self, world: Any, config: Experiment, actors: int, gpus: float, group: Any = None,
                 first_bundle: int = 0, samples: Any = None) -> None:
        self._world, self._config, self._gpus, self._group = world, config, gpus, group
        self._samples = samples
        self._closed = False
        self._started = False
        self._workers = [_Worker(*self._start(first_bundle + i), number=i, bundle=first_bundle + i)
                         for i in range(actors)]

    def put(self, packed: Packed) -> Handle:
        """Put a packed tree into the object store; a small one travels with each call instead, which is quicker."""
        return packed if packed.data.nbytes <= INLINE else ray.put(packed)

    def fetch(self, handle: Handle) -> Packed:
        """Return a packed tree from the object store, without a copy where it lies on this node."""
        try:
            packed: Packed = handle if isinstance(handle, Packed) else ray.get(handle)
        except GONE as error:
            raise LostObjectError(WENT) from error
        return packed

    def play(self, jobs: Sequence[Job], timeout: float | None = None) -> Iterator[Result]:
        """Play all jobs, longest first; two wait at each actor, so that none idles while its result travels."""
        return _Play(self, jobs, timeout).results()

    def memory(self) -> dict[str, int]:
        """Return the resident bytes of each client actor."""
        described = ray.get([worker.actor.describe.remote() for worker in self._workers], timeout=60)
        return {f"client actor {d['pid']}": d["resident"] for d in described}

    def wait_until_ready(self, seconds: float = 300.0) -> None:
        """Wait once until every actor has started; one that dies meanwhile is dealt with when it is given work."""
        if self._started:
            return
        self._started = True
        ray.wait([worker.actor.describe.remote() for worker in self._workers], num_returns=len(self._workers),
                 timeout=seconds)

    def pids(self) -> list[int]:
        """Return the process ids of the client actors."""
        described = ray.get([worker.actor.describe.remote() for worker in self._workers], timeout=60)
        return [d["pid"] for d in described]

    def networks(self) -> list[dict[str, int]]:
        """Return for each actor how many instances of each architecture it holds."""
        return list(ray.get([worker.actor.networks.remote() for worker in self._workers], timeout=60))

    def close(self) -> None:
        """Stop all actors."""
        if not self._closed:
            self._closed = True
            for worker in self._workers:
                ray.kill(worker.actor)
            self._workers = []

    def _start(self, bundle: int) -> tuple[Any, Any]:
        """Return a new actor and what is ready when it has started."""
        cpus = self._config.resources.cpus_per_actor
        options: dict[str, Any] = {"num_cpus": cpus, "num_gpus": self._gpus, "max_restarts": 0}
        if self._group is not None:
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=bundle)
        actor = ray.remote(ClientActor).options(**options).remote(self._world, self._threads, self._samples)
        return actor, actor.describe.remote()

    @property
    def _threads(self) -> int:
        return threads_of(self._config)

    def reset(self, world: Any, config: Experiment, samples: Any = None) -> None:
        """Play for another federation with the same actors; those that have died are replaced.

        Parameters
        ----------
        world, config, samples
            As in the constructor; the actors' number and shares stay.
        """
        self._world, self._config, self._samples = world, config, samples
        calls = [worker.actor.reset.remote(world, self._threads, samples) for worker in self._workers]
        for worker, call in zip(self._workers, calls, strict=True):
            worker.waiting.clear()
            try:
                ray.get(call)
            except LOST:
                self.replace(worker)

    def replace(self, worker: _Worker) -> None:
        """Put a new actor in a dead one's place."""
        with contextlib.suppress(Exception):
            ray.kill(worker.actor)
        worker.actor, worker.starting = self._start(worker.bundle)


class _Play:
    """One call of `RayExecutor.play`."""

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
        depth = self._executor._config.resources.queued
        workers = [worker for worker in self._executor._workers if worker.starting is None]
        while self._open and workers:
            worker = min(workers, key=lambda w: len(w.waiting))
            position = self._allowed()
            if len(worker.waiting) >= depth or position is None:
                return
            self._open.remove(position)
            self._submit(worker, position)

    def _allowed(self) -> int | None:
        """Return the next job that is not too far ahead; the one waited for always is near enough."""
        depth = self._executor._config.resources.queued + 1
        ahead = max(depth * len(self._executor._workers), min(BLOCK, KEPT // self._largest))
        return next((position for position in self._open if position < self._next + ahead), None)

    def _submit(self, worker: _Worker, position: int) -> None:
        job = self._jobs[position]
        outcome, bulk, state = worker.actor.play.remote(
            job.turn, job.common, job.private, job.state)
        worker.waiting.append(_Call(position, outcome, bulk, state))

    def _advance(self) -> None:
        """Wait for something to end, and take it in."""
        waiting = {call.outcome: (worker, call) for worker in self._executor._workers for call in worker.waiting}
        starting = {worker.starting: worker for worker in self._executor._workers if worker.starting is not None}
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

    def _began(self, worker: _Worker) -> None:
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
            if self._failed_starts > self._executor._config.faults.attempts * len(self._executor._workers):
                raise FlrayError(f"client actors die while they start: {str(error).splitlines()[0]}") from error
            self._executor.replace(worker)
        self._refill()

    def _finish(self, position: int, outcome: Outcome, call: _Call | None, actor: int = 0) -> None:
        failed = call is None or outcome.failure is not None
        self._largest = max(self._largest, outcome.up)
        self._done[position] = Result(
            self._jobs[position].turn, outcome,
            bulk=call.bulk if call is not None and not failed and outcome.entries else None,
            state=call.state if call is not None and not failed and outcome.stateful else None, actor=actor)

    def _lost(self, worker: _Worker, error: Exception) -> None:
        """Replace a dead actor and play its turns again; only the oldest can have been its undoing."""
        calls = list(worker.waiting)
        worker.waiting.clear()
        self._executor.replace(worker)
        self._attempts[calls[0].position] += 1
        for call in reversed(calls):
            if self._attempts[call.position] >= self._executor._config.faults.attempts:
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
        for worker in self._executor._workers:
            if worker.waiting:
                worker.waiting.clear()
                self._executor.replace(worker)

    def _under_way(self, position: int) -> bool:
        return any(call.position == position for worker in self._executor._workers for call in worker.waiting)

    def _abandon(self) -> None:
        """Forget what nobody waits for any more; turns under way end by themselves."""
        self._open.clear()
        for worker in self._executor._workers:
            worker.waiting.clear()
