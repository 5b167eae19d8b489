"""What waits at the server while a round goes on."""

from __future__ import annotations

from typing import Any

import pytest

from flray import trees
from flray.algorithms.types import Stage
from flray.config.loader import load
from flray.federation.building import build_spec
from flray.federation.messages import ClientTask, TaskInput
from flray.federation.ray_backend.executor import RayExecutor
from flray.federation.ray_backend.scheduler import SCHEDULING_WINDOW, SingleTasks


@pytest.mark.slow
@pytest.mark.parametrize(("large", "most"), [(False, SCHEDULING_WINDOW), (True, 6)])
def test_replies_do_not_pile_up(
    digits: dict[str, Any],
    ray_here: dict[str, float],
    large: bool,
    most: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The first clients have the least work and so would come last; the others' replies must not wait for them."""
    import ray

    from flray.federation.ray_backend import scheduler

    if large:
        monkeypatch.setattr(
            scheduler, "MAX_BUFFERED_REPLY_BYTES", 1
        )  # as if a reply filled the memory: two waiting and one at each actor
    config = {
        **digits,
        "partition": {"name": "iid", "clients": 192},
        "local": {"epochs": 1, "batch_size": 2},
        "resources": {"actors": 2},
    }
    spec = build_spec(load({"experiment": config}).experiment)
    executor = RayExecutor(ray.put(spec), spec.config, 2, 0.0)
    weights = spec.build("lenet").state_dict()
    common = executor.put(trees.pack({"weights": dict(weights)}))
    jobs = [
        TaskInput(
            ClientTask("stage", client, 0, "lenet", Stage(), token="a", cost=float(client)), common
        )
        for client in range(192)
    ]
    run_tasks = SingleTasks(executor, jobs, None)
    held, clients = 0, []
    try:
        for result in run_tasks.results():
            clients.append(result.client_task.client)
            calls = [call for worker in executor.workers for call in worker.waiting]
            under_way = sum(len(call.positions) for call in calls)
            held = max(held, len(run_tasks._done) + under_way)
    finally:
        executor.close()
    assert clients == list(range(192))
    assert held <= most
