"""Measure a client task's memory and the free GPU memory, for automatic placement."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import psutil
import torch

from flray.federation.executor import InlineExecutor
from flray.federation.federation import Federation
from flray.federation.memory import peak_bytes
from flray.federation.messages import TaskBlock, TaskBlockResult, TaskInput, TaskResult
from flray.federation.spec import FederationSpec

CUDA_CONTEXT_BYTES = 512 * 2**20
"""Bytes of a GPU that a process takes besides its tensors: CUDA's context and the libraries' workspaces."""

SAFETY_FACTOR = 1.2
"""Safety factor on measured memory: the allocator rounds up, and other clients may need a little more."""

GPU_PROBE_TIMEOUT_S = 60.0
"""Seconds to wait for the GPUs of a node; if another job holds them, placement uses their number only."""


# Resources of one node of the cluster by name, its ``id`` and its ``name``.
Node = Mapping[str, Any]


@dataclass(frozen=True)
class TaskFootprint:
    """Memory needs of one client actor.

    Attributes
    ----------
    memory : int
        Bytes of main memory, without memory shared with other processes.
    gpu : int
        Bytes of GPU memory; 0 on the CPU.
    """

    memory: int
    gpu: int = 0


@dataclass(frozen=True)
class Gpu:
    """A GPU: its node, its index there, and its free bytes."""

    node: str
    index: int
    free: int


@dataclass(frozen=True)
class ResourceSurvey:
    """Measurements: a task's footprint, and every GPU of the cluster (none if torch sees none)."""

    need: TaskFootprint
    gpus: tuple[Gpu, ...] = ()


def measure_footprint(spec: FederationSpec, device: torch.device) -> TaskFootprint:
    """Run one step of the longest task of every stage of a round, and return the peak memory.

    Parameters
    ----------
    spec : FederationSpec
        The federation.
    device : torch.device
        The device for client tasks.

    Notes
    -----
    Call it in a separate process: the result is the peak over the process's lifetime.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    # A method may fail to aggregate one reply of many; its tasks up to there are measured
    # anyway.
    with contextlib.suppress(Exception):
        Federation(spec, _SingleStepExecutor(spec), lambda line: None).step()
    gpu = (
        int(torch.cuda.max_memory_allocated(device) * SAFETY_FACTOR) + CUDA_CONTEXT_BYTES
        if device.type == "cuda"
        else 0
    )
    peak = peak_bytes() - psutil.Process().memory_info().shared
    return TaskFootprint(int(peak * SAFETY_FACTOR), gpu)


class _SingleStepExecutor(InlineExecutor):
    """Runs one step of the longest job only."""

    def __init__(self, spec: FederationSpec) -> None:
        super().__init__(spec)
        self._clients_per_step = spec.config.local.clients_per_step

    def run_tasks(
        self, jobs: Sequence[TaskInput], timeout: float | None = None, idle: float | None = None
    ) -> Iterator[TaskResult]:
        yield from super().run_tasks(_one_step(jobs), timeout, idle)

    def run_blocks(
        self, blocks: Sequence[TaskBlock], timeout: float | None = None
    ) -> Iterator[TaskBlockResult]:
        """Run the job for as many clients as share a step, and at least two, so that weights are summed."""
        most = max((len(block.jobs) for block in blocks), default=0)
        together = min(self._clients_per_step, most)
        jobs = _one_step([job for block in blocks for job in block.jobs]) * max(2, together)
        yield from super().run_blocks([TaskBlock(tuple(jobs))] if jobs else [], timeout)


def _one_step(jobs: Sequence[TaskInput]) -> list[TaskInput]:
    """Return the longest job, reduced to one step; empty if there are no jobs."""
    longest = max(jobs, key=lambda job: job.client_task.cost, default=None)
    return (
        []
        if longest is None
        else [replace(longest, client_task=replace(longest.client_task, work=1e-9))]
    )


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


def survey_nodes(spec: FederationSpec, nodes: Sequence[Node]) -> ResourceSurvey | None:
    """Measure one task and every GPU of the cluster; None if the GPUs are not free within `GPU_PROBE_TIMEOUT_S`.

    Parameters
    ----------
    spec : FederationSpec
        The federation.
    nodes : sequence of dict
        From `node_resources`.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    holders = (
        [node for node in nodes if node.get("GPU", 0) >= 1]
        if spec.config.resources.gpus_per_actor != 0
        else []
    )
    reference = ray.put(spec)
    first, *others = holders or [max(nodes, key=lambda node: node.get("CPU", 0.0))]
    task = ray.remote(max_calls=1, max_retries=1)(_survey_node)
    calls = []
    for node in (first, *others):
        here = NodeAffinitySchedulingStrategy(node["id"], soft=False)
        gpus = int(node.get("GPU", 0)) if holders else 0
        calls.append(
            task.options(num_cpus=0, num_gpus=gpus, scheduling_strategy=here).remote(
                reference if node is first else None, node["name"]
            )
        )
    try:
        results = ray.get(calls, timeout=GPU_PROBE_TIMEOUT_S)
    except (ray.exceptions.GetTimeoutError, ray.exceptions.RayError):
        for call in calls:
            ray.cancel(call, force=True)
        return None
    need = results[0][0]
    return ResourceSurvey(need, tuple(gpu for _, gpus in results for gpu in gpus))


def _survey_node(spec: FederationSpec | None, node: str) -> tuple[TaskFootprint | None, list[Gpu]]:
    """Return the free memory of a node's GPUs, and a task's footprint there."""
    torch.set_num_threads(1)
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    gpus = [Gpu(node, index, torch.cuda.mem_get_info(index)[0]) for index in range(count)]
    need = (
        measure_footprint(spec, torch.device("cuda:0" if count else "cpu"))
        if spec is not None
        else None
    )
    return need, gpus
