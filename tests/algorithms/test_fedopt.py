"""FedOpt's four forms against their update rules by hand, at their neutral values, and with buffers."""

import pytest
import torch
from torch import Tensor

from flray import functional
from tests.algorithms import helpers as tiny
from tests.algorithms.helpers import V as W

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
def test_three_rounds_by_hand_at_the_defaults(form: str) -> None:
    """FedAvg's mean update of one full-batch step is what the server's optimiser is given; buffers are averaged."""
    federation = tiny.fresh(f"fed{form}", **STEP)
    general = tiny.run({"name": "fedopt", "server_optimizer": form}, rounds=3, **STEP)
    w = federation.server.model[W].clone()
    m, v = torch.zeros_like(w), torch.full_like(w, 1e-6)
    for _ in range(3):
        federation.step()
        steps = [{W: -0.3 * tiny.softmax_gradient(w, x, y)} for x, y in tiny.tensors()]
        m, v, step = rule(form, m, v, tiny.mean_of(steps, tiny.SIZES)[W])
        w = w + step
        tiny.close(federation.server.model[W], w)
    assert tiny.models_sha(general) == tiny.models_sha(federation)
    found, expected = tiny.run(f"fed{form}").server.model, tiny.run("fedavg").server.model
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert torch.equal(found[f"features.middle.{name}"], expected[f"features.middle.{name}"])


@pytest.mark.parametrize(
    ("form", "options", "rtol"),
    [
        ("fedavgm", {"beta1": 0.0, "server_lr": 1.0}, 1e-12),
        # step and tau grow together
        *(
            (form, {"server_lr": 1e6, "tau": 1e6, "beta1": 0.0, "initial": 0.0}, 1e-5)
            for form in ("fedadagrad", "fedadam", "fedyogi")
        ),
    ],
)
def test_each_form_approaches_fedavg(form: str, options: dict[str, float], rtol: float) -> None:
    found, expected = (tiny.run(a, rounds=1) for a in ({"name": form, **options}, "fedavg"))
    tiny.close(found.server.model, expected.server.model, rtol=rtol, atol=rtol / 10)


def test_momentum_moves_the_weights_by_its_rate() -> None:
    update, m = {W: torch.tensor([2.0])}, {W: torch.tensor([1.0])}
    step, m = functional.momentum_step(update, m, 0.3, 0.5)
    tiny.close([m[W], step[W]], [torch.tensor([2.5]), torch.tensor([0.75])])
