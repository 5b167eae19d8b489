"""LG-Mix: rounds by hand, and its features, and whole loops of the released code."""

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flray import registry, trees
from flray.data.types import DataSet, Domain
from flray.federation.federation import Federation
from flray.federation.worker.client_runner import InlineExecutor
from flray.models import SplitModel
from tests.algorithms import helpers as tiny
from tests.algorithms import released

# Updates are formed in float64, so that the ends are exact for float32 models.
SINGLE = {"precision": "float32"}
FULL = tiny.full("scaled", epochs=2)
NAMES = ("features.layer.weight", "classifier.weight")


@registry.register_model("scaled")
def scaled(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Two linear layers without bias, so that features depend on the weights and gradients stay short."""
    features = nn.Sequential()
    features.add_module("layer", nn.Linear(shape[0], 4, bias=False))
    return SplitModel(features, nn.Linear(4, num_classes, bias=False))


def step(model: dict[str, Tensor], x: Tensor, y: Tensor) -> dict[str, Tensor]:
    return tiny.gradient_step(
        model, lambda w: nn.functional.cross_entropy(x @ w[NAMES[0]].T @ w[NAMES[1]].T, y)
    )


def trace(model: dict[str, Tensor], x: Tensor) -> float:
    """Return the trace of h^T h, of features h."""
    return float((x @ model[NAMES[0]].T).square().sum())


@pytest.mark.parametrize(
    "options", [{}, {"server_lr": 0.5}, {"history": "none"}, {"ratio": 0.3}], ids=str
)
def test_four_rounds_by_hand(options: dict[str, Any]) -> None:
    clients = tiny.gaussian_clients((10, 9, 12))
    federation = tiny.fresh({"name": "lgmix", **options}, clients, **FULL)
    u, data = tiny.start(federation), tiny.as_tensors(clients)
    own, ratios = [u] * 3, [[] for _ in clients]
    for _ in range(4):
        metrics = federation.step().metrics
        updates = []
        for i, (x, y) in enumerate(data):
            first = step(own[i], x, y)
            local, common = trace(own[i], x) + trace(first, x), 2 * trace(u, x)
            ratios[i].append(options.get("ratio", local / (local + common)))
            end = step(first, x, y)
            updates.append({name: end[name] - own[i][name] for name in NAMES})
        mean = tiny.mean_of(updates, (10, 9, 12))
        moved = {name: options.get("server_lr", 1.0) * mean[name] for name in NAMES}
        u = {name: u[name] + moved[name] for name in NAMES}
        for i, update in enumerate(updates):
            earlier = ratios[i][:-1] or ratios[i]
            share = float(np.mean(ratios[i][-1:] if "history" in options else earlier))
            assert metrics[f"train/lgmix/lambda/client/client{i}"] == pytest.approx(share, rel=1e-9)
            own[i] = {n: own[i][n] + share * update[n] + (1 - share) * moved[n] for n in NAMES}
            tiny.close(tiny.state_of(federation, i)["own"], own[i])
        tiny.close(federation.server.model, u)


def test_at_ratio_zero_every_own_model_is_fedavg_s() -> None:
    settings: dict[str, Any] = {"rounds": 4, "model": tiny.DROPOUT, "local": SINGLE}
    mixed = tiny.run({"name": "lgmix", "ratio": 0}, **settings)
    own = {trees.sha256(tiny.state_of(mixed, i)["own"]) for i in range(3)}
    assert own == {trees.sha256(tiny.run("fedavg", **settings).server.model)}


def test_the_mixing_stage_adds_no_steps_and_hides_no_loss() -> None:
    metrics, plain = (tiny.run(name).step().metrics for name in ("lgmix", "fedavg"))
    assert metrics["train/steps"] == plain["train/steps"] == 3 + 2 + 4
    assert metrics["train/loss"] > 0


@registry.register_dataset("bright")
def bright(root: Any) -> DataSet:
    x = np.random.default_rng(0).integers(0, 256, (12, 1, 2, 2), dtype=np.uint8)
    y = np.arange(12, dtype=np.int64) % 3
    return DataSet(
        "bright", (Domain("only", "random", x, y, x, y),), ("a", "b", "c"), (0.5,), (0.25,)
    )


BRIGHT: dict[str, Any] = {"data": {"name": "bright"}, "local": {"batch_size": 100}}


@pytest.mark.parametrize(
    ("inputs", "scale", "shift"), [("normalised", 4.0, -2.0), ("unit", 1.0, 0.0)]
)
def test_inputs_are_normalised_or_only_scaled(inputs: str, scale: float, shift: float) -> None:
    federation = tiny.run({"name": "lgmix", "inputs": inputs}, model="linear", **BRIGHT)
    start, data = tiny.start(federation), federation.spec.data
    rows = data.clients[0].train
    x = torch.from_numpy(data.x[rows]).double().flatten(1) / 255 * scale + shift
    loss = lambda w: nn.functional.cross_entropy(  # noqa: E731
        x @ w[NAMES[1]].T + w["classifier.bias"], torch.from_numpy(data.y[rows])
    )
    tiny.close(federation.server.model, tiny.gradient_step(start, loss))


def five_layers(inputs: int, classes: int) -> nn.Sequential:
    middle = nn.Linear(5, 6, bias=False), nn.BatchNorm1d(6), nn.ReLU()
    return nn.Sequential(nn.Linear(inputs, 5), nn.ReLU(), *middle, nn.Linear(6, classes))


@registry.register_model("whole")
def whole(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Not split, as networks for other tasks may be."""
    return five_layers(shape[0], num_classes)


class Pooled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.mean((2, 3))


@registry.register_model("maps")
def maps(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Ends in a convolution, whose maps are averaged to logits."""
    return nn.Sequential(nn.Conv2d(shape[0], 4, 1), nn.Conv2d(4, num_classes, 1), Pooled())


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
        whole = (
            nn.Sequential(*network.features, *network.classifier) if "split" in model else network
        )
        common, local = (
            float(whole.train(mode)[:-1](x).detach().square().sum()) for mode in (False, True)
        )
        share = local / (local + common)
        assert abs(share - 0.5) > 0.01
        assert metrics[f"train/lgmix/lambda/client/client{i}"] == pytest.approx(share, rel=1e-9)


def test_nothing_is_left_at_the_network_after_a_turn() -> None:
    spec = tiny.spec_of("lgmix")
    executor = InlineExecutor(spec)
    tiny.federation_of(spec, executor).step()
    resident = executor._runner._resources.resident("two-layer")
    models = [resident.model, *resident.frozen_copies.values()]
    assert len(models) == 2
    assert not any(m._forward_pre_hooks for model in models for m in model.modules())


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
    assert federation.step().metrics["train/lgmix/lambda"] == pytest.approx(0.5)
    assert seen
    for h in seen:
        assert h.shape == pooled.shape
        assert sorted(h[:, 0].tolist()) == pytest.approx(sorted(pooled[:, 0].tolist()), rel=1e-12)


# --- the released code -----------------------------------------------------------------------------
# Whole loops of med-air/HeteroPFL, in plain PyTorch and float64: what its `train`, `_get_eig_vals`, `train_epoch`
# and `communication_grad` do, written anew; nothing of flray's formulas is used.


LR, BATCH, ROUNDS = 0.1, 4, 3


class ReleasedLoop:
    """A server model and personalised ones; an epoch's training is undone before the next one."""

    def __init__(self, federation: Federation, epochs: int) -> None:
        self.federation, self.epochs = federation, epochs
        self.models = released.networks(federation)
        self.server = copy.deepcopy(self.models[0])
        self.data = [released.private(federation, i) for i in range(3)]
        self.optimizers = [torch.optim.SGD(m.parameters(), lr=LR) for m in self.models]
        self.shares: list[list[float]] = [[], [], []]

    def run(self, number: int) -> None:
        updates, local, common = [], [], []
        for i, model in enumerate(self.models):
            before = copy.deepcopy(model.state_dict())
            for batches in released.private_batches(self.federation, i, number, BATCH, self.epochs):
                own, other = self.train(i, batches)
                after = model.state_dict()
                update = {n: after[n] - before[n] for n in before if "tracked" not in n}
                model.load_state_dict(before)
            updates.append(update)
            local.append(eigenvalues(own))
            common.append(eigenvalues(other))
        self.communicate(updates, local, common)

    def train(self, i: int, batches: list[Tensor]) -> tuple[Tensor, Tensor]:
        """One epoch over whole batches; return both models' features of all its samples."""
        model, (x, y) = self.models[i].train(), self.data[i]
        self.server.eval()
        own, other = [], []
        for rows in (rows for rows in batches if len(rows) == BATCH):
            self.optimizers[i].zero_grad()
            features = model.features(x[rows])
            other.append(self.server.features(x[rows]).detach())
            nn.functional.cross_entropy(model.classifier(features), y[rows]).backward()
            self.optimizers[i].step()
            own.append(features.detach())
        return torch.cat(own), torch.cat(other)

    def communicate(
        self, updates: list[dict[str, Tensor]], local: list[Tensor], common: list[Tensor]
    ) -> None:
        sizes = [len(y) for _, y in self.data]
        states = [model.state_dict() for model in self.models]
        server = self.server.state_dict()
        for i, (mine, theirs) in enumerate(zip(local, common, strict=True)):
            own, other = (float(values[:-1].sum()) for values in (mine, theirs))
            self.shares[i].append(own / (own + other))
        means = tiny.mean_of(updates, sizes)
        for name in means:
            mean = means[name]
            server[name] += mean
            for i, state in enumerate(states):
                share = sum(self.shares[i]) / len(self.shares[i])
                state[name] += (1 - share) * mean + share * updates[i][name]


def eigenvalues(features: Tensor) -> Tensor:
    """Return those of the covariance of all samples, largest first."""
    centred = features - features.mean(0)
    covariance = sum((torch.outer(h, h) for h in centred), torch.zeros(())) / len(centred)
    return torch.linalg.svd(covariance)[1]


def fresh(epochs: int, **changes: Any) -> Federation:
    local = {"lr": LR, "batch_size": BATCH, "epochs": epochs}
    return released.fresh({"name": "lgmix", **changes}, local=local)


def compare(epochs: int = 1, **changes: Any) -> None:
    """Run both, and compare after every round; the counters of batch norms are not trained with."""
    federation = fresh(epochs, **changes)
    loop = ReleasedLoop(federation, epochs)
    for number in range(ROUNDS):
        metrics = federation.step().metrics
        loop.run(number)
        released.assert_same(federation.server.model, loop.server, counters=False)
        for i, model in enumerate(loop.models):
            released.assert_same(tiny.state_of(federation, i)["own"], model, counters=False)
            found = metrics[f"train/lgmix/lambda_of_round/client/client{i}"]
            assert abs(found - loop.shares[i][-1]) < 1e-12, "not close"


@pytest.mark.parametrize("epochs", [1, 3])
def test_whole_loops_of_the_released_code(epochs: int) -> None:
    compare(epochs)


def test_traces_of_an_epoch_are_not_those_of_its_batches() -> None:
    """Centred batch by batch, the traces lose what batches differ by: lambda is another."""
    federation = fresh(1)
    loop = ReleasedLoop(federation, 1)
    (batches,) = released.private_batches(federation, 0, 0, BATCH, 1)
    own, other = loop.train(0, batches)
    parts = [sum(float(eigenvalues(part).sum()) for part in h.split(BATCH)) for h in (own, other)]
    found = federation.step().metrics["train/lgmix/lambda_of_round/client/client0"]
    assert abs(found - parts[0] / sum(parts)) > 1e-5
