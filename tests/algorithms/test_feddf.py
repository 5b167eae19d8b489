"""FedDF: a round at the server by hand, the exchange between peers in one loop, what may and may not change."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from flray import trees
from flray.algorithms.common.public_exchange import public_subset
from tests.algorithms import helpers as tiny
from tests.algorithms.helpers import V

CLIENTS = tiny.gaussian_clients((10, 9, 12))
DATA = tiny.as_tensors(CLIENTS)


def adam(
    w: Tensor, batches: Sequence[tuple[Tensor, Tensor]], lr: float, clip: float, tau: float
) -> Tensor:
    """Return a linear model after Adam with a cosine schedule on KL(teacher || student), all by hand."""
    first, second = torch.zeros_like(w), torch.zeros_like(w)
    for t, (x, teacher) in enumerate(batches):
        error = torch.softmax(x @ w.T / tau, 1) - torch.softmax(teacher / tau, 1)
        gradient = error.T @ x / len(x) / tau
        gradient = gradient * min(1.0, clip / (float(gradient.norm()) + 1e-6))
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        rate = lr * (1 + math.cos(math.pi * t / len(batches))) / 2
        length = (second / (1 - 0.999 ** (t + 1))).sqrt() + 1e-8
        w = w - rate * (first / (1 - 0.9 ** (t + 1))) / length
    return w


@pytest.mark.parametrize(
    ("options", "sizes"),
    [
        ({}, [10, 10, 4, 10, 10]),
        ({"temperature": 2.0}, [10, 10, 4, 10, 10]),
        ({"clip_norm": 0.01, "lr": 0.1}, [10, 10, 4, 10, 10]),
        ({"public_size": 7, "batch_size": 4}, [4, 3, 4, 3, 4]),
    ],
    ids=str,
)
def test_three_rounds_at_the_server_by_hand(options: dict[str, Any], sizes: list[int]) -> None:
    options = {"name": "feddf", "steps": 5, "batch_size": 10, "lr": 0.05, **options}
    federation = tiny.fresh(options, CLIENTS, **tiny.full())
    public, hp = torch.from_numpy(federation.spec.data.public), federation.spec.algorithm.hp
    used = public[public_subset(0, len(public), hp.public_size)]
    assert len(used) == options.get("public_size", 24)
    w = federation.server.model[V].clone()
    for _ in range(3):
        batches = list(federation.spec.algorithm.batches(federation.server, len(used)))
        assert [len(b) for b in batches] == sizes
        federation.step()
        trained = [w - 0.1 * tiny.softmax_gradient(w, x, y) for x, y in DATA]
        teacher = torch.stack([used @ one.T for one in trained]).mean(0)
        w = tiny.mean_of([{V: one} for one in trained], (10, 9, 12))[V]
        w = adam(w, [(used[b], teacher[b]) for b in batches], hp.lr, hp.clip_norm, hp.temperature)
        tiny.close(federation.server.model[V], w, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize(
    "options", [{}, {"temperature": 2.0}, {"public_optimizer": "fresh"}, {"average": True}], ids=str
)
def test_stages_between_peers_compute_what_one_loop_does(options: dict[str, Any]) -> None:
    peers = {"name": "feddf", "mode": "peer", "public_batch_size": 10, **options}
    federation = tiny.fresh(peers, CLIENTS, **tiny.full(momentum=0.5))
    algorithm, public = federation.spec.algorithm, torch.from_numpy(federation.spec.data.public)
    tau, fresh = options.get("temperature", 1.0), "public_optimizer" in options
    weights = [federation.server.model[V].clone() for _ in CLIENTS]
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
        pairs = zip(weights, DATA, strict=True)
        weights = [w - 0.1 * tiny.softmax_gradient(w, a, b) for w, (a, b) in pairs]
        for i, w in enumerate(weights):
            tiny.close(tiny.kept(federation, i)[V], w)


def test_distillation_leaves_statistics_and_the_clients_models_alone() -> None:
    runs = [tiny.run({"name": "feddf", "steps": n}, model=tiny.DROPOUT) for n in (0, 3)]
    before, after = (run.server.model for run in runs)
    for name in before:
        statistic = "running" in name or "tracked" in name
        assert torch.equal(before[name], after[name]) == statistic, name
    assert all(handle is None for handle in runs[1].states)
    assert "ensemble" not in runs[1].server.state


def test_every_architecture_gets_a_student_of_all_clients() -> None:
    settings = {"models": tiny.OTHER, "model": tiny.DROPOUT}
    plain, distilled = (tiny.run({"name": "feddf", "steps": n}, **settings).server for n in (0, 5))
    assert len(distilled.models) == 2
    for key, model in distilled.models.items():
        assert trees.sha256(plain.models[key]) != trees.sha256(model)
        assert distilled.metrics[f"feddf/loss/{key}"] > 0


def test_only_a_server_that_trains_has_models_public_samples_and_all_statistics() -> None:
    federation = tiny.fresh("feddf")
    trains, peer = federation.server, {"name": "feddf", "mode": "peer"}
    assert trains.model_for is not None and trains.public is not None and len(trains.public) == 24
    shared = np.shares_memory(trains.public._x.numpy(), federation.spec.data.public)
    assert shared, "the samples were copied"
    for other in ("fedavg", peer):
        server = tiny.fresh(other).server
        assert server.model_for is None and server.public is None
    tiny.spec_of(peer, aggregation={"buffers": "local"})
