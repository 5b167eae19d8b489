"""The client actors: processes that run client tasks, each on its share of CPUs or of a GPU, and the pool of them.

They are started in a trial's or run's bundles, and replaced when they die.
"""

import contextlib
import math
import os
import socket
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypedDict

import numpy as np
import ray
import torch
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from flray import bits
from flray import ray_private as private
from flray.config.experiment import Experiment
from flray.data.loading import load_chosen
from flray.data.sources.cache import data_root, decoded
from flray.data.types import Arrays, Pooled
from flray.devices import GpuIdentity, distinct, gpu_identity
from flray.errors import DataError, FlrayError
from flray.federation import FederationSpec
from flray.federation.messages import Ref, TaskBlock
from flray.federation.ray_backend.losses import ACTOR_DIED_ERRORS, NodeWatch, unwrapped
from flray.federation.worker.client_runner import ClientRunner

ObjectRef = object
"""A reference to an object in Ray's store; Ray has no types."""


class ReplyInCall(NamedTuple):
    """A reference to one reply among those of a call."""

    call: ObjectRef
    place: int
    number: int


class Place(NamedTuple):
    """The place of an object among the arguments of a call; `reply` finds one in a list of them."""

    argument: int
    reply: int | None


def node_samples(config: Experiment, fingerprint: str) -> Pooled:
    """Return a data set's samples from this node's disk, mapped into memory: one copy per node.

    The first one on a node loads the data set (from ``$FLRAY_DATA``: the node's folder, one that
    all nodes see, or object storage) and writes the samples next to it as one file.

    Parameters
    ----------
    config : Experiment
        Names the data set.
    fingerprint : str
        The expected fingerprint: the driver's.

    Raises
    ------
    DataError
        Naming the node, if they are missing there or differ.
    """
    folder = data_root() / "pooled" / socket.gethostname() / fingerprint[:32]
    try:
        mapped = ("x", "y", "public")
        arrays = decoded(folder, lambda _: _pooled(config, fingerprint), mapped, trusted=True)
    except FlrayError as error:  # such as a data set of a plug-in, which is not registered here
        raise DataError(
            f"node {socket.gethostname()}: {error}; or let the head hand the data out (resources.data=head)"
        ) from None
    except OSError as error:
        raise DataError(
            f"node {socket.gethostname()}: {data_root()} cannot be used ({error.strerror}); set "
            "FLRAY_DATA there to a folder that can be written"
        ) from None
    x = arrays["x"]
    return Pooled(np.moveaxis(x, -1, 1) if x.ndim == 4 else x, arrays["y"], arrays.get("public"))


def _pooled(config: Experiment, fingerprint: str) -> Arrays:
    """Return a data set's samples, images with their channels last."""
    name = config.data.name
    dataset = load_chosen(name, config.data.options, config.public, config.subset)
    if dataset.fingerprint != fingerprint:
        raise DataError(
            f"data set {name} differs from the head's (fingerprint {dataset.fingerprint[:12]}, "
            f"there {fingerprint[:12]}); bring the same there"
        )
    pooled = Pooled.of(dataset)
    x = np.moveaxis(pooled.x, 1, -1) if pooled.x.ndim == 4 else pooled.x
    public = {} if pooled.public is None else {"public": pooled.public}
    return {"x": np.ascontiguousarray(x), "y": pooled.y, **public}


FAKE_GPUS = "FLRAY_FAKE_GPUS"
"""Environment variable; 1: GPUs that Ray grants may be missing, as in tests, and the CPU stands for them."""


def granted_device() -> torch.device:
    """Return the GPU that Ray has granted to this process, or the CPU if it granted none.

    Raises
    ------
    DataError
        If torch sees no GPU where Ray granted one: it would be computed on the CPU without a word.
    """
    # Asked outside of a session, Ray would start one, or join any that it finds.
    if not ray.is_initialized() or not ray.get_runtime_context().get_accelerator_ids().get("GPU"):
        return torch.device("cpu")
    if torch.cuda.is_available():
        return torch.device("cuda:0")
    if os.environ.get(FAKE_GPUS) == "1":
        return torch.device("cpu")
    raise DataError(
        f"Ray has given this process a GPU, and torch {torch.__version__} sees none: install a build "
        "of torch for its CUDA driver on every node, or set resources.gpus_per_actor=0"
    )


class Description(TypedDict):
    """A client actor's description of itself after its start."""

    node: str
    kind: str
    gpu: GpuIdentity | None


class ClientActor:
    """A process that runs client tasks one at a time, on its share of the CPUs or of a GPU."""

    _title = ""  # Ray asks for it also where the constructor fails

    def __init__(self, *arguments: Any) -> None:
        self.reset(*arguments)

    def __repr__(self) -> str:
        """Return the name that Ray's dashboard and log lines show."""
        return f"flray {self._title}: clients"

    def reset(
        self, spec: FederationSpec, samples: Pooled | None = None, share: float = 1.0
    ) -> None:
        """Switch to another federation; the process and its imports stay."""
        self._title = f"{spec.config.name} {spec.config.algorithm.name}"
        self._lacking = bits.problem(spec.config)
        device = torch.device("cpu")
        try:
            device = granted_device()
            if spec.config.resources.data == "node":
                samples = node_samples(spec.config, spec.data.fingerprint)
        except DataError as error:
            self._lacking = str(error)
        if samples is not None:
            spec = spec.with_samples(samples)
        self._runner = ClientRunner(spec, device, share, "exit")

    def run(self, blocks: Sequence[TaskBlock], *objects: Any) -> list[object]:
        """Run blocks in sequence; see `flray.federation.worker.client_runner.ClientRunner.run_block`.

        Parameters
        ----------
        blocks : sequence of TaskBlock
            With places among `objects` for references.
        *objects : Packed, or list of Packed
            The messages and states, and the large parts of whole calls.

        Returns
        -------
        list
            For each block its outcomes and the bytes of its large part (None without); these large
            parts; and each task's state: separate objects.
        """

        def held(place: Place | None) -> Any:
            if place is None:
                return None
            found = objects[place.argument]
            return found if place.reply is None else found[place.reply]

        done = [self._runner.run_block(block.with_references(held)) for block in blocks]
        small = [
            (outcomes, bulk.nbytes if bulk is not None else None) for outcomes, bulk, _ in done
        ]
        states = [state for *_, of_block in done for state in of_block]
        return [small, [bulk for _, bulk, _ in done], *states]

    def describe(self) -> Description:
        """Return the node, and the kinds of CPU and GPU.

        Raises
        ------
        DataError
            If this node lacks the data, or its CPU cannot reproduce the requested bits.
        """
        if self._lacking:
            raise DataError(self._lacking)
        return {
            "node": ray.get_runtime_context().get_node_id(),
            "kind": bits.kind(),
            "gpu": gpu_identity(self._runner.device),
        }


START_TIMEOUT_S, COPY_SECONDS, ANSWER_SECONDS = 60.0, 30.0, 3600.0
"""Seconds within which a process starts on an available node, even a busy one; those that are waited for copies; and
for an actor that starts, which may have much to read."""


@dataclass
class PoolWorker:
    """One actor with its queued jobs, oldest first; none until it has started, as its node may never come."""

    actor: Any
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
    group : placement group
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
        group: object,
        first_bundle: int = 0,
        samples: ObjectRef | None = None,
    ) -> None:
        self._spec, self.config, self._gpus, self._group = spec, config, gpus, group
        self._samples = samples
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

    def _ask_all(self, method: str, *arguments: object) -> list[Any]:
        """Return each actor's answer once it has started; one that is dead or too late is replaced and gives none."""
        calls = [getattr(worker.actor, method).remote(*arguments) for worker in self.workers]
        answers: list[Any] = []
        for worker, call in zip(self.workers, calls, strict=True):
            try:
                with unwrapped():
                    answers.append(ray.get(call, timeout=ANSWER_SECONDS))
            except (*ACTOR_DIED_ERRORS, ray.exceptions.GetTimeoutError):
                self.replace(worker)
        return answers

    def close(self) -> None:
        """Stop all actors."""
        for worker in self.workers:
            ray.kill(worker.actor)
        self.workers = []

    def _start(self, bundle: int) -> tuple[Any, ObjectRef]:
        """Return a new actor and a reference that is ready once it has started."""
        place = PlacementGroupSchedulingStrategy(self._group, placement_group_bundle_index=bundle)
        maker: Any = ray.remote(ClientActor).options(
            num_cpus=self.config.resources.cpus_per_actor,
            num_gpus=self._gpus,
            max_restarts=0,
            scheduling_strategy=place,
        )
        actor = maker.remote(*self._made_of())
        return actor, actor.describe.remote()

    def _made_of(self) -> tuple[object, ...]:
        """Return the arguments of a client actor."""
        return self._spec, self._samples, self._gpus if 0 < self._gpus < 1 else 1.0

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
        self._ask_all("reset", *self._made_of())

    def watch_over(self, states: Callable[[], Iterable[Ref]], warn: Callable[[str], None]) -> None:
        """Watch over what must outlast its node; see `flray.federation.messages.Executor.watch_over`."""
        self._states, self._warn = states, warn

    def look_at_nodes(self, replies: Iterable[Ref]) -> None:
        """If Ray says that a node will be gone, copy what only it holds, the clients' states and these replies."""
        if not self.nodes.look():
            return
        copied = self.copy_here([*self._states(), *replies])
        actors = sum(worker.node in self.nodes.leaving for worker in self.workers)
        if actors or copied:
            self._warn(
                f"a node will soon be gone (Ray drains it): {copied} states and replies were copied "
                f"from it, and its {actors} client actors get no work while there are others"
            )

    def copy_here(self, objects: Iterable[object]) -> int:
        """Copy objects that only leaving nodes hold to this one; return how many there were.

        When the node of an object dies, Ray continues with the copy. If this node is leaving too,
        nothing is copied.
        """
        whole = [one.call if isinstance(one, ReplyInCall) else one for one in objects]
        found = list({one for one in whole if isinstance(one, ray.ObjectRef)})
        if not found or self.nodes.leaves():
            return 0
        places = private.member(private.LOCATIONS)(found)
        alone = [
            one
            for one in found
            if places[one]["node_ids"] and self.nodes.leaving.issuperset(places[one]["node_ids"])
        ]
        if alone:
            ray.wait(alone, num_returns=len(alone), timeout=COPY_SECONDS, fetch_local=True)
        return len(alone)

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
        return distinct([found["gpu"] for found in self._ask_all("describe")])

    def replace(self, worker: PoolWorker) -> None:
        """Replace a dead actor; the calls that wait for it are forgotten."""
        worker.waiting.clear()
        with contextlib.suppress(Exception):
            ray.kill(worker.actor)
        worker.actor, worker.starting = self._start(worker.bundle)
        worker.awaited, worker.node = False, ""


def _kind_of(block: TaskBlock) -> tuple[str, str]:
    task = block.jobs[0].client_task
    return task.kind, task.stage.name
