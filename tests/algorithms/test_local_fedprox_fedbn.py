"""Local training, FedProx and FedBN: closed forms, what they reduce to, and that they differ from FedAvg."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flray import trees
from flray.federation.executor import InlineExecutor
from flray.federation.federation import Federation
from tests.algorithms import helpers as tiny

FULL: dict[str, Any] = {"model": "one-layer", "local": {"batch_size": 100, "epochs": 3}}
W = "classifier.weight"


def test_fedprox_takes_the_steps_of_its_closed_form() -> None:
    """One layer, full batches: w <- w - lr (grad CE(w) + mu (w - w_0)), three times, then the weighted mean."""
    clients = tiny.gaussian_clients()
    federation = tiny.fresh({"name": "fedprox", "mu": 0.7}, clients, **FULL)
    start = federation.server.model[W].clone()
    federation.step()
    mean = torch.zeros_like(start)
    for x, y in tiny.as_tensors(clients):
        w = start.clone()
        for _ in range(3):
            w = w - 0.1 * (tiny.softmax_gradient(w, x, y) + 0.7 * (w - start))
        mean += len(y) / 36 * w
    tiny.close(federation.server.model[W], mean)


def test_fedprox_without_a_pull_is_fedavg() -> None:
    settings = {"model": {"name": "two-layer", "dropout": 0.3}, "rounds": 3}
    assert tiny.digest({"name": "fedprox", "mu": 0}, **settings) == tiny.digest(
        "fedavg", **settings
    )


def test_fedprox_differs_from_fedavg_at_its_default() -> None:
    assert tiny.digest("fedprox", rounds=2) != tiny.digest("fedavg", rounds=2)


def test_fedprox_pull_is_zero_at_the_first_local_step() -> None:
    one_step = {"model": "one-layer", "local": {"batch_size": 100, "epochs": 1}}
    assert tiny.digest({"name": "fedprox", "mu": 1e6}, **one_step) == tiny.digest(
        "fedavg", **one_step
    )


def test_fedprox_keeps_clients_closer_the_stronger_it_pulls() -> None:
    def moved(mu: float) -> float:
        federation = tiny.fresh({"name": "fedprox", "mu": mu}, tiny.gaussian_clients((12,)), **FULL)
        start = federation.server.model[W].clone()
        federation.step()
        return float((federation.server.model[W] - start).norm())

    distances = [moved(mu) for mu in (0.0, 0.1, 1.0, 5.0)]
    assert distances == sorted(distances, reverse=True) and distances[0] > 1.5 * distances[-1]


def personal(federation: Federation, client: int) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = tiny.state_of(federation, client)["personal"]
    return weights


def test_local_is_plain_gradient_descent() -> None:
    clients = tiny.gaussian_clients()
    federation = tiny.fresh("local", clients, **FULL)
    start = federation.server.model[W].clone()
    for _ in range(2):
        federation.step()
    for i, (x, y) in enumerate(tiny.as_tensors(clients)):
        w = start.clone()
        for _ in range(6):
            w = w - 0.1 * tiny.softmax_gradient(w, x, y)
        tiny.close(personal(federation, i)[W], w)
    torch.testing.assert_close(federation.server.model[W], start, rtol=0, atol=0)


def test_local_equals_fedavg_for_a_single_client() -> None:
    alone, federated = (
        tiny.run(name, tiny.gaussian_clients((10,)), rounds=3) for name in ("local", "fedavg")
    )
    assert trees.sha256(personal(alone, 0)) == trees.sha256(federated.server.model)


def test_local_sends_nothing_and_differs_from_fedavg() -> None:
    federation = tiny.run("local", rounds=1)
    metrics = federation.step().metrics
    assert metrics["bytes/up"] == metrics["bytes/down"] == 0
    digests = {trees.sha256(personal(federation, i)) for i in range(3)}
    assert len(digests) == 3 and tiny.digest("fedavg", rounds=2) not in digests


NORM = {
    "features.middle." + name
    for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
}


def test_fedbn_keeps_every_batch_norm_entry_and_nothing_else() -> None:
    federation = tiny.run("fedbn", rounds=2)
    for i in range(3):
        assert set(personal(federation, i)) == NORM
    running = torch.stack(
        [personal(federation, i)["features.middle.running_mean"] for i in range(3)]
    )
    assert float(running.std(0).min()) > 0.01


def test_fedbn_averages_the_rest_with_equal_weights() -> None:
    """One full-batch step: the mean of the clients' first-step classifier biases, by hand from FedAvg's gradients."""
    clients = tiny.gaussian_clients((6, 6, 20))
    settings = {
        "local": {"batch_size": 100, "epochs": 1},
        "model": {"name": "two-layer", "norm": False},
    }
    uniform = tiny.run("fedavg", clients, aggregation={"weights": "uniform"}, **settings)
    assert tiny.digest("fedbn", clients, **settings) == tiny.models_sha(uniform)
    assert tiny.digest("fedbn", clients, **settings) != tiny.digest("fedavg", clients, **settings)


def test_fedbn_without_batch_norm_is_fedavg_and_says_so() -> None:
    model = {"name": "two-layer", "norm": False}
    lines: list[str] = []
    spec = tiny.spec_of("fedbn", model=model)
    federation = Federation(spec, InlineExecutor(spec), lines.append)
    for _ in range(3):
        federation.step()
    assert tiny.models_sha(federation) == tiny.digest(
        "fedavg", rounds=3, model=model, aggregation={"weights": "uniform"}
    )
    assert len(lines) == 1 and "no batch norm" in lines[0]


def test_fedbn_for_a_single_client_is_local() -> None:
    one = tiny.gaussian_clients((11,))
    shared, alone = (tiny.run("fedbn", one, rounds=3), tiny.run("local", one, rounds=3))
    whole = {**shared.server.model, **personal(shared, 0)}
    assert trees.sha256(whole) == trees.sha256(personal(alone, 0))


def test_fedbn_differs_from_fedavg_with_equal_weights() -> None:
    uniform = tiny.run("fedavg", rounds=2, aggregation={"weights": "uniform"})
    shared = {n: v for n, v in tiny.run("fedbn", rounds=2).server.model.items() if n not in NORM}
    assert any(not torch.equal(v, uniform.server.model[n]) for n, v in shared.items())


def test_fedbn_evaluates_a_client_that_never_took_part_with_the_initial_norms() -> None:
    federation = tiny.fresh("fedbn", participation={"clients": 1})
    federation.step()
    absent = next(i for i in range(3) if federation.states[i] is None)
    model = federation.spec.build("two-layer").double()
    model.load_state_dict(
        {n: v for n, v in federation.server.model.items() if n not in NORM}, strict=False
    )
    x, y = tiny.gaussian_clients()[absent]
    right = (model.eval()(torch.from_numpy(x)).argmax(1).numpy() == y).mean()
    found = federation.evaluate()[f"personal/local/accuracy/client/client{absent}"]
    assert found == pytest.approx(float(np.float64(right)))
