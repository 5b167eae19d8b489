"""How much slower a task is beside others on its GPU, measured on one of the cluster's."""

import time
from itertools import accumulate
from statistics import fmean
from typing import Any

import torch

from flray.federation import FederationSpec
from flray.federation.federation import Federation
from flray.federation.ray_backend.nodes import (
    COMPILE_TIMEOUT_S,
    GPU_PROBE_TIMEOUT_S,
    Node,
    ShortExecutor,
    ship_user_modules,
    shortened,
)

SECONDS, STEPS = 2.0, 20
"""Seconds that each number of processes is timed for, and most steps of a task."""

_FOUND: dict[str, tuple[float, ...]] = {}


class Sharer:
    """A process that repeats a federation's longest local training, to be timed beside others on its GPU."""

    def __init__(self, spec: FederationSpec) -> None:
        torch.set_num_threads(1)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._executor = ShortExecutor(spec, device, STEPS)
        self._federation = Federation(shortened(spec), self._executor, lambda line: None, device)
        self._federation.step()

    def seconds(self) -> float:
        """Return the mean time of a round's tasks, over `SECONDS`."""
        until, rounds, self._executor.seconds = time.monotonic() + SECONDS, 0, 0.0
        while time.monotonic() < until:
            self._federation.step()
            rounds += 1
        return self._executor.seconds / rounds


def measure_sharing(spec: FederationSpec, node: Node, most: int) -> tuple[float, ...]:
    """Return how many times as long as alone a task takes with 1, 2, ..., `most` processes on a GPU.

    Empty if the processes did not answer in time. The result serves other settings of the same network
    and data.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    local = {"batch_size", "precision", "compile", "clients_per_step"}
    chosen: Any = {"data": True, "model": True, "models": True, "local": local}
    key = f"{node['id']} {most} {spec.config.model_dump_json(include=chosen)}"
    if key in _FOUND:
        return _FOUND[key]
    ship_user_modules()
    here = NodeAffinitySchedulingStrategy(node["id"], soft=False)
    maker: Any = ray.remote(Sharer).options(num_cpus=0, num_gpus=1 / most, scheduling_strategy=here)
    # Ray fills one GPU before it takes the next.
    reference = ray.put(spec)
    sharers = [maker.remote(reference) for _ in range(most)]
    limit = COMPILE_TIMEOUT_S if spec.config.local.compile else GPU_PROBE_TIMEOUT_S
    try:
        ray.get([one.__ray_ready__.remote() for one in sharers], timeout=limit)
        times = [
            fmean(ray.get([one.seconds.remote() for one in sharers[:count]], timeout=limit))
            for count in range(1, most + 1)
        ]
    except (ray.exceptions.GetTimeoutError, ray.exceptions.RayError):
        times = []
    for one in sharers:
        ray.kill(one)
    _FOUND[key] = tuple(accumulate((max(1.0, one / times[0]) for one in times), max))
    return _FOUND[key]
