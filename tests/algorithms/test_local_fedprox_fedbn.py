"""Local training, FedProx and FedBN: closed forms, what they reduce to, and that they differ from FedAvg."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from flray import trees
from flray.federation.executor import InlineExecutor
from flray.federation.federation import Federation
from tests.algorithms.helpers import (
    as_tensors,
    federation_of,
    gaussian_clients,
    models_sha,
    run_federation,
    softmax_gradient,
    spec_of,
    state_of,
)

FULL: dict[str, Any] = {"model": "one-layer", "local": {"batch_size": 100, "epochs": 3}}
W = "classifier.weight"


def test_fedprox_takes_the_steps_of_its_closed_form() -> None:
    """One layer, full batches: w <- w - lr (grad CE(w) + mu (w - w_0)), three times, then the weighted mean."""
    clients = gaussian_clients()
    federation = federation_of(spec_of({"name": "fedprox", "mu": 0.7}, clients, **FULL))
    start = federation.server.model[W].clone()
    federation.step()
    mean = torch.zeros_like(start)
    for x, y in as_tensors(clients):
        w = start.clone()
        for _ in range(3):
            w = w - 0.1 * (softmax_gradient(w, x, y) + 0.7 * (w - start))
        mean += len(y) / 36 * w
    torch.testing.assert_close(federation.server.model[W], mean, rtol=1e-12, atol=1e-13)


def test_fedprox_without_a_pull_is_fedavg() -> None:
    settings = {"model": {"name": "two-layer", "dropout": 0.3}, "rounds": 3}
    assert models_sha(run_federation({"name": "fedprox", "mu": 0}, **settings)) == models_sha(
        run_federation("fedavg", **settings)
    )


def test_fedprox_differs_from_fedavg_at_its_default() -> None:
    assert models_sha(run_federation("fedprox", rounds=2)) != models_sha(
        run_federation("fedavg", rounds=2)
    )


def test_fedprox_pull_is_zero_at_the_first_local_step() -> None:
    one_step = {"model": "one-layer", "local": {"batch_size": 100, "epochs": 1}}
    assert models_sha(run_federation({"name": "fedprox", "mu": 1e6}, **one_step)) == models_sha(
        run_federation("fedavg", **one_step)
    )


def test_fedprox_keeps_clients_closer_the_stronger_it_pulls() -> None:
    def moved(mu: float) -> float:
        federation = federation_of(
            spec_of({"name": "fedprox", "mu": mu}, gaussian_clients((12,)), **FULL)
        )
        start = federation.server.model[W].clone()
        federation.step()
        return float((federation.server.model[W] - start).norm())

    distances = [moved(mu) for mu in (0.0, 0.1, 1.0, 5.0)]
    assert distances == sorted(distances, reverse=True) and distances[0] > 1.5 * distances[-1]


def personal(federation: Federation, client: int) -> dict[str, torch.Tensor]:
    weights: dict[str, torch.Tensor] = state_of(federation, client)["personal"]
    return weights


def test_local_is_plain_gradient_descent() -> None:
    clients = gaussian_clients()
    federation = federation_of(spec_of("local", clients, **FULL))
    start = federation.server.model[W].clone()
    for _ in range(2):
        federation.step()
    for i, (x, y) in enumerate(as_tensors(clients)):
        w = start.clone()
        for _ in range(6):
            w = w - 0.1 * softmax_gradient(w, x, y)
        torch.testing.assert_close(personal(federation, i)[W], w, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(federation.server.model[W], start, rtol=0, atol=0)


def test_local_equals_fedavg_for_a_single_client() -> None:
    alone, federated = (
        run_federation(name, gaussian_clients((10,)), rounds=3) for name in ("local", "fedavg")
    )
    assert trees.sha256(personal(alone, 0)) == trees.sha256(federated.server.model)


def test_local_sends_nothing_and_differs_from_fedavg() -> None:
    federation = run_federation("local", rounds=1)
    metrics = federation.step().metrics
    assert metrics["bytes/up"] == metrics["bytes/down"] == 0
    digests = {trees.sha256(personal(federation, i)) for i in range(3)}
    assert len(digests) == 3 and models_sha(run_federation("fedavg", rounds=2)) not in digests


NORM = {
    "features.middle." + name
    for name in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
}


def test_fedbn_keeps_every_batch_norm_entry_and_nothing_else() -> None:
    federation = run_federation("fedbn", rounds=2)
    for i in range(3):
        assert set(personal(federation, i)) == NORM
    running = torch.stack(
        [personal(federation, i)["features.middle.running_mean"] for i in range(3)]
    )
    assert float(running.std(0).min()) > 0.01


def test_fedbn_averages_the_rest_with_equal_weights() -> None:
    """One full-batch step: the mean of the clients' first-step classifier biases, by hand from FedAvg's gradients."""
    clients = gaussian_clients((6, 6, 20))
    settings = {
        "local": {"batch_size": 100, "epochs": 1},
        "model": {"name": "two-layer", "norm": False},
    }
    uniform = run_federation("fedavg", clients, aggregation={"weights": "uniform"}, **settings)
    assert models_sha(run_federation("fedbn", clients, **settings)) == models_sha(uniform)
    assert models_sha(run_federation("fedbn", clients, **settings)) != models_sha(
        run_federation("fedavg", clients, **settings)
    )


def test_fedbn_without_batch_norm_is_fedavg_and_says_so() -> None:
    model = {"name": "two-layer", "norm": False}
    lines: list[str] = []
    spec = spec_of("fedbn", model=model)
    federation = Federation(spec, InlineExecutor(spec), lines.append)
    for _ in range(3):
        federation.step()
    assert models_sha(federation) == models_sha(
        run_federation("fedavg", rounds=3, model=model, aggregation={"weights": "uniform"})
    )
    assert len(lines) == 1 and "no batch norm" in lines[0]


def test_fedbn_for_a_single_client_is_local() -> None:
    one = gaussian_clients((11,))
    shared, alone = run_federation("fedbn", one, rounds=3), run_federation("local", one, rounds=3)
    whole = {**shared.server.model, **personal(shared, 0)}
    assert trees.sha256(whole) == trees.sha256(personal(alone, 0))


def test_fedbn_differs_from_fedavg_with_equal_weights() -> None:
    uniform = run_federation("fedavg", rounds=2, aggregation={"weights": "uniform"})
    shared = {
        n: v for n, v in run_federation("fedbn", rounds=2).server.model.items() if n not in NORM
    }
    assert any(not torch.equal(v, uniform.server.model[n]) for n, v in shared.items())


def test_fedbn_evaluates_a_client_that_never_took_part_with_the_initial_norms() -> None:
    federation = federation_of(spec_of("fedbn", participation={"clients": 1}))
    federation.step()
    absent = next(i for i in range(3) if federation.states[i] is None)
    model = federation.spec.build("two-layer").double()
    model.load_state_dict(
        {n: v for n, v in federation.server.model.items() if n not in NORM}, strict=False
    )
    x, y = gaussian_clients()[absent]
    right = (model.eval()(torch.from_numpy(x)).argmax(1).numpy() == y).mean()
    found = federation.evaluate()[f"personal/local/accuracy/client/client{absent}"]
    assert found == pytest.approx(float(np.float64(right)))
