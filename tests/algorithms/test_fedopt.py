"""FedOpt's four forms against their update rules by hand, at their neutral values, and with buffers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from tests.algorithms import helpers as tiny

STEP: dict[str, Any] = {"model": "one-layer", "local": {"batch_size": 100, "epochs": 1, "lr": 0.3}}
W = "classifier.weight"


def mean_update(w: Tensor) -> Tensor:
    """Return FedAvg's mean update of one full-batch step."""
    total = torch.zeros_like(w)
    for x, y in tiny.tensors():
        total -= len(y) / 36 * 0.3 * tiny.softmax_gradient(w, x, y)
    return total


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
    federation = tiny.fresh(f"fed{form}", tiny.gaussian_clients(), **STEP)
    general = tiny.fresh(
        {"name": "fedopt", "server_optimizer": form}, tiny.gaussian_clients(), **STEP
    )
    w = federation.server.model[W].clone()
    m, v = torch.zeros_like(w), torch.full_like(w, 1e-6)
    for _ in range(3):
        federation.step()
        general.step()
        m, v, step = rule(form, m, v, mean_update(w))
        w = w + step
        tiny.close(federation.server.model[W], w)
    assert tiny.models_sha(general) == tiny.models_sha(federation)


def test_fedopt_is_fedadam_unless_told_otherwise() -> None:
    assert tiny.run("fedopt", rounds=2).sha256() == tiny.run("fedadam", rounds=2).sha256()


def test_fedavgm_without_momentum_is_fedavg() -> None:
    found = tiny.run({"name": "fedavgm", "beta1": 0.0, "server_lr": 1.0}, rounds=3).server.model
    for name, value in tiny.run("fedavg", rounds=3).server.model.items():
        tiny.close(found[name], value)


def test_adaptive_forms_approach_fedavg_as_step_and_tau_grow_together() -> None:
    options = {"server_lr": 1e6, "tau": 1e6, "beta1": 0.0, "initial": 0.0}
    expected = tiny.run("fedavg").server.model
    for form in ("fedadagrad", "fedadam", "fedyogi"):
        found = tiny.run({"name": form, **options}).server.model
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-6)


def test_first_adagrad_step_has_one_length_in_every_coordinate() -> None:
    federation = tiny.fresh(
        {"name": "fedadagrad", "initial": 0.0, "tau": 1e-14, "beta1": 0.5, "server_lr": 0.2},
        tiny.gaussian_clients(),
        **STEP,
    )
    start = federation.server.model[W].clone()
    federation.step()
    lengths = (federation.server.model[W] - start).abs()
    tiny.close(lengths, torch.full_like(lengths, 0.2 * 0.5))


def test_yogi_and_adam_agree_in_their_first_step_from_zero() -> None:
    digests = {tiny.digest({"name": form, "initial": 0.0}) for form in ("fedyogi", "fedadam")}
    assert len(digests) == 1


@pytest.mark.parametrize("form", ["fedavgm", "fedadagrad", "fedadam", "fedyogi"])
def test_buffers_are_plainly_averaged(form: str) -> None:
    found, expected = (tiny.run(form).server.model, tiny.run("fedavg").server.model)
    for name in ("running_mean", "running_var", "num_batches_tracked"):
        assert torch.equal(found[f"features.middle.{name}"], expected[f"features.middle.{name}"])


@pytest.mark.parametrize("form", ["fedavgm", "fedadagrad", "fedadam", "fedyogi"])
def test_differs_from_fedavg_at_the_defaults(form: str) -> None:
    assert tiny.digest(form, rounds=2) != tiny.digest("fedavg", rounds=2)


def test_moments_cover_parameters_only_and_start_at_tau_squared() -> None:
    federation = tiny.fresh({"name": "fedadam", "tau": 0.1})
    names = {name for name, _ in federation.spec.build("two-layer").named_parameters()}
    moments = federation.server.state["v"]["two-layer"]
    assert set(moments) == names
    assert all(float((v - 0.01).abs().max()) < 1e-15 for v in moments.values())
