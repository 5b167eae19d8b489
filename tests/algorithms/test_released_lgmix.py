"""`variant: released` of LG-Mix against whole loops of med-air/HeteroPFL, in plain PyTorch and float64.

What its `train`, `_get_eig_vals`, `train_epoch` and `communication_grad` do, written anew; nothing of
flray's formulas is used.
"""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flray.federation.federation import Federation
from tests.algorithms import helpers as tiny
from tests.algorithms import released

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


def compare(epochs: int, **changes: Any) -> None:
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


@pytest.mark.parametrize(
    ("epochs", "change"),
    [
        (1, {"centred": False}),
        (1, {"drop_smallest": False}),
        (1, {"history": "earlier"}),
        (1, {"drop_last": False}),
        (3, {"update": "round"}),
    ],
)
def test_without_any_one_of_its_values_it_is_another_loop(
    epochs: int, change: dict[str, Any]
) -> None:
    with pytest.raises(AssertionError, match="not close"):
        compare(epochs, **change)


def test_traces_of_an_epoch_are_not_those_of_its_batches() -> None:
    """Centred batch by batch, the traces lose what batches differ by: lambda is another."""
    federation = fresh(1)
    loop = ReleasedLoop(federation, 1)
    (batches,) = released.private_batches(federation, 0, 0, BATCH, 1)
    own, other = loop.train(0, batches)
    parts = [sum(float(eigenvalues(part).sum()) for part in h.split(BATCH)) for h in (own, other)]
    found = federation.step().metrics["train/lgmix/lambda_of_round/client/client0"]
    assert abs(found - parts[0] / sum(parts)) > 1e-5
