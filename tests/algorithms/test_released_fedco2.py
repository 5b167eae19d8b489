"""`variant: released` of Fed-CO2 against whole loops of zhyczy/Fed-CO2, in plain PyTorch and float64.

What its `local_training`, `train_CO2` and `communication` do under feature skew, written anew; nothing of
flray's formulas is used.
"""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flray import registry
from flray.federation.federation import Federation
from flray.models import SplitModel
from tests.algorithms import helpers as tiny
from tests.algorithms import released

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
                    descend(step, nn.functional.kl_div(student, taught, reduction="batchmean"))
        (batches,) = released.private_batches(self.federation, i, number, BATCH, 1)
        for rows in batches:
            for model, step in zip(models, steps, strict=True):
                features = model.features(x[rows])
                loss = nn.functional.cross_entropy(model.classifier(features), y[rows])
                for j, head in enumerate(heads):
                    if j != i:
                        loss = loss + nn.functional.cross_entropy(head(features), y[rows])
                descend(step, loss)


def descend(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


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


@pytest.mark.parametrize(
    "change",
    [
        {"first_mutual": True},
        {"weights": "samples"},
        {"statistics": "averaged"},
        {"intra": "to_online"},
        {"inter": "offline"},
        {"mu": 0.5},
    ],
    ids=str,
)
def test_with_any_other_value_it_is_another_loop(change: dict[str, Any]) -> None:
    with pytest.raises(AssertionError, match="not close"):
        compare(**change)
