"""The pool of client actors: started in a trial's or run's bundles, replaced when they die."""

import contextlib
import math
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import ray
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from flray import bits
from flray.config.experiment import Experiment
from flray.devices.identity import GpuIdentity, distinct
from flray.federation.messages import Ref, TaskBlock
from flray.federation.ray_backend.client_actor import ClientActor, Description
from flray.federation.ray_backend.handles import ClientHandle, ObjectRef, PlacementGroup
from flray.federation.ray_backend.losses import ACTOR_DIED_ERRORS, NodeWatch
from flray.federation.worker.resources import thread_count

START_TIMEOUT_S = 60.0
"""Seconds within which a process starts on an available node, even a busy one."""


@dataclass
class PoolWorker:
    """One actor with its queued jobs, oldest first; none until it has started, as its node may never come."""

    actor: ClientHandle
    starting: ObjectRef | None
    number: int
    bundle: int
    node: str = ""
    awaited: bool = False
    waiting: deque["InFlight"] = field(default_factory=deque)


@dataclass
class InFlight:
    """One call in flight: the positions of its blocks, its small results, and references to its large ones."""

    positions: list[int]
    outcome: ObjectRef
    bulk: ObjectRef
    states: list[ObjectRef]


class ActorPool:
    """A fixed number of client actors, each in its bundle; one that dies is replaced.

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
        Placement of the actors, one bundle each.
    first_bundle : int
        Bundle of the first actor.
    samples : ObjectRef of Pooled, optional
        The specification's large arrays, if it was put without them.
    """

    def __init__(
        self,
        spec: ObjectRef,
        config: Experiment,
        actors: int,
        gpus: float,
        group: PlacementGroup | None = None,
        first_bundle: int = 0,
        samples: ObjectRef | None = None,
    ) -> None:
        self._spec, self.config, self._gpus, self._group = spec, config, gpus, group
        self._samples = samples
        self._closed = False
        self.nodes = NodeWatch()
        self._states: Callable[[], Iterable[Ref]] = tuple
        self._warn: Callable[[str], None] = print
        self._pace: dict[tuple[str, str], float] = {}
        self.kinds = {bits.kind()}
        self.gpu_kinds: set[str] = set()
        self.workers: list[PoolWorker] = [
            PoolWorker(*self._start(first_bundle + i), number=i, bundle=first_bundle + i)
            for i in range(actors)
        ]

    def memory(self) -> dict[str, int]:
        """Return the resident bytes of each client actor."""
        return {f"client actor {d['pid']}": d["resident"] for d in self._ask_all("describe")}

    def wait_until_ready(self, seconds: float = 300.0) -> None:
        """Wait once for each actor that is starting, the first time and after a replacement.

        One that dies meanwhile is handled when it is given work. While others are ready, the wait
        for one whose node never comes is limited to `START_TIMEOUT_S`.
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
        return [d["pid"] for d in self._ask_all("describe")]

    def networks(self) -> list[dict[str, int]]:
        """Return for each actor how many instances of each architecture it holds."""
        return self._ask_all("networks")

    def _ask_all(self, method: str, *arguments: object, seconds: float | None = 60) -> list[Any]:
        """Return each actor's answer; a dead one is replaced and gives none."""
        calls = [getattr(worker.actor, method).remote(*arguments) for worker in self.workers]
        answers: list[Any] = []
        for worker, call in zip(self.workers, calls, strict=True):
            try:
                answers.append(ray.get(call, timeout=seconds))
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

    def _start(self, bundle: int) -> tuple[ClientHandle, ObjectRef]:
        """Return a new actor and a reference that is ready once it has started."""
        cpus = self.config.resources.cpus_per_actor
        options: dict[str, object] = {"num_cpus": cpus, "num_gpus": self._gpus, "max_restarts": 0}
        if self._group is not None:
            options["scheduling_strategy"] = PlacementGroupSchedulingStrategy(
                self._group, placement_group_bundle_index=bundle
            )
        actor: ClientHandle = ray.remote(ClientActor).options(**options).remote(*self._made_of())
        return actor, actor.describe.remote()

    def _made_of(self) -> tuple[object, ...]:
        """Return the arguments of a client actor."""
        share = self._gpus if 0 < self._gpus < 1 else 1.0
        return self._spec, thread_count(self.config), self._samples, share

    def reset(self, spec: ObjectRef, config: Experiment, samples: ObjectRef | None = None) -> None:
        """Switch the same actors to another federation; dead ones are replaced.

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
        self._pace = {}
        for worker in self.workers:
            worker.waiting.clear()
        self._ask_all("reset", *self._made_of(), seconds=None)

    def watch_over(self, states: Callable[[], Iterable[Ref]], warn: Callable[[str], None]) -> None:
        """Watch over what must outlast its node; see `flray.federation.messages.Executor.watch_over`."""
        self._states, self._warn = states, warn

    def look_at_nodes(self, replies: Iterable[Ref]) -> None:
        """If Ray says that a node will be gone, copy what only it holds, the clients' states and these replies."""
        if not self.nodes.look():
            return
        copied = self.nodes.copy_here([*self._states(), *replies])
        actors = sum(worker.node in self.nodes.leaving for worker in self.workers)
        if actors or copied:
            self._warn(
                f"a node will soon be gone (Ray drains it): {copied} states and replies were copied "
                f"from it, and its {actors} client actors get no work while there are others"
            )

    def ready_workers(self) -> list[PoolWorker]:
        """Return the workers to give work to: started, and on nodes that stay if there are any such."""
        started = [worker for worker in self.workers if worker.starting is None]
        return [w for w in started if w.node not in self.nodes.leaving] or started

    def note_pace(self, block: TaskBlock, seconds: float) -> None:
        """Record how long a block took, by the kind and stage of its tasks."""
        kind, pace = _kind_of(block), seconds / max(block.cost, 1e-9)
        self._pace[kind] = pace + 0.8 * (self._pace.get(kind, pace) - pace)

    def expected_seconds(self, block: TaskBlock) -> float:
        """Return how long a block is expected to take, by the last of its kind; infinite before the first."""
        return self._pace.get(_kind_of(block), math.inf) * block.cost

    def started(self, worker: PoolWorker, description: Description) -> None:
        """Record that an actor has started, and its description of itself."""
        worker.starting, worker.node = None, description["node"]
        self.kinds.add(description["kind"])
        if description["gpu"] is not None:
            self.gpu_kinds.add(str(sorted(description["gpu"].items())))

    def gpus(self) -> list[GpuIdentity]:
        """Return the kinds of GPU of the actors; waits until they have started."""
        if not self._gpus:
            return []
        self.wait_until_ready()
        return distinct([found["gpu"] for found in self._ask_all("describe")])

    def replace(self, worker: PoolWorker) -> None:
        """Replace a dead actor."""
        with contextlib.suppress(Exception):
            ray.kill(worker.actor)
        worker.actor, worker.starting = self._start(worker.bundle)
        worker.awaited, worker.node = False, ""


def _kind_of(block: TaskBlock) -> tuple[str, str]:
    task = block.jobs[0].client_task
    return task.kind, task.stage.name
