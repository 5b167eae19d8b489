"""What waits at the server while a round goes on."""

from __future__ import annotations

from typing import Any

import pytest

from flray import trees
from flray.algorithms.base import Stage
from flray.federation.clients import RayExecutor
from flray.federation.executor import Job, Turn
from flray.federation.playing import BLOCK, Play
from flray.federation.world import make_world
from flray.loading import load


@pytest.mark.slow
@pytest.mark.parametrize(("large", "most"), [(False, BLOCK), (True, 6)])
def test_replies_do_not_pile_up(digits: dict[str, Any], ray_here: dict[str, float], large: bool, most: int,
                                monkeypatch: pytest.MonkeyPatch) -> None:
    """The first clients have the least work and so would come last; the others' replies must not wait for them."""
    import ray

    from flray.federation import playing

    if large:
        monkeypatch.setattr(playing, "KEPT", 1)  # as if a reply filled the memory: two waiting and one at each actor
    config = {**digits, "partition": {"name": "iid", "clients": 192}, "local": {"epochs": 1, "batch_size": 2},
              "resources": {"actors": 2}}
    world = make_world(load({"experiment": config}).experiment)
    executor = RayExecutor(ray.put(world), world.config, 2, 0.0)
    weights = world.build("lenet").state_dict()
    common = executor.put(trees.pack({"weights": dict(weights)}))
    jobs = [Job(Turn("stage", client, 0, "lenet", Stage(), token="a", cost=float(client)), common)
            for client in range(192)]
    play = Play(executor, jobs, None)
    held, clients = 0, []
    try:
        for result in play.results():
            clients.append(result.turn.client)
            under_way = sum(len(worker.waiting) for worker in executor.workers)
            held = max(held, len(play._done) + under_way)
    finally:
        executor.close()
    assert clients == list(range(192))
    assert held <= most
