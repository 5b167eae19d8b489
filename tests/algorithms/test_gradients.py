from typing import Any

import torch
import torch.nn.functional as F

from flray import registry, trees
from flray.algorithms.base import Algorithm
from flray.algorithms.client import Client
from flray.algorithms.common.gradients import gradient_at
from tests.algorithms import helpers as tiny

SEEN: list[dict[str, Any]] = []


@registry.register_algorithm("looking-aside")
class LookingAside(Algorithm):
    """FedAvg that looks at the gradient at twice its parameters before each step."""

    def loss(self, client: Client, batch: Any) -> torch.Tensor:
        double = {name: 2 * w.detach() for name, w in client.parameters.items()}
        buffers = client.snapshot(frozenset(client.resident.entries) - client.parameters.keys())
        seen = {"x": batch.x, "y": batch.y, "double": double, "before": trees.clone(buffers)}
        gradient, loss = gradient_at(client, batch, double, buffers)
        SEEN.append({**seen, "gradient": gradient, "loss": loss, "buffers": buffers})
        return super().loss(client, batch)


def test_the_gradient_is_that_at_the_given_parameters() -> None:
    SEEN.clear()
    tiny.run("looking-aside", model={"name": "two-layer", "norm": False})
    for seen in SEEN:
        leaves = {name: w.clone().requires_grad_() for name, w in seen["double"].items()}
        hidden = F.relu(seen["x"] @ leaves[tiny.W].T + leaves["features.first.bias"])
        logits = hidden @ leaves[tiny.V].T + leaves["classifier.bias"]
        loss = F.cross_entropy(logits, seen["y"])
        gradient = torch.autograd.grad(loss, list(leaves.values()))
        tiny.close(seen["gradient"], dict(zip(leaves, gradient, strict=True)))
        tiny.close(seen["loss"], loss.detach())
    assert len(SEEN) == 10


def test_looking_aside_moves_the_given_buffers_and_nothing_else() -> None:
    """Neither the model's statistics nor the units that dropout leaves out in the pass that follows."""
    SEEN.clear()
    settings: dict[str, Any] = {"model": {"name": "two-layer", "dropout": 0.5}, "rounds": 2}
    assert tiny.digest("looking-aside", **settings) == tiny.digest("fedavg", **settings)
    for seen in SEEN:
        mean = (seen["x"] @ seen["double"][tiny.W].T).mean(0)
        expected = 0.9 * seen["before"]["features.middle.running_mean"] + 0.1 * mean
        tiny.close(seen["buffers"], {"features.middle.running_mean": expected})
