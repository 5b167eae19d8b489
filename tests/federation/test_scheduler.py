"""What waits at the server while a round goes on."""

from typing import Any

import pytest
import ray

from flray import trees
from flray.algorithms.types import Stage
from flray.federation.messages import ClientTask, TaskBlock, TaskInput
from flray.federation.ray_backend import executor as scheduling
from flray.federation.ray_backend.executor import SCHEDULING_WINDOW, RayExecutor, TaskScheduler
from flray.federation.ray_backend.pool import PoolWorker
from flray.federation.spec import FederationSpec
from tests.end_to_end.pool import Pools
from tests.helpers import built

CLIENTS = 192


def many_clients(digits: dict[str, Any]) -> FederationSpec:
    partition = {"name": "iid", "clients": CLIENTS}
    return built({**digits, "partition": partition, "local": {"epochs": 1, "batch_size": 2}})


def blocks_of(spec: FederationSpec, executor: RayExecutor) -> list[TaskBlock]:
    weights = spec.build("lenet").state_dict()
    common = executor.put(trees.pack({"weights": dict(weights)}))
    tasks = [
        ClientTask("stage", client, 0, "lenet", Stage(), token="a", cost=float(client))
        for client in range(CLIENTS)
    ]
    return [TaskBlock((TaskInput(task, common),)) for task in tasks]


@pytest.mark.slow
@pytest.mark.parametrize(("large", "most"), [(False, SCHEDULING_WINDOW), (True, 6)])
def test_replies_do_not_pile_up(
    digits: dict[str, Any], pools: Pools, large: bool, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first clients have the least work and so would come last; the others' replies must not wait for them."""
    if large:
        monkeypatch.setattr(
            scheduling, "MAX_BUFFERED_REPLY_BYTES", 1
        )  # as if a reply filled the memory: two waiting and one at each actor
    spec = many_clients(digits)
    executor = pools[2].executor_for(spec)
    blocks = blocks_of(spec, executor)
    run_tasks = TaskScheduler(executor, blocks)
    held, clients = 0, []
    for result in run_tasks.results():
        clients.append(result.results[0].client_task.client)
        calls = [call for worker in executor.workers for call in worker.waiting]
        under_way = sum(len(call.positions) for call in calls)
        held = max(held, len(run_tasks._done) + under_way)
    assert clients == list(range(CLIENTS))
    assert held <= most


@pytest.mark.slow
def test_one_look_takes_all_that_have_answered(
    digits: dict[str, Any], pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A look goes over the calls of all actors, so that one for every result would be quadratic in them."""
    spec = many_clients(digits)
    executor = pools[2].executor_for(spec)
    scheduler = TaskScheduler(executor, blocks_of(spec, executor))
    actors = [worker.actor for worker in executor.workers]
    many = [PoolWorker(actors[i % 2], None, number=i, bundle=0) for i in range(CLIENTS // 2)]
    monkeypatch.setattr(executor, "workers", many)
    scheduler._fill_queues()
    calls = [call.outcome for worker in many for call in worker.waiting]
    assert len(calls) == CLIENTS
    assert len(ray.wait(calls, num_returns=CLIENTS, timeout=300)[0]) == CLIENTS
    looked, wait = list[int](), ray.wait

    def counted(references: Any, **options: Any) -> Any:
        looked.append(len(references))
        return wait(references, **options)

    monkeypatch.setattr(ray, "wait", counted)
    assert len(list(scheduler.results())) == CLIENTS
    assert looked == [CLIENTS]
