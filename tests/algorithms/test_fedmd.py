"""FedMD: digest and revisit against one loop, one consensus per round, identities."""

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flray import registry
from flray.models import SplitModel
from tests.algorithms import helpers as tiny
from tests.algorithms.helpers import V

CLIENTS = tiny.gaussian_clients((10, 9, 12))
DATA = tiny.as_tensors(CLIENTS)


def digested(w: Tensor, x: Tensor, consensus: Tensor) -> Tensor:
    """Return one step of 0.1 on the mean absolute difference, its gradient by hand: sign^T x / (B C)."""
    sign = torch.sign(x @ w.T - consensus)
    return w - 0.1 * sign.T @ x / sign.numel()


@pytest.mark.parametrize(
    "options", [{}, {"digest_epochs": 2}, {"public_size": 10}, {"average": True}], ids=str
)
def test_three_rounds_by_hand(options: dict[str, Any]) -> None:
    federation = tiny.fresh({"name": "fedmd", **options}, CLIENTS, **tiny.full())
    algorithm, public = federation.spec.algorithm, torch.from_numpy(federation.spec.data.public)
    weights = [federation.server.model[V].clone() for _ in CLIENTS]
    seen: set[int] = set()
    for number in range(3):
        federation.step()
        order = algorithm.public_order(0, number, len(public))[0]
        x = public[order]
        assert len(x) == options.get("public_size", 24)
        seen |= set(order.tolist())
        consensus = torch.stack([x @ w.T for w in weights]).mean(0)
        for _ in range(options.get("digest_epochs", 1)):
            weights = [digested(w, x, consensus) for w in weights]
        if options.get("average"):
            weights = [torch.stack(weights).mean(0)] * 3
        pairs = zip(weights, DATA, strict=True)
        weights = [w - 0.1 * tiny.softmax_gradient(w, a, b) for w, (a, b) in pairs]
        for i, w in enumerate(weights):
            tiny.close(tiny.kept(federation, i)[V], w)
    assert len(seen) > 10, "every round has another subset"


@registry.register_model("few-digits")
def few_digits(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """One layer of eighths."""
    layer = nn.Linear(shape[0], num_classes, bias=False)
    with torch.no_grad():
        layer.weight.mul_(8).round_().div_(8)
    return SplitModel(nn.Flatten(), layer)


@pytest.mark.parametrize("clients", [1, 2])
def test_batches_of_the_digest_meet_their_own_rows_of_the_consensus(clients: int) -> None:
    """With scores in eval mode and neither norm nor dropout, equals are their own consensus: nothing moves.

    The numbers have few digits, so that scores are exact however many rows are multiplied at once:
    the loss pulls at any difference with its whole strength, be it a rounding error's.
    """
    x, y = tiny.gaussian_clients((12,))[0]
    options = {"name": "fedmd", "digest_batch_size": 5, "digest_epochs": 2}
    equal = [(x.round().astype(np.float32), y)] * clients
    federation = tiny.run(options, equal, model="few-digits", local={"epochs": 0}, rounds=2)
    for i in range(clients):
        assert torch.equal(tiny.kept(federation, i)[V], federation.server.model[V])


def test_participants_may_have_different_networks_and_the_digest_is_no_local_training() -> None:
    federation, local = (tiny.run(name, models=tiny.OTHER) for name in ("fedmd", "local"))
    assert len(federation.server.models) == 2
    metrics = federation.step().metrics
    assert metrics["train/public_loss"] > 0
    assert metrics["train/steps"] == local.step().metrics["train/steps"]
