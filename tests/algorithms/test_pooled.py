"""Pooled training: gradient descent on everybody's samples, FedAvg with one client who has them, and not FedAvg."""

from __future__ import annotations

from typing import Any

import pytest
from torch import nn

from flray.errors import ConfigError
from tests.algorithms import helpers as tiny

CLIENTS = tiny.gaussian_clients((12, 9, 15), skew=True)


def test_equation() -> None:
    """Two epochs of one batch are two steps of gradient descent on the union of the samples."""
    settings: dict[str, Any] = {
        "model": "one-layer",
        "local": {"batch_size": 100, "epochs": 2, "lr": 0.3},
    }
    weights = dict(tiny.fresh("pooled", CLIENTS, **settings).server.model)
    parts = tiny.as_tensors(CLIENTS)
    for _ in range(2):
        weights = tiny.gradient_step(
            weights,
            lambda w: (
                sum(
                    nn.functional.cross_entropy(x @ w["classifier.weight"].T, y, reduction="sum")
                    for x, y in parts
                )
                / 36
            ),
            lr=0.3,
        )
    tiny.assert_weights(tiny.run("pooled", CLIENTS, **settings).server.model, weights)


@pytest.mark.parametrize("settings", [{}, {"local": {"steps": 7}}, {"aggregation": {"block": 2}}])
def test_reduction_fedavg_with_one_client_who_holds_everything(settings: dict[str, Any]) -> None:
    """Also beside a client that is kept out of training: nothing of it is pooled."""
    settings = {"model": {"name": "two-layer", "dropout": 0.2}, **settings}
    one = {"partition": {"name": "iid", "clients": 1}}
    pooled = tiny.run("pooled", CLIENTS, rounds=3, **settings)
    together = tiny.run("fedavg", CLIENTS, rounds=3, **one, **settings)
    assert tiny.models_sha(pooled) == tiny.models_sha(together)
    metrics = pooled.step().metrics
    assert metrics["global/common/loss"] == pytest.approx(
        together.step().metrics["global/common/loss"], abs=1e-12
    )
    assert sum("global/local/accuracy/client/" in name for name in metrics) == 3
    more = tiny.gaussian_clients((12, 9, 15, 8))
    kept_out = {"participation": {"unseen": ["client3"]}}
    assert tiny.digest("pooled", more, rounds=2, **settings, **kept_out) == (
        tiny.digest("fedavg", more[:3], rounds=2, **one, **settings)
    )


def test_difference() -> None:
    assert tiny.digest("pooled", CLIENTS) != tiny.digest("fedavg", CLIENTS)


def test_it_takes_everybody() -> None:
    with pytest.raises(ConfigError, match="participation: found 2 of 3; pooled needs all clients"):
        tiny.spec_of("pooled", CLIENTS, participation={"clients": 2})
