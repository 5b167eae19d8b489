"""Steps of the server and control variates: FedOpt's four forms and SCAFFOLD, by hand and at neutral values."""

import pytest
import torch
from torch import Tensor

from flray import functional
from tests.algorithms import helpers as tiny
from tests.algorithms.helpers import V

STEP = tiny.full(lr=0.3)


def rule(form: str, m: Tensor, v: Tensor, delta: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    if form == "avgm":
        m = 0.9 * m + delta
        return m, v, 1.0 * m
    beta1 = 0.0 if form == "adagrad" else 0.9
    m = beta1 * m + (1 - beta1) * delta
    v = {
        "adagrad": v + delta**2,
        "adam": 0.99 * v + 0.01 * delta**2,
        "yogi": v - 0.01 * delta**2 * torch.sign(v - delta**2),
    }[form]
    return m, v, 0.1 * m / (v.sqrt() + 1e-3)


@pytest.mark.parametrize("form", ["avgm", "adagrad", "adam", "yogi"])
def test_fedopt_three_rounds_by_hand_at_the_defaults(form: str) -> None:
    """FedAvg's mean update of one full-batch step is what the server's optimiser is given; buffers are averaged."""
    federation = tiny.fresh(f"fed{form}", **STEP)
    general = tiny.run({"name": "fedopt", "server_optimizer": form}, rounds=3, **STEP)
    w = federation.server.model[V].clone()
    m, v = torch.zeros_like(w), torch.full_like(w, 1e-6)
    for _ in range(3):
        federation.step()
        steps = [{V: -0.3 * tiny.softmax_gradient(w, x, y)} for x, y in tiny.tensors()]
        m, v, step = rule(form, m, v, tiny.mean_of(steps, tiny.SIZES)[V])
        w = w + step
        tiny.close(federation.server.model[V], w)
    assert tiny.models_sha(general) == tiny.models_sha(federation)
    found, expected = tiny.run(f"fed{form}").server.model, tiny.run("fedavg").server.model
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert torch.equal(found[f"features.middle.{name}"], expected[f"features.middle.{name}"])


@pytest.mark.parametrize("form", ["fedavgm", "fedadagrad", "fedadam", "fedyogi"])
def test_fedopt_each_form_approaches_fedavg(form: str) -> None:
    """FedAvgM without momentum is FedAvg; in the others step and tau grow together."""
    options, rtol = {"server_lr": 1e6, "tau": 1e6, "beta1": 0.0, "initial": 0.0}, 1e-5
    if form == "fedavgm":
        options, rtol = {"server_lr": 1.0, "beta1": 0.0}, 1e-12
    found, expected = (tiny.run(a, rounds=1) for a in ({"name": form, **options}, "fedavg"))
    tiny.close(found.server.model, expected.server.model, rtol=rtol, atol=rtol / 10)


def test_fedopt_momentum_moves_the_weights_by_its_rate() -> None:
    update, m = {V: torch.tensor([2.0])}, {V: torch.tensor([1.0])}
    step, m = functional.momentum_step(update, m, 0.3, 0.5)
    tiny.close([m[V], step[V]], [torch.tensor([2.5]), torch.tensor([0.75])])


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("server_lr", [1.0, 0.5])
def test_scaffold_three_rounds_by_hand_of_some_clients(option: str, server_lr: float) -> None:
    options = {"name": "scaffold", "option": option, "server_lr": server_lr}
    federation = tiny.fresh(options, participation={"clients": 2}, **tiny.full(epochs=4))
    w, data = federation.server.model[V].clone(), tiny.tensors()
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
        tiny.close(federation.server.model[V], w)
        tiny.close(federation.server.state["c"][V], c)
        for i in federation.server.cohort:
            tiny.close(tiny.state_of(federation, i)["c"][V], own[i])


@pytest.mark.parametrize(
    ("steps", "participation"), [(6, {}), (3, {"stragglers": 1.0, "straggler_work": 0.5})]
)
def test_scaffold_counts_steps_and_not_epochs(steps: int, participation: dict[str, float]) -> None:
    """Option II after round 1 is the mean of the gradients seen: the displacement over (optimiser steps x lr)."""
    one, batches = tiny.gaussian_clients((12,)), {"batch_size": 4, "epochs": 2, "lr": 0.05}
    federation = tiny.run("scaffold", one, participation=participation, **tiny.full(**batches))
    expected = (tiny.start(federation)[V] - federation.server.model[V]) / (steps * 0.05)
    tiny.close(tiny.state_of(federation, 0)["c"][V], expected)


def test_scaffold_uses_the_round_s_decayed_learning_rate() -> None:
    one = tiny.gaussian_clients((12,))
    federation = tiny.run("scaffold", one, **tiny.full(lr=0.2, lr_decay=0.5))
    start = federation.server.model[V].clone()
    federation.step()
    ((x, y),) = tiny.tensors((12,))
    tiny.close(tiny.state_of(federation, 0)["c"][V], tiny.softmax_gradient(start, x, y))


def test_scaffold_its_first_round_is_uniform_fedavg_and_alone_all_are_sequential_sgd() -> None:
    uniform = tiny.digest("fedavg", aggregation={"weights": "uniform"})
    assert tiny.digest("scaffold") == uniform
    one = tiny.gaussian_clients((10,))
    found, expected = (tiny.run(name, one, rounds=3) for name in ("scaffold", "fedavg"))
    tiny.close(found.server.model, expected.server.model)
