"""SCAFFOLD: its update by hand, its identities, and what it refuses."""

import pytest
import torch

from tests.algorithms import helpers as tiny
from tests.algorithms.helpers import V as W


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("server_lr", [1.0, 0.5])
def test_three_rounds_by_hand_with_partial_participation(option: str, server_lr: float) -> None:
    options = {"name": "scaffold", "option": option, "server_lr": server_lr}
    federation = tiny.fresh(options, participation={"clients": 2}, **tiny.full(epochs=4))
    w, data = federation.server.model[W].clone(), tiny.tensors()
    c, own = torch.zeros_like(w), [torch.zeros_like(w) for _ in data]
    for _ in range(3):
        federation.step()
        moves, changes = [], []
        for i in federation.server.cohort:
            theta = w.clone()
            for _ in range(4):
                theta = theta - 0.1 * (tiny.softmax_gradient(theta, *data[i]) + c - own[i])
            moved = own[i] - c + (w - theta) / (4 * 0.1)
            new = tiny.softmax_gradient(w, *data[i]) if option == "I" else moved
            moves.append(theta - w)
            changes.append(new - own[i])
            own[i] = new
        w = w + server_lr * torch.stack(moves).mean(0)  # uniform, over the cohort
        c = c + torch.stack(changes).sum(0) / 3  # over all clients, not the cohort
        tiny.close(federation.server.model[W], w)
        tiny.close(federation.server.state["c"][W], c)
        for i in federation.server.cohort:
            tiny.close(tiny.state_of(federation, i)["c"][W], own[i])


@pytest.mark.parametrize(
    ("steps", "participation"), [(6, {}), (3, {"stragglers": 1.0, "straggler_work": 0.5})]
)
def test_counts_steps_and_not_epochs(steps: int, participation: dict[str, float]) -> None:
    """Option II after round 1 is the mean of the gradients seen: the displacement over (optimiser steps x lr)."""
    one, batches = tiny.gaussian_clients((12,)), {"batch_size": 4, "epochs": 2, "lr": 0.05}
    federation = tiny.run("scaffold", one, participation=participation, **tiny.full(**batches))
    expected = (tiny.start(federation)[W] - federation.server.model[W]) / (steps * 0.05)
    tiny.close(tiny.state_of(federation, 0)["c"][W], expected)


def test_uses_the_round_s_decayed_learning_rate() -> None:
    one = tiny.gaussian_clients((12,))
    federation = tiny.run("scaffold", one, **tiny.full(lr=0.2, lr_decay=0.5))
    start = federation.server.model[W].clone()
    federation.step()
    ((x, y),) = tiny.tensors((12,))
    tiny.close(tiny.state_of(federation, 0)["c"][W], tiny.softmax_gradient(start, x, y))


def test_its_first_round_is_uniform_fedavg_and_alone_all_are_sequential_sgd() -> None:
    uniform = tiny.digest("fedavg", aggregation={"weights": "uniform"})
    assert tiny.digest("scaffold") == uniform
    one = tiny.gaussian_clients((10,))
    found, expected = (tiny.run(name, one, rounds=3) for name in ("scaffold", "fedavg"))
    tiny.close(found.server.model, expected.server.model)
