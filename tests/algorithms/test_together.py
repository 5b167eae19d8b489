"""Clients trained in one step end where they end one after another, whatever their numbers of samples and steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from flray import registry
from flray.algorithms.base import Algorithm
from flray.errors import ConfigError
from flray.federation import checkpoint
from flray.federation.federation import Federation
from flray.models import SplitModel
from tests.algorithms import helpers as tiny

# Batches of 4: other numbers of steps, other last batches; one of a single sample.
SIZES = (12, 9, 15, 7, 10)


def run_federation(
    name: Any,
    together: int,
    rounds: int = 2,
    local: dict[str, Any] | None = None,
    block: int = 5,
    **changes: Any,
) -> Federation:
    spec = tiny.spec_of(
        name,
        tiny.gaussian_clients(SIZES),
        aggregation={"block": block, **changes.pop("aggregation", {})},
        local={
            "momentum": 0.9,
            "weight_decay": 0.01,
            "epochs": 2,
            **(local or {}),
            "clients_per_step": together,
        },
        **changes,
    )
    federation = tiny.federation_of(spec)
    for _ in range(rounds):
        federation.step()
    return federation


def assert_near(ours: Federation, theirs: Federation) -> None:
    for entry, value in theirs.server.model.items():
        tiny.close(ours.server.model[entry], value)
    for client in range(len(SIZES)):
        kept = tiny.state_of(theirs, client).get("personal", {})
        assert kept.keys() == tiny.state_of(ours, client).get("personal", {}).keys()
        for entry, value in kept.items():
            tiny.close(tiny.state_of(ours, client)["personal"][entry], value)


@pytest.mark.parametrize(
    "name",
    ["fedavg", {"name": "fedprox", "mu": 0.5}, "fedavgm", "fedbn", "fedper", "local"],
    ids=str,
)
@pytest.mark.parametrize("together", [2, 5])
def test_it_is_the_same_training(name: Any, together: int) -> None:
    assert_near(run_federation(name, together), run_federation(name, 1))


@pytest.mark.parametrize(
    "changes",
    [
        {"model": {"name": "two-layer", "norm": False}},
        {"local": {"optimizer": "adam", "lr": 0.01}},
        {"local": {"clip_norm": 0.1}},
        {"participation": {"fraction": 0.8, "stragglers": 0.5, "straggler_work": 0.4}},
        {"aggregation": {"buffers": "local"}},
        {"local": {"lr_decay": 0.5, "batch_size": 20}},
        {"local": {"epochs": 0}},
        {"models": {"client1": {"name": "two-layer", "width": 7}}},
    ],
    ids=str,
)
def test_so_it_is_under_other_settings(changes: dict[str, Any]) -> None:
    ours, theirs = run_federation("fedavg", 3, **changes), run_federation("fedavg", 1, **changes)
    for key, model in theirs.server.models.items():
        for entry, value in model.items():
            tiny.close(ours.server.models[key][entry], value)


def test_what_is_tracked_of_each_client_is_the_same() -> None:
    ours, theirs = (
        run_federation("fedavg", together, rounds=0).step().metrics for together in (5, 1)
    )
    tracked = [name for name in theirs if name.startswith("train/") and "seconds" not in name]
    assert {
        "train/loss",
        "train/steps",
        *(f"train/loss/client/client{i}" for i in range(5)),
    } <= set(tracked)
    for name in tracked:
        assert ours[name] == pytest.approx(theirs[name], rel=1e-10), name


def test_resuming_gives_the_same_bits(tmp_path: Path) -> None:
    changes = {"participation": {"fraction": 0.8}, "block": 3}
    whole = run_federation("fedbn", 2, rounds=1, **changes)
    checkpoint.save(whole, tmp_path)
    whole.step()
    resumed = run_federation("fedbn", 2, rounds=0, **changes)
    assert checkpoint.restore(resumed, tmp_path) == 1
    resumed.step()
    assert resumed.sha256() == whole.sha256()
    assert_near(whole, run_federation("fedbn", 1, **changes))


def test_the_step_is_really_shared() -> None:
    """One forward pass for clients of a size, not one each."""
    counts = []
    for together in (1, 5):
        federation = run_federation("fedavg", together, rounds=0)
        calls: list[int] = []
        resident = federation.executor._runner._resources.resident("two-layer")  # type: ignore[attr-defined]
        resident.model.features.first.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        federation.step()
        counts.append(len(calls))
    assert counts[1] < counts[0]


@registry.register_algorithm("own-loss-under-fedprox")
class OwnLoss(registry.algorithms.get("fedprox")):  # type: ignore[misc]
    """A subclass's own loss is not vouched for by its parent's word."""

    def loss(self, client: Any, batch: Any) -> torch.Tensor:
        return super().loss(client, batch) * client.num_samples


@registry.register_model("branching")
def branching(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    class Branch(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x if x.sum() > 0 else -x

    return SplitModel(Branch(), nn.Linear(shape[0], num_classes))


@pytest.mark.parametrize(
    ("name", "changes", "reason"),
    [
        ("moon", {}, "moon has its own begin, loss; set it to 1"),
        ("own-loss-under-fedprox", {}, "own-loss-under-fedprox has its own loss"),
        ("fedavg", {"block": 2}, r"set aggregation.block to 3 or more \(it is 2\)"),
        ("fedavg", {"local": {"compile": True}}, "local.compile holds for one client's batch"),
        ("fedavg", {"model": {"name": "two-layer", "dropout": 0.2}}, "the network has dropout"),
        ("fedavg", {"model": "branching"}, "torch.vmap cannot run this network"),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_before_the_first_round(
    name: str, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ConfigError, match="experiment.local.clients_per_step.*" + reason):
        run_federation(name, 3, rounds=0, **changes)


def test_methods_vouch_for_their_own_loss_alone() -> None:
    assert not Algorithm.vectorised
    assert [
        name
        for name in registry.algorithms.names()
        if "vectorised" in vars(registry.algorithms.get(name))
    ] == ["fedprox"]
