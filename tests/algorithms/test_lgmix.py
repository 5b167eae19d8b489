"""LG-Mix: its features, and whole loops of the paper and of the released code."""

import copy
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flray import registry
from flray.federation.federation import Federation
from flray.models import SplitModel
from tests.algorithms import helpers as tiny
from tests.algorithms import released
from tests.helpers import cases


def test_the_mixing_stage_adds_no_steps_and_hides_no_loss() -> None:
    metrics, plain = (tiny.run(name).step().metrics for name in ("lgmix", "fedavg"))
    assert metrics["train/steps"] == plain["train/steps"] == 3 + 2 + 4
    assert metrics["train/loss"] > 0


BRIGHT: dict[str, Any] = {"data": {"name": "small-images"}, "local": {"batch_size": 100}}


@cases("inputs, scale, shift", "[normalised, 4.0, -2.0], [unit, 1.0, 0.0]")
def test_inputs_are_normalised_or_only_scaled(inputs: str, scale: float, shift: float) -> None:
    federation = tiny.run({"name": "lgmix", "inputs": inputs}, model="linear", **BRIGHT)
    start, data = tiny.start(federation), federation.spec.data
    rows = data.clients[0].train
    x = torch.from_numpy(data.x[rows]).double().flatten(1) / 255 * scale + shift

    def loss(w: Any) -> Tensor:
        outputs = x @ w[tiny.V].T + w["classifier.bias"]
        return nn.functional.cross_entropy(outputs, torch.from_numpy(data.y[rows]))

    tiny.close(federation.server.model, tiny.gradient_step(start, loss))


def five_layers(inputs: int, classes: int) -> nn.Sequential:
    middle = nn.Linear(5, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU()
    return nn.Sequential(nn.Linear(inputs, 5), nn.ReLU(), *middle, nn.Linear(6, classes))


@registry.register_model("whole")
def whole(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Not split, as networks for other tasks may be."""
    return five_layers(shape[0], num_classes)


@registry.register_model("maps")
def maps(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Ends in a convolution, whose maps are averaged to logits."""
    pooled = nn.AdaptiveAvgPool2d(1), nn.Flatten()
    return nn.Sequential(nn.Conv2d(shape[0], 4, 1), nn.Conv2d(4, num_classes, 1), *pooled)


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
        layers = network if model == "whole" else [*network.features, *network.classifier]
        body = nn.Sequential(*layers)[:-1]
        common, local = (float(body.train(on)(x).detach().square().sum()) for on in (False, True))
        share = local / (local + common)
        assert abs(share - 0.5) > 0.01
        assert metrics[f"train/lgmix/lambda/client/client{i}"] == pytest.approx(share, rel=1e-9)


def test_nothing_is_left_at_the_network_after_a_turn() -> None:
    federation = tiny.run("lgmix")
    resident = federation.executor._runner._resources.resident("two-layer")  # type: ignore[attr-defined]
    models = [resident.model, *resident.frozen_copies.values()]
    hooks = [m._forward_pre_hooks for model in models for m in model.modules()]
    assert len(models) == 2 and not any(hooks)


def test_features_of_images_are_pooled_over_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """A network whose last layer is a convolution, as in segmentation: its inputs' mean over positions counts."""
    federation = tiny.fresh("lgmix", model="maps", **BRIGHT)
    network, data = federation.spec.build("maps"), federation.spec.data
    x = (torch.from_numpy(data.x[data.clients[0].train]).double() / 255 - 0.5) / 0.25
    pooled = network[0](x).mean((2, 3))
    seen: list[Tensor] = []
    kind: Any = type(federation.spec.algorithm)
    original = kind.trace
    monkeypatch.setattr(kind, "trace", lambda self, h: seen.append(h) or original(self, h))
    assert federation.step().metrics["train/lgmix/lambda"] == pytest.approx(0.5) and seen
    for h in seen:
        assert h.shape == pooled.shape
        assert sorted(h[:, 0].tolist()) == pytest.approx(sorted(pooled[:, 0].tolist()), rel=1e-12)


# What `train`, `_get_eig_vals`, `train_epoch` and `communication_grad` of med-air/HeteroPFL do, and what the paper's
# equations say where they differ from it, in plain PyTorch and float64; nothing of flray's formulas is used.
LR, BATCH = 0.1, 4


class Loop:
    """A server model and personalised ones; `hp` says in which of the two ways."""

    def __init__(self, federation: Federation, hp: Any) -> None:
        self.federation, self.hp = federation, hp
        self.epochs = int(federation.spec.config.local.epochs)
        self.models = released.networks(federation)
        self.server = copy.deepcopy(self.models[0])
        self.data = [released.private(federation, i) for i in range(3)]
        self.shares: list[list[float]] = [[], [], []]

    def run(self, number: int) -> None:
        updates = []
        for i, model in enumerate(self.models):
            before, own, other = copy.deepcopy(model.state_dict()), list[Tensor](), list[Tensor]()
            for batches in released.private_batches(self.federation, i, number, BATCH, self.epochs):
                if self.hp.update == "last_epoch":  # an epoch's training is undone before the next
                    model.load_state_dict(before)
                    own, other = [], []
                self.train(i, batches, own, other)
            after = model.state_dict()
            updates.append({n: after[n] - before[n] for n in before if "tracked" not in n})
            model.load_state_dict(before)
            local, common = (self.trace(torch.cat(features)) for features in (own, other))
            ratio = local / (local + common) if self.hp.ratio is None else self.hp.ratio
            self.shares[i].append(ratio)
        self.communicate(updates)

    def train(self, i: int, batches: list[Tensor], own: list[Tensor], other: list[Tensor]) -> None:
        """One epoch; add both models' features before each step."""
        model, (x, y) = self.models[i].train(), self.data[i]
        self.server.eval()
        for rows in (rows for rows in batches if len(rows) == BATCH or not self.hp.drop_last):
            features = model.features(x[rows])
            other.append(self.server.features(x[rows]).detach())
            loss = nn.functional.cross_entropy(model.classifier(features), y[rows])
            tiny.descend(torch.optim.SGD(model.parameters(), lr=LR), loss)
            own.append(features.detach())

    def trace(self, features: Tensor) -> float:
        """Return the sum of the eigenvalues of all samples' covariance, the smallest left out or not."""
        centred = features - features.mean(0) if self.hp.centred else features
        covariance = sum((torch.outer(h, h) for h in centred), torch.zeros(())) / len(centred)
        values = torch.linalg.svd(covariance)[1]
        return float(values[: -1 if self.hp.drop_smallest else None].sum())

    def communicate(self, updates: list[dict[str, Tensor]]) -> None:
        kept = {"all": slice(None), "earlier": slice(-1), "none": slice(-1, None)}[self.hp.history]
        used = [shares[kept] or shares for shares in self.shares]
        self.used = [sum(shares) / len(shares) for shares in used]
        states, server = [model.state_dict() for model in self.models], self.server.state_dict()
        for name, mean in tiny.mean_of(updates, [len(y) for _, y in self.data]).items():
            moved = self.hp.server_lr * mean
            server[name] += moved
            for share, state, update in zip(self.used, states, updates, strict=True):
                state[name] += (1 - share) * moved + share * update[name]


def compare(epochs: int = 1, other: Mapping[str, Any] | None = None, **options: Any) -> None:
    """Run both, and compare after every round; the counters of batch norms are not trained with.

    `other` are options that the loop does not have.
    """
    local = {"lr": LR, "batch_size": BATCH, "epochs": epochs}
    steps = released.side_by_side("lgmix", Loop, options, other, local=local)
    for federation, loop, metrics in steps:
        released.assert_same(federation.server.model, loop.server, counters=False)
        for i, model in enumerate(loop.models):
            released.assert_same(tiny.state_of(federation, i)["own"], model, counters=False)
            for name, share in (("lambda", loop.used[i]), ("lambda_of_round", loop.shares[i][-1])):
                found = metrics[f"train/lgmix/{name}/client/client{i}"]
                assert abs(found - share) < 1e-12, "not close"


@pytest.mark.parametrize("epochs", [1, 3])
def test_whole_loops_of_the_released_code(epochs: int) -> None:
    compare(epochs)


@cases("options", "{}, {server_lr: 0.5}, {history: none}, {ratio: 0.3}")
def test_whole_loops_of_the_paper(options: dict[str, Any]) -> None:
    compare(2, variant="paper", **options)
