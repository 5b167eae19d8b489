"""What waits at the server while a round goes on."""

from typing import Any

import pytest

from flray import trees
from flray.algorithms.types import Stage
from flray.federation.messages import ClientTask, TaskBlock, TaskInput
from flray.federation.ray_backend import executor as scheduling
from flray.federation.ray_backend.executor import SCHEDULING_WINDOW, TaskScheduler
from tests.end_to_end.pool import Pools
from tests.helpers import built

CLIENTS = 192


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
    config = {
        **digits,
        "partition": {"name": "iid", "clients": CLIENTS},
        "local": {"epochs": 1, "batch_size": 2},
    }
    spec = built(config)
    executor = pools[2].executor_for(spec)
    weights = spec.build("lenet").state_dict()
    common = executor.put(trees.pack({"weights": dict(weights)}))
    tasks = [
        ClientTask("stage", client, 0, "lenet", Stage(), token="a", cost=float(client))
        for client in range(CLIENTS)
    ]
    blocks = [TaskBlock((TaskInput(task, common),)) for task in tasks]
    run_tasks = TaskScheduler(executor, blocks)
    held, clients = 0, []
    for result in run_tasks.results():
        clients.append(result.results[0].client_task.client)
        calls = [call for worker in executor.workers for call in worker.waiting]
        under_way = sum(len(call.positions) for call in calls)
        held = max(held, len(run_tasks._done) + under_way)
    assert clients == list(range(CLIENTS))
    assert held <= most
