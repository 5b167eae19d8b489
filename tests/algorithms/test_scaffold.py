"""SCAFFOLD: its update by hand, its identities, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from flray.errors import ConfigError
from tests.algorithms import helpers as tiny

FULL: dict[str, Any] = {"model": "one-layer", "local": {"batch_size": 100, "epochs": 4}}
W = "classifier.weight"


@pytest.mark.parametrize("option", ["I", "II"])
@pytest.mark.parametrize("server_lr", [1.0, 0.5])
def test_two_rounds_by_hand_with_partial_participation(option: str, server_lr: float) -> None:
    clients = tiny.gaussian_clients()
    federation = tiny.fresh(
        {"name": "scaffold", "option": option, "server_lr": server_lr},
        clients,
        participation={"clients": 2},
        **FULL,
    )
    w = federation.server.model[W].clone()
    c, own = torch.zeros_like(w), [torch.zeros_like(w) for _ in clients]
    data = tiny.as_tensors(clients)
    for _ in range(3):
        federation.step()
        cohort = federation.server.cohort
        moves, changes = [], []
        for i in cohort:
            theta = w.clone()
            for _ in range(4):
                theta = theta - 0.1 * (tiny.softmax_gradient(theta, *data[i]) + c - own[i])
            new = (
                tiny.softmax_gradient(w, *data[i])
                if option == "I"
                else own[i] - c + (w - theta) / (4 * 0.1)
            )
            moves.append(theta - w)
            changes.append(new - own[i])
            own[i] = new
        w = w + server_lr * torch.stack(moves).mean(0)  # uniform, over the cohort
        c = c + torch.stack(changes).sum(0) / 3  # over all clients, not the cohort
        tiny.close(federation.server.model[W], w)
        tiny.close(federation.server.state["c"][W], c)
        for i in cohort:
            tiny.close(tiny.state_of(federation, i)["c"][W], own[i])


def test_counts_steps_and_not_epochs() -> None:
    """Option II after round 1 is the mean of the gradients seen: the displacement over (optimiser steps x lr)."""
    clients = tiny.gaussian_clients((12,))
    federation = tiny.fresh(
        "scaffold", clients, model="one-layer", local={"batch_size": 4, "epochs": 2, "lr": 0.05}
    )
    start = federation.server.model[W].clone()
    federation.step()
    expected = (start - federation.server.model[W]) / (6 * 0.05)  # 2 epochs of 3 batches
    tiny.close(tiny.state_of(federation, 0)["c"][W], expected)


def test_counts_the_steps_a_straggler_managed() -> None:
    settings = {"participation": {"stragglers": 1.0, "straggler_work": 0.5}}
    federation = tiny.fresh(
        "scaffold",
        tiny.gaussian_clients((12,)),
        model="one-layer",
        **settings,
        local={"batch_size": 4, "epochs": 2, "lr": 0.05},
    )
    start = federation.server.model[W].clone()
    federation.step()
    expected = (start - federation.server.model[W]) / (3 * 0.05)
    tiny.close(tiny.state_of(federation, 0)["c"][W], expected)


def test_uses_the_round_s_decayed_learning_rate() -> None:
    federation = tiny.fresh(
        "scaffold",
        tiny.gaussian_clients((12,)),
        model="one-layer",
        local={"batch_size": 100, "lr": 0.2, "lr_decay": 0.5},
    )
    federation.step()
    start = federation.server.model[W].clone()
    federation.step()
    ((x, y),) = tiny.tensors((12,))
    tiny.close(tiny.state_of(federation, 0)["c"][W], tiny.softmax_gradient(start, x, y))


def test_its_first_round_is_uniform_fedavg() -> None:
    uniform = tiny.run("fedavg", aggregation={"weights": "uniform"})
    assert tiny.digest("scaffold") == tiny.models_sha(uniform)


def test_its_second_round_is_not() -> None:
    uniform = tiny.run("fedavg", rounds=2, aggregation={"weights": "uniform"})
    assert tiny.digest("scaffold", rounds=2) != tiny.models_sha(uniform)


def test_c_is_the_mean_of_all_c_i_under_full_participation() -> None:
    federation = tiny.run("scaffold", rounds=3)
    for name, c in federation.server.state["c"].items():
        mean = torch.stack([tiny.state_of(federation, i)["c"][name] for i in range(3)]).mean(0)
        tiny.close(c, mean)


def test_one_client_follows_sequential_sgd() -> None:
    one = tiny.gaussian_clients((10,))
    found, expected = (
        tiny.run(name, one, rounds=3).server.model for name in ("scaffold", "fedavg")
    )
    for name, value in expected.items():
        tiny.close(found[name], value)


def test_control_variates_cover_parameters_only() -> None:
    federation = tiny.run("scaffold")
    names = {name for name, _ in federation.spec.build("two-layer").named_parameters()}
    assert set(federation.server.state["c"]) == names == set(tiny.state_of(federation, 0)["c"])


@pytest.mark.parametrize("local", [{"momentum": 0.9}, {"optimizer": "adam"}])
def test_option_two_refuses_what_its_formula_does_not_hold_for(local: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match="option: I"):
        tiny.spec_of("scaffold", local=local)
    assert tiny.run({"name": "scaffold", "option": "I"}, local=local).rounds_done == 1
