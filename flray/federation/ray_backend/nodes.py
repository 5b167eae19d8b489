"""A cluster's nodes: their resources, the first that can work, and the memory that a client's task takes there."""

import copyreg
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import psutil
import torch

from flray import devices, registry
from flray.config.experiment import Experiment
from flray.config.start import MODULE_PREFIX
from flray.devices import CONTEXT_BYTES, peak_bytes
from flray.errors import ConfigError, FlrayError
from flray.federation import FederationSpec
from flray.federation.evaluation import personal_tasks
from flray.federation.federation import Federation
from flray.federation.messages import TaskBlock, TaskBlockResult, TaskInput, allocation
from flray.federation.state import Notify
from flray.federation.worker.client_runner import InlineExecutor

# Resources of one node of the cluster by name, its ``id`` and its ``name``.
Node = Mapping[str, Any]

NO_GPU_NOW = (
    "the cluster has no GPU now, so clients are computed on CPUs; with a number in "
    "resources.gpus_per_actor a run waits for an autoscaler's first GPU"
)

MODEL_RESOURCE = "accelerator_type:"
"""With the model's name what Ray calls a resource of nodes that have such GPUs."""


def node_resources() -> list[Node]:
    """Return the resources of every living node of the connected Ray cluster, if any."""
    import ray

    if not ray.is_initialized():
        return []
    return [
        {**node["Resources"], "id": node["NodeID"], "name": node["NodeManagerHostname"]}
        for node in ray.nodes()
        if node["Alive"]
    ]


SETTLE_SECONDS = 3.0
"""Seconds in which Ray takes back what an ended job has held."""


def held_by_others() -> dict[str, float]:
    """Return the CPUs and GPUs of the connected Ray that other jobs hold; call it before this process asks for any."""
    import ray

    if not ray.is_initialized():
        return {}
    end = time.monotonic() + SETTLE_SECONDS
    while True:
        there, free = ray.cluster_resources(), ray.available_resources()
        held = {kind: there.get(kind, 0.0) - free.get(kind, 0.0) for kind in ("CPU", "GPU")}
        held = {kind: number for kind, number in held.items() if number > 0.001}
        if not held or time.monotonic() > end:
            return held
        time.sleep(0.1)


WAIT_SECONDS = 30.0
"""Seconds without room for anything, after which the user is told."""


def no_room(who: str, bundles: Sequence[Mapping[str, float]]) -> str:
    """Return the line that names who waits for room, the resources it needs and those that are free."""
    import ray

    there, free, words = ray.cluster_resources(), ray.available_resources(), list[str]()
    for kind in ("CPU", "GPU"):
        if need := sum(bundle.get(kind, 0.0) for bundle in bundles):
            of = f"{free.get(kind, 0.0):g} of the cluster's {there.get(kind, 0.0):g} are free"
            words.append(f"{need:g} {kind} ({of})")
    needs = " and ".join(words)
    return f"{who} waits for room: it needs {needs}; `ray status` shows who holds the others"


def own_node() -> str:
    """Return the id of this process's node."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


def node_mark() -> str:
    """Return the resource that this process's node alone has."""
    (here,) = [node for node in node_resources() if node["id"] == own_node()]
    (mark,) = [name for name in here if name.startswith("node:") and "node:__" not in name]
    return str(mark)


def only_model(config: Experiment, nodes: Sequence[Node]) -> str:
    """Return the one model of GPU that an experiment's actors may have; empty where all may be used.

    Raises
    ------
    ConfigError
        If there are several and none is named, or the named one is not there.
    """
    wanted = config.resources.gpu_model
    if config.resources.gpus_per_actor == 0 or wanted == "any":
        return ""
    models = sorted(
        {
            name.removeprefix(MODEL_RESOURCE)
            for node in nodes
            if float(node.get("GPU", 0.0)) > 0
            for name in node
            if name.startswith(MODEL_RESOURCE)
        }
    )
    there = ", ".join(models) or "none that Ray knows the model of"
    if wanted != "one":
        if wanted in models or not nodes:
            return wanted
        raise ConfigError("experiment.resources.gpu_model", wanted, f"the GPUs are {there}")
    if len(models) > 1:
        raise ConfigError(
            "experiment.resources.gpu_model",
            wanted,
            f"the cluster's GPUs are of several models ({there}), whose last bits differ; name one of "
            "them, or set any to use all",
        )
    return ""


NODE_WAIT_S = 600.0
"""Seconds to wait for the first node that can work."""


def await_first_node(
    config: Experiment, available: Mapping[str, float], say: Notify
) -> Mapping[str, float]:
    """Wait for a cluster's first CPU if it has none, and for its first GPU if an experiment asks for one in numbers.

    Parameters
    ----------
    config : Experiment
        The experiment.
    available : mapping
        The resources of the cluster.
    say : callable
        Called with one line that names the awaited resource.

    Returns
    -------
    mapping
        The resources of the cluster after the wait.

    Raises
    ------
    FlrayError
        If none came within `NODE_WAIT_S`.
    """
    resources = config.resources
    asked = resources.gpus_per_actor
    if (
        asked not in ("auto", 0)
        and resources.executor == "ray"
        and not float(available.get("GPU", 0.0))
    ):
        named = resources.gpu_model
        model = {} if named in ("one", "any") else {MODEL_RESOURCE + named: 0.001}
        advice = "resources.gpus_per_actor=0 computes on CPUs"
        return _await("GPU", {"GPU": float(asked), **model}, advice, say)
    if not float(available.get("CPU", 0.0)):
        advice = "without --address Ray is started on this machine"
        return _await("CPU", {"CPU": resources.cpus_per_actor}, advice, say)
    return available


def _await(kind: str, bundle: dict[str, float], advice: str, say: Notify) -> Mapping[str, float]:
    # Imported here: Ray takes two seconds.
    import ray
    from ray.util.placement_group import placement_group, remove_placement_group

    say(
        f"the cluster has no {kind} now; waiting up to {NODE_WAIT_S:g} s for its autoscaler to start a node "
        f"with one ({advice})"
    )
    group = placement_group([bundle])
    try:
        ray.get(group.ready(), timeout=NODE_WAIT_S)
    except ray.exceptions.GetTimeoutError:
        raise FlrayError(
            f"no {kind} came to the cluster within {NODE_WAIT_S:g} s; `ray status` shows what its "
            f"autoscaler does, and {advice}"
        ) from None
    finally:
        remove_placement_group(group)
    return dict(ray.cluster_resources())


def _cached_property(function: Callable[[Any], Any], name: str) -> "cached_property[Any]":
    made = cached_property(function)
    made.__set_name__(object, name)
    return made


# Python 3.11 gives it a lock, which cannot be pickled.
copyreg.pickle(cached_property, lambda one: (_cached_property, (one.func, one.attrname)))


def ship_user_modules() -> None:
    """Pickle everything defined in the user's own modules by value.

    These are the plug-ins that a configuration names, and the modules that registered components
    from Python. Installed packages are assumed to be installed everywhere.
    """
    from ray import cloudpickle

    installed = sysconfig.get_paths()
    names = {name for name in list(sys.modules) if name.startswith(MODULE_PREFIX)}
    names |= {
        getattr(item, "__module__", "")
        for entries in registry.ALL.values()
        for item in entries.added().values()
    }
    for name in sorted(names):
        module = sys.modules.get(name)
        path = getattr(module, "__file__", None)
        if module and path and not path.startswith((installed["purelib"], installed["platlib"])):
            cloudpickle.register_pickle_by_value(module)


SAFETY_FACTOR = 1.2
"""Safety factor on measured memory: other clients may need a little more."""

PROBE_ROUNDS = 2
"""Rounds that are run to measure: in the second clients hold what the first has left, and get what the
server has learnt in it."""

PROBE_REPLIES = 8
"""Clients whose replies the server gets, all those of one: more than any method sends on to a client."""

PROBE_SECONDS = 40.0
"""Seconds after which nothing more is run to measure, as steps may be slow."""

GPU_PROBE_TIMEOUT_S = 60.0
"""Seconds to wait for the GPUs of a node, and for the measurement on them."""

COMPILE_TIMEOUT_S = 240.0
"""The same where networks are compiled first."""


@dataclass(frozen=True)
class Gpu:
    """A GPU: its node, its index there, and its free bytes."""

    node: str
    index: int
    free: int


@dataclass(frozen=True)
class ResourceSurvey:
    """The measured memory need of one client actor, and the cluster's GPUs.

    Attributes
    ----------
    memory : int
        Bytes of main memory, without memory shared with other processes; 0 if not measured.
    gpu : int
        Bytes of GPU memory; 0 on the CPU.
    gpus : tuple of Gpu
        Every GPU of the cluster; empty if torch sees none.
    problem : str
        The reason for a missing measurement, in a few words.
    sharing : tuple of float
        How many times as long as alone a task takes with one, two and more processes on its GPU; empty if
        not measured.
    """

    memory: int = 0
    gpu: int = 0
    gpus: tuple[Gpu, ...] = ()
    problem: str = ""
    sharing: tuple[float, ...] = ()

    def slowdown(self, processes: int) -> float:
        """Return the measured slowdown of processes on a GPU; unmeasured, they are assumed to gain nothing."""
        known = self.sharing[:processes]
        return max([1.0 if len(known) == processes else float(processes), *known])


UNMEASURED = ResourceSurvey()


def measure_footprint(spec: FederationSpec, device: torch.device) -> ResourceSurvey:
    """Run the first steps of the longest task of every stage in two rounds, evaluate, and return the peak memory.

    Parameters
    ----------
    spec : FederationSpec
        The federation.
    device : torch.device
        The device for client tasks. If it has no room for them, that is the problem.

    Notes
    -----
    Call it in a separate process: the result is the peak over the process's lifetime.
    """
    try:
        _run_heaviest(shortened(spec), device)
    except Exception as error:
        for one in (error, error.__cause__):
            if isinstance(one, torch.OutOfMemoryError):
                return ResourceSurvey(problem=allocation(one))
        # What else fails here fails in the run too, which says so; measured is what went before.
    reserved = devices.reserved_bytes(device)
    gpu = int(reserved * SAFETY_FACTOR) + CONTEXT_BYTES if reserved else 0
    peak = peak_bytes() - psutil.Process().memory_info().shared
    return ResourceSurvey(int(peak * SAFETY_FACTOR), gpu)


def _run_heaviest(spec: FederationSpec, device: torch.device) -> None:
    began = time.monotonic()
    executor = ShortExecutor(spec, device)
    federation = Federation(spec, executor, lambda line: None, device)
    try:
        for _ in range(PROBE_ROUNDS):
            federation.step()
            if time.monotonic() - began > PROBE_SECONDS:
                return
        if spec.has_common:
            list(executor.run_tasks(federation.model_tasks()))
        if "personal" in spec.algorithm.views or not spec.has_common:
            list(executor.run_tasks(personal_tasks(federation)))
    finally:
        federation.close()


def shortened(spec: FederationSpec) -> FederationSpec:
    """Return a federation that has one batch of test samples and never evaluates by itself."""
    size = spec.config.evaluation.batch_size
    clients = tuple(replace(one, test=one.test[:size]) for one in spec.data.clients)
    few = np.concatenate([one.test for one in clients])[:size]
    evaluation = spec.config.evaluation.model_copy(update={"every": 10**9})
    config = spec.config.model_copy(update={"evaluation": evaluation, "rounds": 10**9})
    return replace(spec, config=config, data=replace(spec.data, clients=clients, test=few))


class ShortExecutor(InlineExecutor):
    """Runs few steps of the longest job of each architecture, and returns its reply for the other clients too.

    At least two steps, because an optimiser holds its state from the second step on.
    """

    def __init__(self, spec: FederationSpec, device: torch.device, steps: int = 2) -> None:
        super().__init__(spec, device, exhausted="raise")
        self._spec, self._steps, self.seconds = spec, steps, 0.0

    def run_blocks(
        self, blocks: Sequence[TaskBlock], timeout: float | None = None, idle: float | None = None
    ) -> Iterator[TaskBlockResult]:
        """Run the longest tasks; those of the same architecture have the same results.

        A block is as many of them as share a step, and at least two, so that weights are summed.
        """
        jobs = [job for block in blocks for job in block.jobs]
        by_length = sorted(jobs, key=lambda job: job.client_task.cost)
        longest = {job.client_task.architecture: job for job in by_length}
        summed = any(block.summed for block in blocks)
        most = max((len(block.jobs) for block in blocks), default=0)
        together = max(2, min(self._spec.config.local.clients_per_step, most)) if summed else 1
        heaviest = [TaskBlock((self._short(job),) * together, summed) for job in longest.values()]
        begun = time.perf_counter()
        done = dict(zip(longest, super().run_blocks(heaviest), strict=True))
        self.seconds += time.perf_counter() - begun
        if summed:
            yield from done.values()
            return
        own = {id(job) for job in longest.values()}
        answering = sorted(jobs, key=lambda job: id(job) not in own)[:PROBE_REPLIES]
        for job in sorted(answering, key=lambda job: job.client_task.client):
            (result,) = done[job.client_task.architecture].results
            yield TaskBlockResult((result._replace(client_task=job.client_task),))

    def _short(self, job: TaskInput) -> TaskInput:
        """Return a job reduced to few steps of local training, and to its share of any other phase."""
        local, task = self._spec.config.local, job.client_task
        count = len(self._spec.training_rows(task.client)) if task.client >= 0 else 0
        batches = -(-count // local.batch_size)
        steps = local.steps or -int(-local.epochs * batches // 1)
        work = (self._steps - 0.5) / steps if steps >= self._steps else 1.0
        return job._replace(client_task=task._replace(work=min(work, task.work)))


def should_probe(spec: FederationSpec, nodes: Sequence[Node]) -> bool:
    """Return whether memory may limit the number of actors: always on GPUs, seldom on CPUs."""
    settings = spec.config.resources
    if settings.actors != "auto" and settings.gpus_per_actor != "auto":
        return False
    if settings.gpus_per_actor != 0 and any(node.get("GPU", 0) >= 1 for node in nodes):
        return True
    largest = max(
        sum(value.numel() * value.element_size() for value in spec.build(key).state_dict().values())
        for key in spec.architectures
    )
    rough = (
        2**30 + 16 * largest
    )  # weights, gradients, messages and replies; activations are left to the probe
    return settings.actors == "auto" and any(
        node.get("memory", float("inf")) < rough * node.get("CPU", 0.0) / settings.cpus_per_actor
        for node in nodes
    )


def survey_nodes(spec: FederationSpec, nodes: Sequence[Node]) -> ResourceSurvey:
    """Measure one task on every node with GPUs, and their free memory; without GPUs, on the largest node.

    Parameters
    ----------
    spec : FederationSpec
        The federation.
    nodes : sequence of dict
        From `node_resources`.

    Raises
    ------
    ConfigError
        If one step has no room on a GPU.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    holders = (
        [node for node in nodes if node.get("GPU", 0) >= 1]
        if spec.config.resources.gpus_per_actor != 0
        else []
    )
    ship_user_modules()
    reference = ray.put(spec)
    task = ray.remote(max_calls=1, max_retries=1)(_survey_node)
    calls = [
        task.options(
            num_cpus=0,
            num_gpus=int(node.get("GPU", 0)) if holders else 0,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node["id"], soft=False),
        ).remote(reference, node["name"])
        for node in holders or [max(nodes, key=lambda node: node.get("CPU", 0.0))]
    ]
    limit = COMPILE_TIMEOUT_S if spec.config.local.compile else GPU_PROBE_TIMEOUT_S
    try:
        results: list[ResourceSurvey] = ray.get(calls, timeout=limit)
    except (ray.exceptions.GetTimeoutError, ray.exceptions.RayError) as error:
        for call in calls:
            ray.cancel(call, force=True)
        late = isinstance(error, ray.exceptions.GetTimeoutError)
        return ResourceSurvey(problem=f"not within {limit:g} s" if late else type(error).__name__)
    if full := next((found.problem for found in results if found.problem), ""):
        raise ConfigError(
            "experiment.local.batch_size",
            f"{spec.config.local.batch_size}",
            f"{full}; lower it, end what else runs there, or leave that GPU out (CUDA_VISIBLE_DEVICES)",
        )
    return joined(results)


def joined(surveys: Sequence[ResourceSurvey]) -> ResourceSurvey:
    """Return several nodes' surveys as one, whose footprint is the largest of theirs."""
    return ResourceSurvey(
        max(one.memory for one in surveys),
        max(one.gpu for one in surveys),
        tuple(gpu for one in surveys for gpu in one.gpus),
    )


def _survey_node(spec: FederationSpec, node: str) -> ResourceSurvey:
    """Return the free memory of a node's GPUs, and a task's footprint there."""
    torch.set_num_threads(1)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    free = (torch.cuda.mem_get_info(index)[0] for index in range(count))  # whoever holds the rest
    gpus = tuple(Gpu(node, index, there) for index, there in enumerate(free))
    device, place = torch.device("cpu"), f"the CPU of {node}"
    if gpus:
        # The GPU with the least room is the one that limits the actors.
        least = min(gpus, key=lambda gpu: gpu.free)
        device = torch.device("cuda", least.index)
        place = f"GPU {least.index} of {node} ({least.free / 2**30:.1f} GiB free)"
    found = measure_footprint(spec, device)
    if found.problem:
        return ResourceSurvey(problem=f"one step alone has no room on {place}: {found.problem}")
    return replace(found, gpus=gpus)
