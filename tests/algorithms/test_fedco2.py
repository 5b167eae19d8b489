"""Fed-CO2: FedBN and local training inside it, and whole loops of the paper and of the released code."""

import copy
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

from flray import registry, trees
from flray.federation.federation import Federation
from flray.models import SplitModel
from tests.algorithms import helpers as tiny
from tests.algorithms import released
from tests.helpers import cases

ALONE = {"name": "fedco2", "mu": 0, "intra": "none"}


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


# What `local_training`, `train_CO2` and `communication` of zhyczy/Fed-CO2 do, and what the paper's algorithms say where
# they differ from it, in plain PyTorch and float64; nothing of flray's formulas is used.
LR, BATCH = 0.1, 4


@registry.register_model("norm-in-classifier")
def norm_in_classifier(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """As in the digits' network there, whose classifier has batch norms of its own."""
    features = nn.Sequential(nn.Linear(shape[0], 6), nn.BatchNorm1d(6), nn.ReLU())
    head = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, num_classes))
    return SplitModel(features, head)


class Loop:
    """Two models for each client, trained side by side on the same batches; `hp` says in which of the two ways."""

    def __init__(self, federation: Federation, hp: Any) -> None:
        self.federation, self.hp = federation, hp
        self.online: list[Any] = released.networks(federation)
        self.offline: list[Any] = [copy.deepcopy(model) for model in self.online]
        self.data = [released.private(federation, i) for i in range(3)]

    def run(self, number: int) -> None:
        heads = [copy.deepcopy(model.classifier).eval() for model in self.offline]
        for i in range(3):
            self.train(i, number, heads)
        states = [model.state_dict() for model in self.online]
        counts = [len(y) if self.hp.weights == "samples" else 1 for _, y in self.data]
        for name in filter(self.is_averaged, states[0]):
            mean = tiny.mean_of([{name: state[name]} for state in states], counts)[name]
            for state in states:
                counter = not state[name].is_floating_point()
                state[name].copy_(max(s[name] for s in states) if counter else mean)

    def is_averaged(self, name: str) -> bool:
        norms = [f"{n}." for n, m in self.online[0].named_modules() if "Norm" in str(type(m))]
        if self.hp.personal == "classifier":
            return not name.startswith("classifier")
        statistic = "running" in name or "tracked" in name
        averaged = self.hp.statistics == "averaged" and statistic
        return averaged or not name.startswith(tuple(norms))

    def train(self, i: int, number: int, heads: list[Any]) -> None:
        x, y = self.data[i]
        models = {"online": self.online[i].train(), "offline": self.offline[i].train()}
        teachers = [copy.deepcopy(model).eval() for model in models.values()]
        (mutual,) = released.private_batches(self.federation, i, number, BATCH, 1, "mutual/0")
        (batches,) = released.private_batches(self.federation, i, number, BATCH, 1)
        for (which, model), teacher in zip(models.items(), teachers[::-1], strict=True):
            step = torch.optim.SGD(model.parameters(), lr=LR)
            if self.hp.intra in ("both", f"to_{which}") and (number or self.hp.first_mutual):
                for rows in mutual:
                    taught = torch.softmax(teacher(x[rows]).detach(), 1)
                    student = torch.log_softmax(model(x[rows]), 1)
                    tiny.descend(step, nn.functional.kl_div(student, taught, reduction="batchmean"))
            peers = [head for j, head in enumerate(heads) if j != i]
            for rows in batches:
                features = model.features(x[rows])
                loss = nn.functional.cross_entropy(model.classifier(features), y[rows])
                for head in peers if self.hp.inter in ("both", which) else []:
                    loss = loss + self.hp.mu * nn.functional.cross_entropy(head(features), y[rows])
                tiny.descend(step, loss)

    def accuracies(self, i: int) -> dict[str, float]:
        """Return those of both models and of the sum of their logits."""
        x, y = self.data[i]
        online, offline = (models[i].eval()(x) for models in (self.online, self.offline))
        outputs = {"personal": online + offline, "online": online, "offline": offline}
        return {n: float((z.argmax(1) == y).double().mean()) for n, z in outputs.items()}


def compare(other: Mapping[str, Any] | None = None, **options: Any) -> None:
    """Run both, and compare both models of every client after every round; `other` are options of flray's alone."""
    settings = {"model": "norm-in-classifier", "local": {"lr": LR, "batch_size": BATCH}}
    for federation, loop, _ in released.side_by_side("fedco2", Loop, options, other, **settings):
        for i in range(3):
            state = tiny.state_of(federation, i)
            released.assert_same({**federation.server.model, **state["personal"]}, loop.online[i])
            released.assert_same(state["offline"], loop.offline[i])
    metrics = federation.evaluate()
    for i in range(3):
        for part, right in loop.accuracies(i).items():
            assert metrics[f"{part}/local/accuracy/client/client{i}"] == pytest.approx(right)


@cases("options", "{}, {form: label_skew}")
def test_whole_loops_of_the_released_code(options: dict[str, Any]) -> None:
    compare(**options)


@cases(
    "options",
    """{}, {mu: 0.3}, {intra: to_online}, {intra: to_offline}, {intra: none}, {inter: online},
    {inter: offline}, {inter: none}, {form: label_skew}, {personal: classifier},
    {statistics: averaged}""",
)
def test_whole_loops_of_the_paper(options: dict[str, Any]) -> None:
    compare(variant="paper", **options)
