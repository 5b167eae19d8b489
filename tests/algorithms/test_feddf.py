"""FedDF: a round at the server by hand, the exchange between peers in one loop, what may and may not change."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flray import trees
from flray.algorithms.common.public_exchange import public_subset
from flray.errors import ConfigError
from flray.federation.federation import Federation
from tests.algorithms import helpers as tiny

CLIENTS = tiny.gaussian_clients((10, 9, 12))
DATA = tiny.as_tensors(CLIENTS)
W = "classifier.weight"
FULL: dict[str, Any] = {"model": "one-layer", "local": {"batch_size": 100}}


def adam(
    w: Tensor, batches: Sequence[tuple[Tensor, Tensor]], lr: float, clip: float, tau: float
) -> Tensor:
    """Return a linear model after Adam with a cosine schedule on KL(teacher || student), all by hand."""
    first, second = torch.zeros_like(w), torch.zeros_like(w)
    for t, (x, teacher) in enumerate(batches):
        gradient = (
            (torch.softmax(x @ w.T / tau, 1) - torch.softmax(teacher / tau, 1)).T @ x / len(x) / tau
        )
        gradient = gradient * min(1.0, clip / (float(gradient.norm()) + 1e-6))
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        rate = lr * (1 + math.cos(math.pi * t / len(batches))) / 2
        w = w - rate * (first / (1 - 0.9 ** (t + 1))) / (
            (second / (1 - 0.999 ** (t + 1))).sqrt() + 1e-8
        )
    return w


@pytest.mark.parametrize(
    "options",
    [{}, {"temperature": 2.0}, {"clip_norm": 0.01, "lr": 0.1}, {"public_size": 7, "batch_size": 4}],
    ids=str,
)
def test_three_rounds_at_the_server_by_hand(options: dict[str, Any]) -> None:
    federation = tiny.fresh(
        {"name": "feddf", "steps": 5, "batch_size": 10, "lr": 0.05, **options}, CLIENTS, **FULL
    )
    algorithm = federation.spec.algorithm
    public = torch.from_numpy(federation.spec.data.public)
    hp = algorithm.hp
    used = public[public_subset(0, len(public), hp.public_size)]
    assert len(used) == options.get("public_size", 24)
    w = federation.server.model[W].clone()
    for _ in range(3):
        batches = list(algorithm.batches(federation.server, len(used)))
        assert [len(b) for b in batches] == (
            [4, 3] * 3 if "public_size" in options else [10, 10, 4] * 2
        )[:5]
        federation.step()
        trained = [w - 0.1 * tiny.softmax_gradient(w, x, y) for x, y in DATA]
        teacher = torch.stack([used @ one.T for one in trained]).mean(0)
        w = sum(
            (len(y) / 31 * one for one, (_, y) in zip(trained, DATA, strict=True)), torch.zeros(())
        )
        w = adam(w, [(used[b], teacher[b]) for b in batches], hp.lr, hp.clip_norm, hp.temperature)
        tiny.close(federation.server.model[W], w)


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 2.0}, {"public_optimizer": "fresh"}, {"average": True}], ids=str
)
def test_stages_between_peers_compute_what_one_loop_does(options: dict[str, Any]) -> None:
    federation = tiny.fresh(
        {"name": "feddf", "mode": "peer", "public_batch_size": 10, **options},
        CLIENTS,
        model="one-layer",
        local={"batch_size": 100, "momentum": 0.5},
    )
    algorithm, public = federation.spec.algorithm, torch.from_numpy(federation.spec.data.public)
    tau, fresh = options.get("temperature", 1.0), "public_optimizer" in options
    weights = [federation.server.model[W].clone() for _ in CLIENTS]
    for number in range(3):
        federation.step()
        velocity = [torch.zeros_like(w) for w in weights]
        for positions in algorithm.public_order(0, number, len(public)):
            x = public[positions]
            mean = torch.softmax(torch.stack([x @ w.T for w in weights]).mean(0) / tau, 1)
            for i, w in enumerate(weights):
                gradient = (torch.softmax(x @ w.T / tau, 1) - mean).T @ x / len(x) / tau
                velocity[i] = gradient if fresh else 0.5 * velocity[i] + gradient
            weights = [w - 0.1 * v for w, v in zip(weights, velocity, strict=True)]
        if options.get("average"):
            weights = [torch.stack(weights).mean(0)] * 3
        weights = [
            w - 0.1 * tiny.softmax_gradient(w, a, b)
            for w, (a, b) in zip(weights, DATA, strict=True)
        ]
        for i, w in enumerate(weights):
            tiny.close(tiny.state_of(federation, i)["personal"][W], w)


NORMED: dict[str, Any] = {"model": {"name": "two-layer", "dropout": 0.3}, "rounds": 2}


def test_without_steps_it_is_fedavg_and_with_them_it_is_not() -> None:
    plain = tiny.digest("fedavg", **NORMED)
    assert tiny.digest({"name": "feddf", "steps": 0}, **NORMED) == plain
    assert tiny.digest({"name": "feddf", "steps": 3}, **NORMED) != plain


def test_distillation_leaves_statistics_and_the_clients_models_alone() -> None:
    one, other = (
        tiny.run({"name": "feddf", "steps": steps}, **{**NORMED, "rounds": 1}) for steps in (0, 3)
    )
    before, after = one.server.model, other.server.model
    for name in before:
        statistic = "running" in name or "tracked" in name
        assert torch.equal(before[name], after[name]) == statistic, name
    assert all(handle is None for handle in other.states) and "ensemble" not in other.server.state


def test_alone_the_student_begins_as_its_teacher() -> None:
    """One step: of more, Adam would make rounding noise grow."""
    settings: dict[str, Any] = {**NORMED, "rounds": 1}
    alone = tiny.run({"name": "feddf", "steps": 1}, tiny.gaussian_clients((12,)), **settings)
    plain = tiny.run("fedavg", tiny.gaussian_clients((12,)), **settings)
    for name, w in plain.server.model.items():
        torch.testing.assert_close(alone.server.model[name], w, rtol=1e-6, atol=1e-9)
    assert abs(alone.server.metrics["feddf/loss/two-layer"]) < 1e-12


def test_every_architecture_gets_a_student_of_all_clients() -> None:
    models = {"client1": {"name": "two-layer", "width": 7, "norm": False}}

    def run(steps: int) -> Federation:
        return tiny.run({"name": "feddf", "steps": steps}, models=models, **{**NORMED, "rounds": 1})

    plain, distilled = run(0), run(5)
    assert len(distilled.server.models) == 2
    for key in distilled.server.models:
        assert trees.sha256(plain.server.models[key]) != trees.sha256(distilled.server.models[key])
        assert distilled.server.metrics[f"feddf/loss/{key}"] > 0


def test_only_a_server_that_trains_has_models_and_public_samples() -> None:
    federation = tiny.fresh("feddf")
    trains = federation.server
    assert trains.model_for is not None and trains.public is not None and len(trains.public) == 24
    assert np.shares_memory(trains.public._x.numpy(), federation.spec.data.public), (
        "the samples were copied"
    )
    for other in ("fedavg", {"name": "feddf", "mode": "peer"}):
        server = tiny.fresh(other).server
        assert server.model_for is None and server.public is None


def test_statistics_that_stay_at_the_clients_are_refused() -> None:
    with pytest.raises(ConfigError, match="buffers"):
        tiny.spec_of("feddf", aggregation={"buffers": "local"})
    tiny.spec_of({"name": "feddf", "mode": "peer"}, aggregation={"buffers": "local"})
