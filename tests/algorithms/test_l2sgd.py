from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flray import trees
from flray.federation.federation import Federation
from tests.algorithms import helpers as tiny
from tests.algorithms.helpers import V


def coin(p: float, lam: float = 0.5) -> dict[str, Any]:
    return {"name": "l2sgd", "coin": True, "p": p, "lam": lam}


def own(federation: Federation) -> list[Tensor]:
    return [tiny.kept(federation, i)[V] for i in range(3)]


def test_a_round_trains_and_pulls_by_hand() -> None:
    """Two rounds of one full-batch step on softmax regression, pull 0.3; the mean has equal weights."""
    federation = tiny.run({"name": "l2sgd", "pull": 0.3}, rounds=2, **tiny.full())
    models = [tiny.start(federation)[V]] * 3
    for _ in range(2):
        pairs = zip(models, tiny.tensors(), strict=True)
        models = [w - 0.1 * tiny.softmax_gradient(w, *data) for w, data in pairs]
        mean = torch.stack(models).mean(0)
        models = [0.7 * w + 0.3 * mean for w in models]
    tiny.close(torch.stack(own(federation)), torch.stack(models))
    tiny.close(federation.server.model, {V: mean})


def test_a_full_pull_makes_all_models_uniform_fedavg_s_but_for_local_buffers() -> None:
    options: dict[str, Any] = {"name": "l2sgd", "pull": 1.0}
    settings: dict[str, Any] = {"model": tiny.DROPOUT, "rounds": 3}
    pulled = tiny.run(options, **settings)
    fedavg = tiny.run("fedavg", aggregation={"weights": "uniform"}, **settings).server.model
    for i in range(3):
        kept = tiny.kept(pulled, i)
        floats = {name for name, value in kept.items() if value.is_floating_point()}
        assert len(floats) == len(kept) - 1
        assert all(torch.equal(kept[name], fedavg[name]) for name in floats)
    local = tiny.run(options, aggregation={"buffers": "local"})
    one, two = (tiny.kept(local, i) for i in range(2))
    mean = "features.middle.running_mean"
    assert torch.equal(one[tiny.W], two[tiny.W]) and not torch.equal(one[mean], two[mean])


def test_the_coin_s_two_branches_are_unbiased_for_the_objective_s_gradient() -> None:
    """Both branches from the same models: their expected step is -alpha grad F, and alpha = N (1 - p) lr."""
    p, lam, lr = 0.3, 0.8, 0.1
    federation, data = tiny.run(coin(p, lam), rounds=1, **tiny.full()), tiny.tensors()
    alpha = 3 * (1 - p) * lr
    while True:  # until a local step has been followed by a pull
        before = own(federation)
        if federation.step().metrics["bytes/up"] and not torch.equal(before[0], before[1]):
            break
    mean = torch.stack(before).mean(0)
    pulls = [after - w for after, w in zip(own(federation), before, strict=True)]
    while True:  # then a local step, which nothing has to travel for
        models, came = own(federation), federation.step().metrics
        if not came["bytes/down"]:
            break
    assert came["train/steps"] == 3 and came["bytes/up"] == 0
    for w, after, (x, y) in zip(models, own(federation), data, strict=True):
        tiny.close(after - w, -alpha / (3 * (1 - p)) * tiny.softmax_gradient(w, x, y))
    for w, pull, (x, y) in zip(before, pulls, data, strict=True):
        step = -lr * tiny.softmax_gradient(w, x, y)  # of the branch that was just measured
        gradient = (tiny.softmax_gradient(w, x, y) + lam * (w - mean)) / 3
        tiny.close((1 - p) * step + p * pull, -alpha * gradient)


def test_models_travel_only_for_the_first_of_several_pulls() -> None:
    federation = tiny.fresh(coin(0.6), model="one-layer")
    size = 3 * trees.tensor_bytes(federation.server.model)
    moved, seen = True, set()
    for _ in range(24):
        mean = tiny.models_sha(federation)
        metrics = federation.step().metrics
        pulled = metrics["bytes/down"] > 0
        collected = pulled and moved
        assert (metrics["bytes/down"], metrics["bytes/up"]) == (size * pulled, size * collected)
        assert collected or mean == tiny.models_sha(federation)
        if pulled:
            tiny.close(federation.server.model[V], torch.stack(own(federation)).mean(0))
        seen.add((pulled, moved))
        moved = not pulled
    assert seen == {(True, True), (True, False), (False, True), (False, False)}


@pytest.mark.parametrize("p", [0.1, 0.9])
def test_the_coin_falls_as_often_as_it_should(p: float) -> None:
    federation = tiny.fresh(coin(p), model="one-layer")
    algorithm, server = federation.spec.algorithm, federation.server
    pulls = 0
    for server.round in range(2000):
        names = [stage.name for stage in algorithm.exchanges(server)]
        assert names in (["train"], ["pull"], ["collect", "pull"])
        pulls += names[-1] == "pull"
    assert abs(pulls / 2000 - p) < 4 * (p * (1 - p) / 2000) ** 0.5


def test_a_federation_with_a_coin_resumes_to_the_same_bits(tmp_path: Path) -> None:
    tiny.resumed_from_any_round(tiny.spec_of(coin(0.5), rounds=8), tmp_path)
