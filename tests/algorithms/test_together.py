"""Clients trained in one step end where they end one after another, whatever their numbers of samples and steps."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from flray import registry
from flray.algorithms.base import Algorithm
from flray.algorithms.common.batched_clients import BatchNormWithoutCuDNN
from flray.federation import checkpoint
from flray.federation.federation import Federation
from flray.models import SplitModel
from tests.algorithms import helpers as tiny
from tests.messages import refused

# Batches of 4: other numbers of steps, other last batches; one of a single sample.
SIZES = (12, 9, 15, 7, 10)


def fresh(name: Any, together: int, block: int = 5, **changes: Any) -> Federation:
    local = {"momentum": 0.9, "weight_decay": 0.01, "epochs": 2, **changes.pop("local", {})}
    aggregation = {"block": block, **changes.pop("aggregation", {})}
    settings = {"aggregation": aggregation, "local": {**local, "clients_per_step": together}}
    return tiny.fresh(name, tiny.gaussian_clients(SIZES), **settings, **changes)


def run(name: Any, together: int, rounds: int = 2, **changes: Any) -> Federation:
    federation = fresh(name, together, **changes)
    for _ in range(rounds):
        federation.step()
    return federation


def assert_near(ours: Federation, theirs: Federation) -> None:
    for key, model in theirs.server.models.items():
        tiny.close(ours.server.models[key], model, rtol=1e-10, atol=1e-10)
    for client in range(len(SIZES)):
        mine, other = (tiny.state_of(one, client).get("personal", {}) for one in (ours, theirs))
        assert mine.keys() == other.keys()
        tiny.close(mine, other, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    ("name", "together", "changes"),
    [
        *(
            (name, together, {})
            for name in ("fedavg", {"name": "fedprox", "mu": 0.5}, "fedbn", "local")
            for together in (2, 5)
        ),
        *(
            ("fedavg", 3, changes)
            for changes in (
                {"model": {"name": "two-layer", "norm": False}},
                {"local": {"optimizer": "adam", "lr": 0.01}},
                {"local": {"clip_norm": 0.1}},
                {"participation": {"fraction": 0.8, "stragglers": 0.5, "straggler_work": 0.4}},
                {"aggregation": {"buffers": "local"}},
                {"local": {"lr_decay": 0.5, "batch_size": 20}},
                {"local": {"epochs": 0}},
                {"models": {"client1": {"name": "two-layer", "width": 7}}},
            )
        ),
    ],
    ids=str,
)
def test_it_is_the_same_training(name: Any, together: int, changes: dict[str, Any]) -> None:
    assert_near(run(name, together, **changes), run(name, 1, **changes))


def test_what_is_tracked_of_each_client_is_the_same() -> None:
    ours, theirs = (fresh("fedavg", together).step().metrics for together in (5, 1))
    tracked = {n: v for n, v in theirs.items() if n.startswith("train/") and "seconds" not in n}
    clients = {f"train/loss/client/client{i}" for i in range(5)}
    assert {"train/loss", "train/steps", *clients} <= set(tracked)
    assert {name: ours[name] for name in tracked} == pytest.approx(tracked, rel=1e-10)


def test_resuming_gives_the_same_bits(tmp_path: Path) -> None:
    changes = {"participation": {"fraction": 0.8}, "block": 3}
    whole, resumed = run("fedbn", 2, 1, **changes), fresh("fedbn", 2, **changes)
    checkpoint.save(whole, tmp_path)
    assert checkpoint.restore(resumed, tmp_path) == 1
    whole.step()
    resumed.step()
    assert resumed.sha256() == whole.sha256()
    assert_near(whole, run("fedbn", 1, **changes))


def test_the_step_is_really_shared() -> None:
    """One forward pass for clients of a size, not one each."""
    counts = []
    for together in (1, 5):
        federation, calls = fresh("fedavg", together), list[int]()
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
    ("name", "changes"),
    [
        ("moon", {}),
        ("own-loss-under-fedprox", {}),
        ("fedavg", {"block": 2}),
        ("fedavg", {"local": {"compile": True}}),
        ("fedavg", {"model": {"name": "two-layer", "dropout": 0.2}}),
        ("fedavg", {"model": "branching"}),
    ],
    ids=str,
)
def test_what_cannot_be_is_refused_before_the_first_round(
    name: str, changes: dict[str, Any]
) -> None:
    refused(fresh, name, 3, **changes)


def test_batch_normalisation_of_clients_together_does_without_cudnn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """On an H100, torch 2.11: cuDNN's asks for the memory format, and `vmap` knows the plain one alone."""
    asked, native = [], torch.batch_norm

    def batch_norm(*args: Any) -> torch.Tensor:
        asked.append((torch.backends.cudnn.enabled, args[-1]))
        return native(*args)

    monkeypatch.setattr(torch, "batch_norm", batch_norm)
    layer, x = nn.BatchNorm1d(3), torch.randn(4, 3)
    with BatchNormWithoutCuDNN():
        layer(x)
    layer(x)
    assert asked == [(False, False), (True, True)]


def test_methods_vouch_for_their_own_loss_alone() -> None:
    assert not Algorithm.vectorised
    methods = {name: registry.algorithms.get(name) for name in registry.algorithms.names()}
    assert [name for name, kind in methods.items() if "vectorised" in vars(kind)] == ["fedprox"]
