from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from flray import trees
from flray.errors import ConfigError
from flray.federation import checkpoint
from flray.federation.federation import Federation
from tests.algorithms import helpers as tiny

NAME = "classifier.weight"
FULL = {"model": "one-layer", "local": {"batch_size": 99}}


def coin(p: float, lam: float = 0.5) -> dict[str, Any]:
    return {"name": "l2sgd", "coin": True, "p": p, "lam": lam}


def own(federation: Federation) -> list[Tensor]:
    return [tiny.state_of(federation, i)["personal"][NAME] for i in range(3)]


def until_a_pull(federation: Federation) -> list[Tensor]:
    """Run until a local step has been followed by a pull, and return the models before that pull."""
    while True:
        before = own(federation) if federation.rounds_done else []
        came = federation.step().metrics["bytes/up"]
        if came and before and not torch.equal(before[0], before[1]):
            return before


def test_a_round_trains_and_pulls_by_hand() -> None:
    """Two rounds of one full-batch step on softmax regression, pull 0.3; the mean has equal weights."""
    federation = tiny.run({"name": "l2sgd", "pull": 0.3}, rounds=2, **FULL)
    models = [tiny.start(federation)[NAME]] * 3
    for _ in range(2):
        models = [
            w - 0.1 * tiny.softmax_gradient(w, x, y)
            for w, (x, y) in zip(models, tiny.tensors(), strict=True)
        ]
        mean = tiny.mean_of([{NAME: w} for w in models], [1, 1, 1])[NAME]
        models = [0.7 * w + 0.3 * mean for w in models]
    for i, w in enumerate(models):
        tiny.assert_weights(tiny.state_of(federation, i)["personal"], {NAME: w})
    tiny.assert_weights(federation.server.model, {NAME: mean})
    # The pull leaves the mean.
    tiny.assert_weights({NAME: torch.stack(own(federation)).mean(0)}, {NAME: mean})


def test_a_full_pull_makes_all_models_uniform_fedavg_s() -> None:
    settings = {"model": {"name": "two-layer", "dropout": 0.2}, "rounds": 3}
    pulled = tiny.run({"name": "l2sgd", "pull": 1.0}, **settings)
    fedavg = tiny.run("fedavg", aggregation={"weights": "uniform"}, **settings)
    for i in range(3):
        kept = tiny.state_of(pulled, i)["personal"]
        floats = {name for name, value in kept.items() if value.is_floating_point()}
        assert len(floats) == len(kept) - 1
        assert all(torch.equal(kept[name], fedavg.server.model[name]) for name in floats)


def test_the_default_is_neither_local_nor_fedavg() -> None:
    losses = {
        name: tiny.run(name, rounds=3).evaluate()["personal/local/loss"]
        for name in ("l2sgd", "local")
    }
    losses["fedavg"] = tiny.run("fedavg", rounds=3).evaluate()["global/local/loss"]
    assert len(set(losses.values())) == 3


def test_local_buffers_are_not_pulled() -> None:
    local = tiny.run({"name": "l2sgd", "pull": 1.0}, rounds=1, aggregation={"buffers": "local"})
    means = [tiny.state_of(local, i)["personal"]["features.middle.running_mean"] for i in range(3)]
    assert not torch.equal(means[0], means[1])
    weights = [tiny.state_of(local, i)["personal"]["features.first.weight"] for i in range(3)]
    assert torch.equal(weights[0], weights[1]) and torch.equal(weights[1], weights[2])


def test_the_coin_s_two_branches_are_unbiased_for_the_objective_s_gradient() -> None:
    """Both branches from the same models: their expected step is -alpha grad F, and alpha = N (1 - p) lr."""
    p, lam, lr = 0.3, 0.8, 0.1
    federation = tiny.run(coin(p, lam), rounds=1, **FULL)
    before = until_a_pull(federation)
    mean = torch.stack(before).mean(0)
    pulls = [after - w for after, w in zip(own(federation), before, strict=True)]
    alpha = 3 * (1 - p) * lr
    while True:  # then a local step, which nothing has to travel for
        models, came = own(federation), federation.step().metrics
        if not came["bytes/down"]:
            break
    assert came["train/steps"] == 3 and came["bytes/up"] == 0
    for w, after, (x, y) in zip(models, own(federation), tiny.tensors(), strict=True):
        tiny.assert_weights(
            {NAME: after - w}, {NAME: -alpha / (3 * (1 - p)) * tiny.softmax_gradient(w, x, y)}
        )
    for w, pull, (x, y) in zip(before, pulls, tiny.tensors(), strict=True):
        step = -lr * tiny.softmax_gradient(w, x, y)  # of the branch that was just measured
        gradient = (tiny.softmax_gradient(w, x, y) + lam * (w - mean)) / 3
        tiny.assert_weights({NAME: (1 - p) * step + p * pull}, {NAME: -alpha * gradient})


def test_models_travel_only_for_the_first_of_several_pulls() -> None:
    federation = tiny.fresh(coin(0.6), model="one-layer")
    size = trees.tensor_bytes(federation.server.model)
    moved, seen = True, set()
    for _ in range(24):
        mean = trees.clone(federation.server.models)
        metrics = federation.step().metrics
        pulled = metrics["bytes/down"] > 0
        collected = pulled and moved
        assert (metrics["bytes/down"], metrics["bytes/up"]) == (
            3 * size * pulled,
            3 * size * collected,
        )
        assert collected or trees.sha256(mean) == tiny.models_sha(federation)
        if pulled:
            tiny.assert_weights(
                {NAME: torch.stack(own(federation)).mean(0)}, federation.server.model
            )
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
    spec = tiny.spec_of(coin(0.5), rounds=8)
    whole = tiny.federation_of(spec)
    for done in range(8):
        checkpoint.save(whole, tmp_path / str(done))
        whole.step()
    for done in range(8):
        resumed = tiny.federation_of(spec)
        checkpoint.restore(resumed, tmp_path / str(done))
        while resumed.rounds_done < 8:
            resumed.step()
        assert resumed.sha256() == whole.sha256(), done


@pytest.mark.parametrize(
    ("options", "local", "path"),
    [
        (
            coin(0.01),
            {"lr": 0.1},
            "experiment.algorithm: found a pull of lr lam (1 - p) / p = 4.95",
        ),
        (coin(0.5), {"epochs": 2}, "experiment.local.epochs: found 2"),
        (coin(0.5), {"optimizer": "adam"}, "experiment.local.optimizer: found adam"),
    ],
)
def test_what_the_coin_does_not_hold_for_is_refused(
    options: dict[str, Any], local: dict[str, Any], path: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        tiny.spec_of(options, local=local)
    assert str(caught.value).startswith(path)
