"""Fed-CO2: a round by hand, FedBN and local training inside it, its ablations and the released code's differences."""

import copy
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flray import registry, trees
from flray.federation.federation import Federation
from flray.models import SplitModel
from flray.models.base import select
from tests.algorithms import helpers as tiny
from tests.algorithms import released

FULL = tiny.full({"name": "two-layer", "norm": False}, epochs=2)
ALONE = {"name": "fedco2", "mu": 0, "intra": "none"}
Weights = Mapping[str, Tensor]


def forward(w: Weights, x: Tensor, head: Weights | None = None) -> Tensor:
    h = torch.relu(x @ w["features.first.weight"].T + w["features.first.bias"])
    head = w if head is None else head
    return h @ head["classifier.weight"].T + head["classifier.bias"]


def divergence(teacher: Tensor, student: Tensor) -> Tensor:
    p = torch.softmax(teacher, 1)
    return (p * (p.log() - torch.log_softmax(student, 1))).sum(1).mean()


def trained(
    w: Weights, teacher: Weights | None, heads: Sequence[Weights], x: Tensor, y: Tensor, mu: float
) -> Weights:
    """Return a model after one mutual step, if there is a teacher, and two of adaptation with the peers' heads."""
    if teacher is not None:
        taught = forward(teacher, x)
        w = tiny.gradient_step(w, lambda v: divergence(taught, forward(v, x)))
    for _ in range(2):
        peers = lambda v: sum(F.cross_entropy(forward(v, x, head), y) for head in heads)  # noqa: E731
        w = tiny.gradient_step(w, lambda v: F.cross_entropy(forward(v, x), y) + mu * peers(v))  # noqa: B023
    return w


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"mu": 0.3},
        {"intra": "to_online"},
        {"intra": "to_offline"},
        {"intra": "none"},
        {"inter": "online"},
        {"inter": "offline"},
        {"inter": "none"},
        {"form": "label_skew"},
        {"variant": "released"},
        {"variant": "released", "form": "label_skew"},
    ],
    ids=str,
)
def test_three_rounds_by_hand(options: dict[str, Any]) -> None:
    """Full batches, no batch norm: one mutual epoch, two of adaptation; sampled weights only where released says so."""
    fusion_only = options.get("form") == "label_skew"
    intra, inter = (options.get(n, "none" if fusion_only else "both") for n in ("intra", "inter"))
    released = options.get("variant") == "released"
    clients = tiny.gaussian_clients((10, 9, 12))
    federation = tiny.fresh({"name": "fedco2", **options}, clients, **FULL)
    shared: Weights = tiny.start(federation)
    offline, data = [shared] * 3, tiny.as_tensors(clients)
    for number in range(3):
        federation.step()
        online, new = [], []
        for i, (x, y) in enumerate(data):
            heads = [w for j, w in enumerate(offline) if j != i]
            models = (("online", shared, offline[i]), ("offline", offline[i], shared))
            for which, own, other in models:
                mutual = intra in ("both", f"to_{which}") and not (released and number == 0)
                peers = heads if inter in ("both", which) else []
                teacher, mu = other if mutual else None, options.get("mu", 1.0)
                result = trained(own, teacher, peers, x, y, mu)
                (online if which == "online" else new).append(result)
        offline = new
        shared = tiny.mean_of(online, (10, 9, 12) if released and fusion_only else (1, 1, 1))
        tiny.close(federation.server.model, shared)
        for i in range(3):
            tiny.close(tiny.state_of(federation, i)["offline"], offline[i])
    metrics = federation.evaluate()
    for i, (x, y) in enumerate(data):
        both = [forward(shared, x), forward(offline[i], x)]
        outputs = {"personal": both[0] + both[1], "online": both[0], "offline": both[1]}
        for part, logits in outputs.items():
            right = (logits.argmax(1) == y).double().mean()
            found = metrics[f"{part}/local/accuracy/client/client{i}"]
            assert found == pytest.approx(float(right))


def test_without_either_transfer_it_is_fedbn_and_local_side_by_side() -> None:
    """Each of the two models is also tested alone, as the method that it is then."""
    settings: dict[str, Any] = {"model": tiny.DROPOUT, "rounds": 4}
    settings |= {"participation": {"clients": 2}, "evaluation": {"others": True}}
    both, norm, alone = (tiny.run(a, **settings) for a in (ALONE, "fedbn", "local"))
    assert tiny.models_sha(both) == tiny.models_sha(norm)
    assert tiny.personal_sha(both) == tiny.personal_sha(norm)
    offline = [tiny.state_of(both, i)["offline"] for i in range(3)]
    assert trees.sha256(*offline) == tiny.personal_sha(alone)
    found, online, local = (one.evaluate() for one in (both, norm, alone))
    for name in ("accuracy", "loss", "accuracy/worst10", "accuracy/client/client1"):
        assert found[f"online/local/{name}"] == online[f"personal/local/{name}"]
        assert found[f"offline/local/{name}"] == local[f"personal/local/{name}"]
    assert len({found[f"{part}/local/loss"] for part in ("online", "offline", "personal")}) == 3
    assert not any(name.startswith(("online", "offline")) for name in online)


def test_label_skew_sends_no_classifiers() -> None:
    methods = ({"name": "fedco2", "form": "label_skew"}, "fedbn", "fedco2")
    labels, plain, features = (tiny.run(method).step().metrics for method in methods)
    for way in ("bytes/up", "bytes/down"):
        assert labels[way] == plain[way] < features[way]


def test_the_server_keeps_the_last_known_classifiers() -> None:
    federation, seen = tiny.fresh("fedco2", participation={"clients": 1}), set[int]()
    initial = federation.server.model[tiny.V].clone()
    for _ in range(4):
        federation.step()
        seen |= set(federation.server.cohort)
    for i in range(3):
        known = tiny.state_of(federation, i)["offline"][tiny.V] if i in seen else initial
        assert torch.equal(federation.server.state["heads"][str(i)][tiny.V], known)


@pytest.mark.parametrize(
    ("options", "group"),
    [
        ({}, "batch_norm"),
        ({"personal": "classifier"}, "classifier"),
        ({"form": "label_skew", "variant": "released"}, "batch_norm-buffers"),
        ({"statistics": "averaged"}, "batch_norm-buffers"),
    ],
    ids=str,
)
def test_personal_part(options: dict[str, Any], group: str) -> None:
    federation = tiny.run({"name": "fedco2", **options})
    names = select(federation.spec.build("two-layer"), group)
    assert set(tiny.state_of(federation, 0)["personal"]) == names


def test_teachers_and_classifiers_are_frozen_during_the_turn() -> None:
    """Batch norm: what the peers' heads and the teachers are does not depend on the order of training."""
    equal = [tiny.gaussian_clients((12,))[0]] * 2
    federation = tiny.run("fedco2", equal, local={"batch_size": 100})
    offline = tiny.state_of(federation, 0)["offline"]
    # both models start equal, see the same batches and have the same peers: they end equal
    names = select(federation.spec.build("two-layer"), "not_batch_norm")
    tiny.close(federation.server.model, {name: offline[name] for name in names})


# --- the released code -----------------------------------------------------------------------------
# Whole loops of zhyczy/Fed-CO2, in plain PyTorch and float64: what its `local_training`, `train_CO2` and
# `communication` do under feature skew, written anew; nothing of flray's formulas is used.


LR, BATCH, ROUNDS = 0.1, 4, 3


@registry.register_model("norm-in-classifier")
def norm_in_classifier(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """As in the digits' network there, whose classifier has batch norms of its own."""
    features = nn.Sequential(nn.Linear(shape[0], 6), nn.BatchNorm1d(6), nn.ReLU())
    head = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, num_classes))
    return SplitModel(features, head)


class ReleasedLoop:
    """Two models for each client, trained side by side on the same batches."""

    def __init__(self, federation: Federation) -> None:
        self.federation = federation
        self.online: list[Any] = released.networks(federation)
        self.offline: list[Any] = [copy.deepcopy(model) for model in self.online]

    def run(self, number: int) -> None:
        heads = [copy.deepcopy(model.classifier).eval() for model in self.offline]
        for i in range(3):
            self.train(i, number, heads)
        norms = [f"{name}." for name, m in self.online[0].named_modules() if "Norm" in str(type(m))]
        states = [model.state_dict() for model in self.online]
        for name in states[0]:
            if not name.startswith(tuple(norms)):
                mean = sum((state[name] / 3 for state in states), torch.zeros(()))
                for state in states:
                    state[name].copy_(mean)

    def train(self, i: int, number: int, heads: list[Any]) -> None:
        x, y = released.private(self.federation, i)
        models = (self.online[i].train(), self.offline[i].train())
        steps = [torch.optim.SGD(model.parameters(), lr=LR) for model in models]
        if number:
            teachers = [copy.deepcopy(model).eval() for model in models]
            (batches,) = released.private_batches(self.federation, i, number, BATCH, 1, "mutual/0")
            for rows in batches:
                for model, teacher, step in zip(models, teachers[::-1], steps, strict=True):
                    taught = torch.softmax(teacher(x[rows]).detach(), 1)
                    student = torch.log_softmax(model(x[rows]), 1)
                    tiny.descend(step, nn.functional.kl_div(student, taught, reduction="batchmean"))
        (batches,) = released.private_batches(self.federation, i, number, BATCH, 1)
        for rows in batches:
            for model, step in zip(models, steps, strict=True):
                features = model.features(x[rows])
                loss = nn.functional.cross_entropy(model.classifier(features), y[rows])
                for j, head in enumerate(heads):
                    if j != i:
                        loss = loss + nn.functional.cross_entropy(head(features), y[rows])
                tiny.descend(step, loss)


def compare(**changes: Any) -> None:
    """Run both, and compare both models of every client after every round."""
    local = {"lr": LR, "batch_size": BATCH}
    federation = released.fresh(
        {"name": "fedco2", **changes}, model="norm-in-classifier", local=local
    )
    loop = ReleasedLoop(federation)
    for number in range(ROUNDS):
        federation.step()
        loop.run(number)
        for i in range(3):
            state = tiny.state_of(federation, i)
            online = {**federation.server.model, **state["personal"]}
            released.assert_same(online, loop.online[i])
            released.assert_same(state["offline"], loop.offline[i])


def test_whole_loops_of_the_released_code() -> None:
    compare()
