"""Pooled training: gradient descent on everybody's samples, and FedAvg with one client who has them."""

from typing import Any

import pytest
import torch

from tests.algorithms import helpers as tiny

CLIENTS = tiny.gaussian_clients((12, 9, 15), skew=True)


def test_equation() -> None:
    """Two epochs of one batch are two steps of gradient descent on the union of the samples."""
    federation = tiny.run("pooled", CLIENTS, **tiny.full(epochs=2, lr=0.3))
    w = tiny.start(federation)[tiny.V]
    x, y = (torch.cat(parts) for parts in zip(*tiny.as_tensors(CLIENTS), strict=True))
    for _ in range(2):
        w = w - 0.3 * tiny.softmax_gradient(w, x, y)
    tiny.close(federation.server.model, {tiny.V: w})


@pytest.mark.parametrize("settings", [{}, {"local": {"steps": 7}}, {"aggregation": {"block": 2}}])
def test_reduction_fedavg_with_one_client_who_holds_everything(settings: dict[str, Any]) -> None:
    """Also beside a client that is kept out of training: nothing of it is pooled."""
    settings = {"model": tiny.DROPOUT, "rounds": 2, **settings}
    one = {"partition": {"name": "iid", "clients": 1}}
    pooled = tiny.run("pooled", CLIENTS, **settings)
    together = tiny.run("fedavg", CLIENTS, **one, **settings)
    assert tiny.models_sha(pooled) == tiny.models_sha(together)
    metrics, loss = pooled.step().metrics, "global/common/loss"
    assert metrics[loss] == pytest.approx(together.step().metrics[loss], abs=1e-12)
    assert sum("global/local/accuracy/client/" in name for name in metrics) == 3
    more, out = tiny.gaussian_clients((12, 9, 15, 8)), {"unseen": ["client3"]}
    found = tiny.digest("pooled", more, participation=out, **settings)
    assert found == tiny.digest("fedavg", more[:3], **one, **settings)
