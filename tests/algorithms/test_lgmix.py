"""LG-Mix: rounds by hand, FedAvg and local training at its two ends, and the released code's differences."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flray import registry, trees
from flray.data.types import DataSet, Domain
from flray.federation.executor import InlineExecutor
from flray.models import SplitModel
from tests.algorithms import helpers as tiny

# Updates are formed in float64, so that the ends are exact for float32 models.
SINGLE = {"precision": "float32"}
FULL: dict[str, Any] = {"model": "scaled", "local": {"batch_size": 100, "epochs": 2}}
NAMES = ("features.layer.weight", "classifier.weight")


@registry.register_model("scaled")
def scaled(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Two linear layers without bias, so that features depend on the weights and gradients stay short."""
    features = nn.Sequential()
    features.add_module("layer", nn.Linear(shape[0], 4, bias=False))
    return SplitModel(features, nn.Linear(4, num_classes, bias=False))


def step(model: dict[str, Tensor], x: Tensor, y: Tensor) -> dict[str, Tensor]:
    a, b = (model[name] for name in NAMES)
    h = x @ a.T
    by_b = tiny.softmax_gradient(b, h, y)
    p = torch.softmax(h @ b.T, dim=1)
    p[torch.arange(len(y)), y] -= 1
    by_a = (p @ b).T @ x / len(y)
    return {NAMES[0]: a - 0.1 * by_a, NAMES[1]: b - 0.1 * by_b}


def trace(model: dict[str, Tensor], x: Tensor, centred: bool, drop: bool) -> float:
    h = x @ model[NAMES[0]].T
    h = h - h.mean(0) if centred else h
    eigenvalues = torch.linalg.eigvalsh(h.T @ h)
    return float(eigenvalues[1:].sum() if drop else eigenvalues.sum())


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"server_lr": 0.5},
        {"history": "none"},
        {"history": "all"},
        {"centred": True},
        {"drop_smallest": True},
        {"update": "last_epoch"},
        {"ratio": 0.3},
        {"variant": "released"},
    ],
    ids=str,
)
def test_four_rounds_by_hand(options: dict[str, Any]) -> None:
    released = options.get("variant") == "released"
    centred, drop = options.get("centred", released), options.get("drop_smallest", released)
    history = options.get("history", "all" if released else "earlier")
    last = options.get("update", "last_epoch" if released else "round") == "last_epoch"
    clients = tiny.gaussian_clients((10, 9, 12))
    federation = tiny.fresh({"name": "lgmix", **options}, clients, **FULL)
    u = {name: federation.server.model[name].clone() for name in NAMES}
    own, ratios = [dict(u) for _ in clients], [[] for _ in clients]
    data = tiny.as_tensors(clients)
    for _ in range(4):
        metrics = federation.step().metrics
        updates = []
        for i, (x, y) in enumerate(data):
            first = step(own[i], x, y)
            epochs = [own[i]] if last else [own[i], first]  # the second one begins there again
            local = sum(trace(m, x, centred, drop) for m in epochs)
            common = len(epochs) * trace(u, x, centred, drop)
            ratios[i].append(options.get("ratio", local / (local + common)))
            end = first if last else step(first, x, y)
            updates.append({name: end[name] - own[i][name] for name in NAMES})
        moved = {
            name: options.get("server_lr", 1.0)
            * sum(len(y) / 31 * d[name] for (_, y), d in zip(data, updates, strict=True))
            for name in NAMES
        }
        u = {name: u[name] + moved[name] for name in NAMES}
        for i, update in enumerate(updates):
            used = {
                "none": ratios[i][-1:],
                "all": ratios[i],
                "earlier": ratios[i][:-1] or ratios[i],
            }[history]
            share = float(np.mean(used))
            assert metrics[f"train/lgmix/lambda/client/client{i}"] == pytest.approx(share, rel=1e-9)
            own[i] = {n: own[i][n] + share * update[n] + (1 - share) * moved[n] for n in NAMES}
            for name in NAMES:
                tiny.close(tiny.state_of(federation, i)["own"][name], own[i][name])
        for name in NAMES:
            tiny.close(federation.server.model[name], u[name])


@pytest.mark.parametrize(
    "model", [{"name": "two-layer", "dropout": 0.3}, "scaled"], ids=["norm", "plain"]
)
def test_ratio_zero_is_fedavg(model: Any) -> None:
    mixed, plain = (
        tiny.run(a, rounds=4, model=model, local=SINGLE)
        for a in ({"name": "lgmix", "ratio": 0}, "fedavg")
    )
    assert tiny.models_sha(mixed) == tiny.models_sha(plain)
    for i in range(3):
        assert trees.sha256(tiny.state_of(mixed, i)["own"]) == trees.sha256(plain.server.model)


@pytest.mark.parametrize(
    "model", [{"name": "two-layer", "dropout": 0.3}, "scaled"], ids=["norm", "plain"]
)
def test_ratio_one_is_local_training(model: Any) -> None:
    mixed, alone = (
        tiny.run(a, rounds=4, model=model, local=SINGLE)
        for a in ({"name": "lgmix", "ratio": 1}, "local")
    )
    for i in range(3):
        assert trees.sha256(tiny.state_of(mixed, i)["own"]) == trees.sha256(
            tiny.state_of(alone, i)["personal"]
        )


def test_differs_from_both_ends_at_its_default() -> None:
    mixed = tiny.run("lgmix", rounds=2, local=SINGLE)
    own = {trees.sha256(tiny.state_of(mixed, i)["own"]) for i in range(3)}
    assert len(own) == 3
    assert tiny.digest("fedavg", rounds=2, local=SINGLE) not in {tiny.models_sha(mixed), *own}
    alone = tiny.run("local", rounds=2, local=SINGLE)
    assert not own & {trees.sha256(tiny.state_of(alone, i)["personal"]) for i in range(3)}


def test_the_mixing_stage_adds_no_steps_and_hides_no_loss() -> None:
    metrics = tiny.run("lgmix").step().metrics
    assert metrics["train/steps"] == tiny.run("fedavg").step().metrics["train/steps"] == 3 + 2 + 4
    assert metrics["train/loss"] > 0


def test_u_is_not_the_mean_of_the_personalised_models() -> None:
    federation = tiny.run("lgmix", tiny.gaussian_clients((12, 12, 12)), rounds=3, model="scaled")
    mean = torch.stack([tiny.state_of(federation, i)["own"][NAMES[1]] for i in range(3)]).mean(0)
    assert float((mean - federation.server.model[NAMES[1]]).abs().max()) > 1e-4


@registry.register_dataset("bright")
def bright(root: Any) -> DataSet:
    x = np.random.default_rng(0).integers(0, 256, (12, 1, 2, 2), dtype=np.uint8)
    y = np.arange(12, dtype=np.int64) % 3
    return DataSet(
        "bright", (Domain("only", "random", x, y, x, y),), ("a", "b", "c"), (0.5,), (0.25,)
    )


@pytest.mark.parametrize(
    ("inputs", "scale", "shift"), [("normalised", 4.0, -2.0), ("unit", 1.0, 0.0)]
)
def test_inputs_are_normalised_or_only_scaled(inputs: str, scale: float, shift: float) -> None:
    federation = tiny.fresh(
        {"name": "lgmix", "inputs": inputs},
        model="linear",
        data={"name": "bright"},
        local={"batch_size": 100},
    )
    start = federation.server.model["classifier.weight"].clone()
    bias = federation.server.model["classifier.bias"].clone()
    federation.step()
    data = federation.spec.data
    rows = data.clients[0].train
    x = torch.from_numpy(data.x[rows]).double().flatten(1) / 255 * scale + shift
    y = torch.from_numpy(data.y[rows])
    p = torch.softmax(x @ start.T + bias, dim=1)
    p[torch.arange(len(y)), y] -= 1
    expected = start - 0.1 * p.T @ x / len(y)
    tiny.close(federation.server.model["classifier.weight"], expected)


def test_no_task_is_asked_for() -> None:
    assert registry.algorithms.get("lgmix").needs == {"homogeneous"}


class Whole(nn.Module):
    """Not split, as networks for other tasks may be."""

    def __init__(self, layers: nn.Sequential) -> None:
        super().__init__()
        self.layers = layers

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.layers(x)
        return outputs


def five_layers(inputs: int, classes: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(inputs, 5),
        nn.ReLU(),
        nn.Linear(5, 6, bias=False),
        nn.BatchNorm1d(6),
        nn.ReLU(),
        nn.Linear(6, classes),
    )


@registry.register_model("whole")
def whole(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return Whole(five_layers(shape[0], num_classes))


class Maps(nn.Module):
    """Ends in a convolution, whose maps are averaged to logits."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(channels, 4, 1), nn.Conv2d(4, classes, 1)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.last(self.first(x)).mean((2, 3))
        return outputs


@registry.register_model("maps")
def maps(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return Maps(shape[0], num_classes)


@registry.register_model("split-early")
def split_early(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    layers = five_layers(shape[0], num_classes)
    return SplitModel(layers[:2], layers[2:])


@pytest.mark.parametrize("model", ["whole", "split-early"])
def test_features_are_those_before_the_last_layer(model: str) -> None:
    """In the first step both models are the same: only the mode of the batch norm tells their features apart."""
    clients = tiny.gaussian_clients((10, 9, 12))
    federation = tiny.fresh("lgmix", clients, model=model, local={"batch_size": 100})
    metrics = federation.step().metrics
    for i, (x, _) in enumerate(tiny.as_tensors(clients)):
        network: Any = federation.spec.build(model)
        layers = (
            network.layers
            if model == "whole"
            else nn.Sequential(*network.features, *network.classifier)
        )
        common, local = (
            float(layers.train(mode)[:-1](x).detach().square().sum()) for mode in (False, True)
        )
        assert abs(local / (local + common) - 0.5) > 0.01
        assert metrics[f"train/lgmix/lambda/client/client{i}"] == pytest.approx(
            local / (local + common), rel=1e-9
        )


def test_nothing_is_left_at_the_network_after_a_turn() -> None:
    spec = tiny.spec_of("lgmix")
    executor = InlineExecutor(spec)
    tiny.federation_of(spec, executor).step()
    resident = executor._runner._resources.resident("two-layer")
    models = [resident.model, *resident.frozen_copies.values()]
    assert len(models) == 2 and not any(
        m._forward_pre_hooks for model in models for m in model.modules()
    )


def test_features_of_images_are_pooled_over_positions() -> None:
    """A network whose last layer is a convolution, as in segmentation: its inputs' mean over positions counts."""
    federation = tiny.fresh(
        "lgmix", model="maps", data={"name": "bright"}, local={"batch_size": 100}
    )
    network = federation.spec.build("maps")
    data = federation.spec.data
    rows = data.clients[0].train
    x = (torch.from_numpy(data.x[rows]).double() / 255 - 0.5) / 0.25
    pooled = network.first(x).mean((2, 3))
    assert federation.step().metrics["train/lgmix/lambda"] == pytest.approx(0.5)
    kept = trees.sha256(federation.server.models)
    federation = tiny.fresh(
        "lgmix", model="maps", data={"name": "bright"}, local={"batch_size": 100}
    )
    seen: list[Tensor] = []
    kind: Any = type(federation.spec.algorithm)
    original = kind.trace
    kind.trace = lambda self, h: seen.append(h) or original(self, h)
    try:
        federation.step()
    finally:
        kind.trace = original
    assert trees.sha256(federation.server.models) == kept
    for h in seen:
        assert h.shape == pooled.shape
        assert sorted(h[:, 0].tolist()) == pytest.approx(sorted(pooled[:, 0].tolist()), rel=1e-12)
