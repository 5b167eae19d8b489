"""`variant: released` of FCCL and FCCL+ against whole loops of WenkeHuang/FCCL, in plain PyTorch and float64.

What its `col_update`, `loc_update`, `_train_net`, `_pretrain_net` and `train` do, written anew; nothing
of flray's formulas is used. Images are vectors here: the crops of public images have tests of
their own.
"""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flray.federation.federation import Federation
from tests.algorithms import helpers as tiny
from tests.algorithms import released

LR, ROUNDS, EPOCHS, PRIVATE, PUBLIC = 0.01, 3, 2, 4, 12
TEMPERATURE, OMEGA, TAU = 0.02, 3.0, 3.0


class ReleasedLoop:
    """All networks in one process, one communication epoch after another."""

    def __init__(self, federation: Federation, plus: bool, pretrain: int, averaged: bool) -> None:
        self.federation, self.plus, self.averaged = federation, plus, averaged
        self.nets = released.networks(federation)
        self.data = [released.private(federation, i) for i in range(3)]
        public = federation.spec.data.public
        assert public is not None
        self.public = torch.from_numpy(public)
        self.public_lr = self.local_lr = LR
        for i, net in enumerate(self.nets):
            self.pretrain(i, net, pretrain)
        self.intra = [copy.deepcopy(net) for net in self.nets]
        self.previous = [copy.deepcopy(net) for net in self.nets]

    def pretrain(self, i: int, net: nn.Module, epochs: int) -> None:
        """Adam without decay; the scheduler, called after each epoch with that epoch's number, is one late."""
        optimizer, (x, y) = torch.optim.Adam(net.parameters(), lr=LR), self.data[i]
        orders = released.private_batches(self.federation, i, 0, PRIVATE, epochs, "pretrain/0")
        for epoch, batches in enumerate(orders):
            for rows in batches:
                optimizer.zero_grad()
                nn.functional.cross_entropy(net(x[rows]), y[rows]).backward()
                optimizer.step()
            lr = 1e-6 + 0.5 * (LR - 1e-6) * (1 + math.cos(math.pi * epoch / epochs))
            optimizer.param_groups[0]["lr"] = lr

    def communicate(self, number: int) -> None:
        self.collaborative_updating(number)
        self.public_lr = LR * (1 - number / ROUNDS * 0.9)
        if self.averaged and self.plus:
            self.average()
        self.local_updating(number)
        if self.averaged and not self.plus:
            self.average()
        self.local_lr = LR * (1 - number / ROUNDS * 0.9)

    def collaborative_updating(self, number: int) -> None:
        algorithm: Any = self.federation.spec.algorithm
        for rows in algorithm.public_order(0, number, len(self.public)):
            images = self.public[rows]
            outputs, similar = [], []
            for net in self.nets:
                net.train()
                outputs.append(net(images))
                if self.plus:
                    unit = nn.functional.normalize(net.features(images), dim=1)
                    cosines = unit @ unit.T
                    others = ~torch.eye(len(images), dtype=torch.bool)
                    similar.append(cosines[others].view(len(images), -1) / TEMPERATURE)
            target = torch.stack([z.detach() for z in outputs]).mean(0)
            for i, net in enumerate(self.nets):
                optimizer = torch.optim.Adam(net.parameters(), lr=self.public_lr)
                own, mean = ((z - z.mean(0)) / z.std(0) for z in (outputs[i], target))
                c = own.T @ mean / len(images)
                diagonal = torch.diagonal(c)
                loss = (diagonal - 1).pow(2).sum() + 0.0051 * (
                    (c + 1).pow(2).sum() - (diagonal + 1).pow(2).sum()
                )
                if self.plus:
                    taught = torch.softmax(torch.stack([s.detach() for s in similar]).mean(0), 1)
                    loss = loss + OMEGA * kl(torch.log_softmax(similar[i], 1), taught)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    def local_updating(self, number: int) -> None:
        for i, net in enumerate(self.nets):
            x, y = self.data[i]
            optimizer = torch.optim.Adam(net.parameters(), lr=self.local_lr, weight_decay=1e-5)
            for batches in released.private_batches(self.federation, i, number, PRIVATE, EPOCHS):
                for rows in batches:
                    outputs = net(x[rows])
                    loss = nn.functional.cross_entropy(outputs, y[rows])
                    loss = loss + self.term(i, outputs, x[rows], y[rows])
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
        for previous, net in zip(self.previous, self.nets, strict=True):
            previous.load_state_dict(net.state_dict())

    def term(self, i: int, outputs: Tensor, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():  # never put into eval mode
            inter, intra = self.previous[i](x), self.intra[i](x)
        if not self.plus:
            student = torch.log_softmax(outputs, 1)
            return sum((kl(student, torch.softmax(z, 1)) for z in (intra, inter)), torch.zeros(()))
        others = torch.ones_like(outputs).scatter_(1, y[:, None], 0).bool()
        p, q = (torch.softmax(z / TAU, 1)[others].view(len(y), -1) for z in (inter, outputs))
        return kl(q.log(), p) * TAU**2

    def average(self) -> None:
        """Plain means of all entries."""
        states = [net.state_dict() for net in self.nets]
        for name, value in states[0].items():
            if value.is_floating_point():
                mean = sum((state[name] / 3 for state in states), torch.zeros(()))
                for state in states:
                    state[name].copy_(mean)


def kl(student: Tensor, teacher: Tensor) -> Tensor:
    """Of log probabilities from probabilities: the sum over columns, mean over rows."""
    return nn.functional.kl_div(student, teacher, reduction="batchmean")


def compare(name: str, pretrain: int, averaged: bool, **changes: Any) -> None:
    """Run both, and compare after every round."""
    sizes = {"public_batch_size": PUBLIC, "batch_size": PRIVATE}
    options = {"name": name, "pretrain_epochs": pretrain, "average": averaged, **sizes, **changes}
    federation = released.fresh(
        options,
        models={} if averaged else {"client1": {"name": "two-norms", "width": 7}},
        local={"optimizer": "adam", "lr": LR, "epochs": EPOCHS, "batch_size": 32},
        rounds=ROUNDS,
    )
    loop = ReleasedLoop(federation, name == "fcclplus", pretrain, averaged)
    for number in range(ROUNDS):
        federation.step()
        loop.communicate(number)
        for i, net in enumerate(loop.nets):
            released.assert_same(tiny.kept(federation, i), net, counters=not averaged)


@pytest.mark.parametrize(
    ("name", "pretrain", "averaged"),
    [("fcclplus", 0, False), ("fcclplus", 0, True), ("fccl", 3, False), ("fccl", 0, True)],
)
def test_whole_loops_of_the_released_code(name: str, pretrain: int, averaged: bool) -> None:
    compare(name, pretrain, averaged)


@pytest.mark.parametrize(
    ("name", "pretrain", "averaged", "change"),
    [
        ("fcclplus", 0, False, {"epoch_optimizer": "fresh"}),
        ("fcclplus", 0, False, {"lr_schedule": "constant"}),
        ("fcclplus", 0, False, {"public_optimizer": "kept"}),
        ("fcclplus", 0, False, {"public_weight_decay": 1e-5}),
        ("fcclplus", 0, False, {"weight_decay": 0.0}),
        ("fcclplus", 0, False, {"second_forward": False}),
        ("fcclplus", 0, False, {"shrunk": False}),
        ("fcclplus", 0, False, {"tau_squared": False}),
        ("fcclplus", 0, False, {"teacher_mode": "eval"}),
        ("fcclplus", 0, True, {"average_after": "local"}),
        ("fccl", 0, True, {"average_after": "public"}),
        ("fccl", 3, False, {"pretrain_weight_decay": 1e-5}),
        ("fccl", 3, False, {"pretrain_schedule": "constant"}),
    ],
)
def test_without_any_one_of_its_values_it_is_another_loop(
    name: str, pretrain: int, averaged: bool, change: dict[str, Any]
) -> None:
    with pytest.raises(AssertionError, match=r"not close|not equal"):
        compare(name, pretrain, averaged, **change)
