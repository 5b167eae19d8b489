"""The resident pool of Ray client actors: any actor plays any client, and a dead one's turns are played again."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import ray
import torch
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from flray import bits
from flray.config.experiment import Experiment
from flray.data.types import Pooled
from flray.errors import DataError
from flray.federation.messages import (
    ClientTask,
    ObjectLostError,
    Ref,
    TaskBlock,
    TaskBlockResult,
    TaskInput,
    TaskOutcome,
    TaskResult,
)
from flray.federation.ray_backend.node_cache import node_samples
from flray.federation.ray_backend.process_loss import (
    ACTOR_DIED_ERRORS,
    OBJECT_LOST_ERRORS,
    OBJECT_LOST_MESSAGE,
)
from flray.federation.ray_backend.scheduler import BlockTasks, PoolWorker, SingleTasks
from flray.federation.spec import FederationSpec
from flray.federation.worker.client_runner import ClientRunner
from flray.federation.worker.resources import thread_count
from flray.trees import Packed

MAX_INLINE_ARG_BYTES = int(0.9 * int(os.environ.get("RAY_max_direct_call_object_size", 100 * 1024)))  # noqa: SIM112
"""Bytes up to which Ray sends an argument within the call; see `flray.federation.ray_backend.handle.ray_session`."""

START_TIMEOUT_S = 60.0
"""Seconds in which a process on a node that is there has started, also on a busy one."""


class ClientActor:
    """A process that plays clients' turns one at a time, on its share of the CPUs or of a GPU."""

    def __init__(self, spec: FederationSpec, threads: int, samples: Pooled | None = None) -> None:
        self.reset(spec, threads, samples)

    def reset(self, spec: FederationSpec, threads: int, samples: Pooled | None = None) -> None:
        """Play for another federation from now on; the process and its imports stay."""
        cuda = (
            bool(ray.get_runtime_context().get_accelerator_ids().get("GPU"))
            and torch.cuda.is_available()
        )
        self._lacking = bits.problem(spec.config)
        if spec.config.resources.data == "node":
            try:
                samples = node_samples(spec.config, spec.data.fingerprint)
            except DataError as error:
                self._lacking = str(error)
        if samples is not None:
            spec = spec.with_samples(samples)
        self._runner = ClientRunner(spec, torch.device("cuda:0" if cuda else "cpu"), threads)

    @ray.method(num_returns=3)  # type: ignore[untyped-decorator]
    def run(
        self, client_task: ClientTask, common: Packed, private: Packed | None, state: Packed | None
    ) -> tuple[TaskOutcome, Packed | None, Packed | None]:
        """Play a turn; see `flray.federation.worker.client_runner.ClientRunner.run_tasks`."""
        return self._runner.run(client_task, common, private, state)

    def run_block(self, jobs: Sequence[TaskInput], *objects: Packed) -> list[Any]:
        """Play a block; see `flray.federation.worker.client_runner.ClientRunner.run_block`.

        Parameters
        ----------
        jobs : sequence of Job
            With places in `objects` for handles.
        *objects : Packed
            The messages and states that the jobs name by their place.

        Returns
        -------
        list
            The outcomes with the bytes of the sums (None without sums), the sums, and each job's
            state: objects of their own.
        """
        outcomes, sums, states = self._runner.run_block(
            [
                replace(
                    job,
                    common=objects[job.common],
                    state=None if job.state is None else objects[job.state],
                )
                for job in jobs
            ]
        )
        return [(outcomes, sums.nbytes if sums is not None else None), sums, *states]

    def describe(self) -> dict[str, Any]:
        """Return the process id, the kind of CPU and the resident bytes.

        Raises
        ------
        DataError
            If this node lacks the data, or cannot compute the bits that are asked for.
        """
        import psutil

        if self._lacking:
            raise DataError(self._lacking)
        return {
            "pid": os.getpid(),
            "kind": bits.kind(),
            "resident": psutil.Process().memory_info().rss,
        }

    def networks(self) -> dict[str, int]:
        """Return how many instances of each architecture this process holds."""
        return self._runner.networks()


class RayExecutor:
    """Plays turns on a fixed pool of client actors.

    Parameters
    ----------
    spec : ObjectRef of FederationSpec
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

    def __init__(
        self,
        spec: Any,
        config: Experiment,
        actors: int,
        gpus: float,
        group: Any = None,
        first_bundle: int = 0,
        samples: Any = None,
    ) -> None:
        self._spec, self.config, self._gpus, self._group = spec, config, gpus, group
        self._samples = samples
        self._closed = False
        self.kinds = {bits.kind()}
        self.workers: list[PoolWorker] = [
            PoolWorker(*self._start(first_bundle + i), number=i, bundle=first_bundle + i)
            for i in range(actors)
        ]

    def put(self, packed: Packed) -> Ref:
        """Put a packed tree into the object store; a small one travels with each call instead, which is quicker."""
        return packed if packed.data.nbytes <= MAX_INLINE_ARG_BYTES else ray.put(packed)

    def fetch(self, handle: Ref) -> Packed:
        """Return a packed tree from the object store, without a copy where it lies on this node."""
        try:
            packed: Packed = handle if isinstance(handle, Packed) else ray.get(handle)
        except OBJECT_LOST_ERRORS as error:
            raise ObjectLostError(OBJECT_LOST_MESSAGE) from error
        return packed

    def run_tasks(
        self, jobs: Sequence[TaskInput], timeout: float | None = None, idle: float | None = None
    ) -> Iterator[TaskResult]:
        """Play all jobs, longest first; two wait at each actor, so that none idles while its result travels."""
        return SingleTasks(self, jobs, timeout, idle).results()

    def run_blocks(
        self, blocks: Sequence[TaskBlock], timeout: float | None = None
    ) -> Iterator[TaskBlockResult]:
        """Play all blocks, each on one actor, scheduled as `run_tasks` does."""
        return BlockTasks(self, blocks, timeout).results()

    def memory(self) -> dict[str, int]:
        """Return the resident bytes of each client actor."""
        return {f"client actor {d['pid']}": d["resident"] for d in self._ask("describe")}

    def wait_until_ready(self, seconds: float = 300.0) -> None:
        """Wait once for each actor that has only just been begun, the first time and after it was replaced.

        One that dies meanwhile is dealt with when it is given work. While others are ready, one
        whose node never comes is waited for no longer than a start takes.
        """
        fresh = [
            worker for worker in self.workers if worker.starting is not None and not worker.awaited
        ]
        if not fresh:
            return
        for worker in fresh:
            worker.awaited = True
        some_ready = any(worker.starting is None for worker in self.workers)
        ray.wait(
            [worker.starting for worker in fresh],
            num_returns=len(fresh),
            timeout=min(seconds, START_TIMEOUT_S) if some_ready else seconds,
        )

    def pids(self) -> list[int]:
        """Return the process ids of the client actors."""
        return [d["pid"] for d in self._ask("describe")]

    def networks(self) -> list[dict[str, int]]:
        """Return for each actor how many instances of each architecture it holds."""
        return self._ask("networks")

    def _ask(self, method: str) -> list[Any]:
        """Return what each actor answers; one that is gone is replaced and says nothing."""
        calls = [getattr(worker.actor, method).remote() for worker in self.workers]
        answers: list[Any] = []
        for worker, call in zip(self.workers, calls, strict=True):
            try:
                answers.append(ray.get(call, timeout=60))
            except ACTOR_DIED_ERRORS:
                self.replace(worker)
        return answers

    def close(self) -> None:
        """Stop all actors."""
        if not self._closed:
            self._closed = True
            for worker in self.workers:
                ray.kill(worker.actor)
            self.workers = []

    def _start(self, bundle: int) -> tuple[Any, Any]:
        """Return a new actor and what is ready when it has started."""
        cpus = self.config.resources.cpus_per_actor
        options: dict[str, Any] = {"num_cpus": cpus, "num_gpus": self._gpus, "max_restarts": 0}
        if self._group is not None:
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=bundle
            )
        actor = (
            ray.remote(ClientActor)
            .options(**options)
            .remote(self._spec, self._threads, self._samples)
        )
        return actor, actor.describe.remote()

    @property
    def _threads(self) -> int:
        return thread_count(self.config)

    def reset(self, spec: Any, config: Experiment, samples: Any = None) -> None:
        """Play for another federation with the same actors; those that have died are replaced.

        Parameters
        ----------
        spec : ObjectRef of FederationSpec
            As in the constructor.
        config : Experiment
            As in the constructor; the actors' number and shares stay.
        samples : ObjectRef of Pooled, optional
            As in the constructor.
        """
        self._spec, self.config, self._samples = spec, config, samples
        calls = [worker.actor.reset.remote(spec, self._threads, samples) for worker in self.workers]
        for worker, call in zip(self.workers, calls, strict=True):
            worker.waiting.clear()
            try:
                ray.get(call)
            except ACTOR_DIED_ERRORS:
                self.replace(worker)

    def note(self, described: Mapping[str, Any]) -> None:
        """Take in what an actor that has started says of itself."""
        self.kinds.add(described["kind"])

    def replace(self, worker: PoolWorker) -> None:
        """Put a new actor in a dead one's place."""
        with contextlib.suppress(Exception):
            ray.kill(worker.actor)
        worker.actor, worker.starting = self._start(worker.bundle)
        worker.awaited = False
