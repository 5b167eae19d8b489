"""FCCL and FCCL+: all participants in one loop, as the papers have it and as the released code does."""

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from flray import registry
from flray.federation.federation import Federation
from flray.models import SplitModel
from tests.algorithms import helpers as tiny
from tests.algorithms import released
from tests.algorithms.released import ROUNDS
from tests.helpers import cases

LR, EPOCHS, PRIVATE, PUBLIC = 0.01, 2, 4, 10


class Loop:
    """All networks in one process, in plain PyTorch and float64: everything is computed, then all step.

    What `col_update`, `loc_update`, `_train_net`, `_pretrain_net` and `train` of WenkeHuang/FCCL do, and what the
    papers' equations say where they differ from it; nothing of flray's formulas is used. `hp` says which. Images are
    vectors here: the crops of public images have tests of their own.
    """

    def __init__(self, federation: Federation, hp: Any) -> None:
        self.federation, self.hp, self.teacher = federation, hp, getattr(hp, "teacher", "previous")
        self.nets = released.networks(federation)
        self.data = [released.private(federation, i) for i in range(3)]
        self.public = torch.from_numpy(federation.spec.data.public)
        for i, net in enumerate(self.nets):
            self.pretrain(i, net, hp.pretrain_epochs)
        self.pretrained, self.teachers = copy.deepcopy(self.nets), copy.deepcopy(self.nets)

    def adam(self, net: nn.Module, lr: float, decay: float | None) -> torch.optim.Optimizer:
        decay = self.hp.weight_decay if decay is None else decay
        return torch.optim.Adam(net.parameters(), lr=lr, weight_decay=decay or 0.0)

    def rate(self, number: int) -> float:
        """The linear decay is set after its use."""
        linear = self.hp.lr_schedule == "linear"
        return LR * (1 - max(number - 1, 0) / ROUNDS * 0.9) if linear else LR

    def batches(self, i: int, number: int, epochs: int, phase: str) -> list[list[Tensor]]:
        size = self.hp.batch_size
        return released.private_batches(self.federation, i, number, size, epochs, f"{phase}/0")

    def pretrain(self, i: int, net: nn.Module, epochs: int) -> None:
        """The scheduler, called after each epoch with that epoch's number, is one late."""
        optimizer, (x, y) = self.adam(net, LR, self.hp.pretrain_weight_decay), self.data[i]
        for epoch, batches in enumerate(self.batches(i, 0, epochs, "pretrain")):
            for rows in batches:
                tiny.descend(optimizer, nn.functional.cross_entropy(net(x[rows]), y[rows]))
            if self.hp.pretrain_schedule == "cosine":
                lr = 1e-6 + 0.5 * (LR - 1e-6) * (1 + math.cos(math.pi * epoch / epochs))
                optimizer.param_groups[0]["lr"] = lr

    def run(self, number: int) -> None:
        if self.hp.fccm or self.hp.fisl:
            self.collaborative_updating(number)
        if self.hp.average and self.hp.average_after == "public":
            self.average()
        self.local_updating(number)
        if self.hp.average and self.hp.average_after == "local":
            self.average()

    def collaborative_updating(self, number: int) -> None:
        hp, algorithm = self.hp, self.federation.spec.algorithm
        made = [self.adam(net, self.rate(number), hp.public_weight_decay) for net in self.nets]
        for rows in algorithm.public_order(0, number, len(self.public)):  # type: ignore[attr-defined]
            images = self.public[rows]
            outputs, similar = [], []
            for net in self.nets:
                features = net.train().features(images)
                outputs.append(net.classifier(features))
                if hp.fisl:
                    features = net.features(images) if hp.second_forward else features
                    unit = nn.functional.normalize(features, dim=1)
                    others = ~torch.eye(len(images), dtype=torch.bool)
                    similar.append((unit @ unit.T)[others].view(len(images), -1) / hp.mu)
            target = torch.stack([z.detach() for z in outputs]).mean(0)
            if hp.public_optimizer == "fresh":
                made = [self.adam(n, self.rate(number), hp.public_weight_decay) for n in self.nets]
            for i, optimizer in enumerate(made):
                loss = outputs[i].sum() * 0
                if hp.fccm:
                    pair = (outputs[i], target)
                    own, mean = ((z - z.mean(0)) / z.std(0, unbiased=hp.shrunk) for z in pair)
                    c = own.T @ mean / len(images)
                    diagonal = torch.diagonal(c)
                    loss = loss + (diagonal - 1).pow(2).sum()
                    loss = loss + 0.0051 * ((c + 1).pow(2).sum() - (diagonal + 1).pow(2).sum())
                if hp.fisl:
                    taught = torch.stack([s.detach() for s in similar]).mean(0)
                    loss = loss + hp.omega * kl(taught, similar[i], 1.0).sum(1).mean()
                tiny.descend(optimizer, loss)

    def local_updating(self, number: int) -> None:
        if self.teacher == "current":
            self.teachers = copy.deepcopy(self.nets)
        for i, net in enumerate(self.nets):
            (x, y), fresh = self.data[i], self.hp.epoch_optimizer == "fresh"
            anchor = copy.deepcopy(self.teachers[i]).eval()
            fisher = self.fisher(anchor, x, y) if self.hp.local_term == "ewc" else {}
            phases = [(f"epoch {n}", 1) for n in range(EPOCHS)] if fresh else [("train", EPOCHS)]
            for phase, epochs in phases:
                optimizer = self.adam(net.train(), self.rate(number), None)
                for rows in (r for e in self.batches(i, number, epochs, phase) for r in e):
                    outputs = net(x[rows])
                    loss = nn.functional.cross_entropy(outputs, y[rows])
                    if self.hp.local_term == "ewc":
                        pairs = zip(net.named_parameters(), anchor.parameters(), strict=True)
                        moved = [(fisher[n] * (w - a.detach()) ** 2).sum() for (n, w), a in pairs]
                        loss = loss + self.hp.ewc / 2 * torch.stack(moved).sum()
                    elif self.hp.local_term != "none":
                        loss = loss + self.term(i, outputs, x[rows], y[rows])
                    tiny.descend(optimizer, loss)
        self.teachers = copy.deepcopy(self.nets)

    def term(self, i: int, outputs: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """The released code never puts its teachers into eval mode."""
        hp, train = self.hp, self.hp.teacher_mode == "train"
        with torch.no_grad():
            inter, intra = (m[i].train(train)(x) for m in (self.teachers, self.pretrained))
        if hp.local_term == "two_teachers":
            return (kl(inter, outputs, 1.0) + kl(intra, outputs, 1.0)).sum(1).mean()
        whole = kl(inter, outputs, hp.tau)
        others = whole.scatter(1, y[:, None], 0.0)
        fntd = others.sum(1).mean() * (hp.tau**2 if hp.tau_squared else 1)
        share: float = hp.kd_share
        return (1 - share) * fntd + share * hp.tau**2 * whole.sum(1).mean()

    @staticmethod
    def fisher(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        sums = {n: torch.zeros_like(w) for n, w in model.named_parameters()}
        for row, label in zip(x, y, strict=True):
            model.zero_grad()
            nn.functional.cross_entropy(model(row[None]), label[None]).backward()
            for n, w in model.named_parameters():
                sums[n] += w.grad**2 / len(y)
        return sums

    def average(self) -> None:
        """Plain means of all entries, the largest counter."""
        states = [net.state_dict() for net in self.nets]
        for name, value in states[0].items():
            several = torch.stack([state[name] for state in states])
            mean = several.mean(0) if value.is_floating_point() else several.amax(0)
            for state in states:
                state[name].copy_(mean)


def kl(teacher: Tensor, student: Tensor, tau: float) -> Tensor:
    p, q = (torch.log_softmax(z / tau, 1) for z in (teacher, student))
    return p.exp() * (p - q)


def compare(
    name: str = "fcclplus", other: Any = None, average: bool = False, **options: Any
) -> None:
    """Run both, and compare after every round; `other` are options that the loop does not have."""
    options |= {"average": average, "public_batch_size": PUBLIC, "batch_size": PRIVATE}
    models = {} if average else {"client1": {"name": "two-norms", "width": 7}}
    local = {"optimizer": "adam", "lr": LR, "epochs": EPOCHS, "batch_size": 32}
    settings = {"models": models, "local": local, "rounds": ROUNDS}
    tolerance = 1e-10 if options.get("variant") == "paper" else 1e-12  # Adam enlarges rounding
    for federation, loop, _ in released.side_by_side(name, Loop, options, other, **settings):
        assert "optimizer" not in tiny.state_of(federation, 0)
        for i, net in enumerate(loop.nets):
            released.assert_same(tiny.kept(federation, i), net, atol=tolerance)


@cases(
    "options",
    """{}, {omega: 0.5, mu: 0.1}, {fccm: false}, {fisl: false}, {local_term: none},
    {public_passes: 2}, {epoch_optimizer: fresh}, {kd_share: 0.4}, {tau_squared: false},
    {teacher: current}, {local_term: ewc, ewc: 5.0}, {average: true}, {weight_decay: 0.1},
    {name: fccl, pretrain_epochs: 3}""",
)
def test_stages_compute_what_all_participants_in_one_loop_do(options: dict[str, Any]) -> None:
    compare(variant="paper", **options)


@cases(
    "options", "{}, {average: true}, {name: fccl, pretrain_epochs: 3}, {name: fccl, average: true}"
)
def test_whole_loops_of_the_released_code(options: dict[str, Any]) -> None:
    compare(**options)


@registry.register_model("frozen-layer")
def frozen_layer(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    body = nn.Sequential(nn.Linear(shape[0], 5).requires_grad_(False), nn.ReLU(), nn.Linear(5, 4))
    return SplitModel(body, nn.Linear(4, num_classes))


def test_what_a_network_holds_fixed_has_no_elastic_weight() -> None:
    federation = tiny.run({"name": "fcclplus", "local_term": "ewc"}, model="frozen-layer", rounds=2)
    start, own = tiny.start(federation), tiny.kept(federation, 0)
    moved = [name for name, value in own.items() if not torch.equal(value, start[name])]
    assert moved == [name for name in own if not name.startswith("features.0.")]


def test_every_public_sample_is_seen_once_per_pass_by_all() -> None:
    params = registry.algorithms.params("fcclplus")
    few = params(public_size=20, public_batch_size=6, public_passes=2)
    algorithm = registry.algorithms.get("fcclplus")(few)
    batches = algorithm.public_order(3, 5, 50)
    assert [len(b) for b in batches] == [6, 6, 6, 2] * 2
    orders = [*(list(batches[i : i + 4]) for i in (0, 4)), list(algorithm.public_order(3, 6, 50))]
    first, second, other = (torch.cat(order).tolist() for order in orders)
    assert len(set(first)) == 20 and first != second and other[:20] != first
    assert set(first) == set(second) == set(other), "the public samples are chosen once"
