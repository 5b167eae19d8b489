"""FCCL and FCCL+: the staged exchange against all participants in one loop, and whole loops of the released code."""

import copy
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flray import functional, registry, trees
from flray.algorithms.client import Client
from flray.federation.federation import Federation
from tests.algorithms import helpers as tiny
from tests.algorithms import released
from tests.algorithms.helpers import V

ADAM: dict[str, Any] = {"optimizer": "adam", "lr": 0.02, "batch_size": 100, "epochs": 2}
CLIENTS = tiny.gaussian_clients((10, 9, 12))


class Loop:
    """All participants in one process, as the paper's pseudo-code has it: compute everything, then step."""

    def __init__(self, federation: Federation) -> None:
        self.algorithm, self.hp = federation.spec.algorithm, federation.spec.algorithm.hp
        self.models = [federation.spec.build(key) for key in federation.spec.architecture_of]
        self.data = tiny.as_tensors(CLIENTS)
        self.public = torch.from_numpy(federation.spec.data.public)
        for i, model in enumerate(self.models):
            self.local(i, model, self.hp.pretrain_epochs, term=False)
        self.teachers = [copy.deepcopy(m) for m in self.models]
        self.pretrained = [copy.deepcopy(m) for m in self.models]

    def adam(self, model: nn.Module) -> torch.optim.Optimizer:
        decay = self.hp.weight_decay or 0.0
        return torch.optim.Adam(model.parameters(), lr=0.02, weight_decay=decay)

    def round(self, number: int) -> None:
        hp, optimizers = self.hp, [self.adam(m) for m in self.models]
        positions = self.algorithm.public_order(0, number, len(self.public))
        for x in (self.public[rows] for rows in positions if hp.fccm or hp.fisl):
            features = [m.train().features(x) for m in self.models]
            logits = [m.classifier(f) for m, f in zip(self.models, features, strict=True)]
            mean = torch.stack([z.detach() for z in logits]).mean(0)
            if hp.fisl:
                own = [functional.instance_similarity(f, hp.mu) for f in features]
                similar = torch.stack([s.detach() for s in own]).mean(0)
            for i, optimizer in enumerate(optimizers):
                loss = logits[i].sum() * 0
                if hp.fccm:
                    m = functional.cross_correlation(logits[i], mean)
                    off = m[~torch.eye(3, dtype=torch.bool)]
                    loss = loss + ((1 - m.diagonal()) ** 2).sum() + 0.0051 * ((1 + off) ** 2).sum()
                if hp.fisl:
                    loss = loss + hp.omega * kl(similar, own[i], 1.0).sum(1).mean()
                tiny.descend(optimizer, loss)
        if hp.average:
            self.average()
        for i, model in enumerate(self.models):
            if getattr(hp, "teacher", "previous") == "current":
                self.teachers[i] = copy.deepcopy(model)
            self.local(i, model, 2, term=True)
        self.teachers = [copy.deepcopy(m) for m in self.models]

    def average(self) -> None:
        states = [m.state_dict() for m in self.models]
        for name, value in states[0].items():
            several = torch.stack([state[name] for state in states])
            mean = several.mean(0) if value.is_floating_point() else several.amax(0)
            for state in states:
                state[name].copy_(mean)

    def local(self, i: int, model: nn.Module, epochs: int, term: bool) -> None:
        (x, y), optimizer, hp = self.data[i], self.adam(model), self.hp
        guides = [self.teachers[i], self.pretrained[i]] if term else []
        guides = [copy.deepcopy(guide).eval() for guide in guides]
        fisher = self.fisher(guides[0], x, y) if term and hp.local_term == "ewc" else None
        for number in range(epochs):
            if number and hp.epoch_optimizer == "fresh" and term:
                optimizer = self.adam(model)
            logits = model.train()(x)
            loss = nn.functional.cross_entropy(logits, y)
            if term:
                taught = [guide(x).detach() for guide in guides]
                loss = loss + self.term(model, guides[0], fisher, logits, taught, y)
            tiny.descend(optimizer, loss)

    def term(
        self, model: Any, teacher: Any, fisher: Any, logits: Tensor, taught: list[Tensor], y: Tensor
    ) -> Tensor:
        hp = self.hp
        if hp.local_term == "none":
            return torch.zeros(())
        if hp.local_term == "ewc":
            anchor = dict(teacher.named_parameters())
            parts = [
                (fisher[n] * (w - anchor[n].detach()) ** 2).sum()
                for n, w in model.named_parameters()
            ]
            return hp.ewc / 2 * torch.stack(parts).sum()
        if hp.local_term == "two_teachers":
            return torch.stack([kl(t, logits, 1.0).sum(1).mean() for t in taught]).sum()
        whole = kl(taught[0], logits, hp.tau)
        other = whole.clone()
        other[torch.arange(len(y)), y] = 0
        share = hp.kd_share
        fntd = other.sum(1).mean() * (1 if hp.tau_squared is False else hp.tau**2)
        return (1 - share) * fntd + share * hp.tau**2 * whole.sum(1).mean()

    @staticmethod
    def fisher(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        sums = {n: torch.zeros_like(w) for n, w in model.named_parameters()}
        for row, label in zip(x, y, strict=True):
            model.zero_grad()
            nn.functional.cross_entropy(model(row[None]), label[None]).backward()
            for n, w in model.named_parameters():
                assert w.grad is not None
                sums[n] += w.grad**2 / len(y)
        return sums


def kl(teacher: Tensor, student: Tensor, tau: float) -> Tensor:
    p, q = (torch.log_softmax(z / tau, 1) for z in (teacher, student))
    return p.exp() * (p - q)


@pytest.mark.parametrize(
    ("options", "models"),
    [
        ({}, {}),
        ({}, tiny.OTHER),
        ({"omega": 0.5, "mu": 0.1}, {}),
        ({"fccm": False}, {}),
        ({"fisl": False}, {}),
        ({"local_term": "none"}, {}),
        ({"public_passes": 2}, {}),
        ({"epoch_optimizer": "fresh"}, {}),
        ({"kd_share": 0.4}, {}),
        ({"tau_squared": False}, {}),
        ({"teacher": "current"}, {}),
        ({"local_term": "ewc", "ewc": 5.0}, {}),
        ({"average": True}, {}),
        ({"weight_decay": 0.1}, {}),
        ({"name": "fccl", "pretrain_epochs": 3}, {}),
    ],
    ids=str,
)
def test_stages_compute_what_all_participants_in_one_loop_do(
    options: dict[str, Any], models: dict[str, Any]
) -> None:
    """Batch norm, Adam, three public batches a round, full private batches, three rounds."""
    options = {"name": "fcclplus", "public_batch_size": 10, **options}
    federation = tiny.fresh(options, CLIENTS, models=models, local=ADAM)
    loop = Loop(federation)
    for number in range(3):
        federation.step()
        loop.round(number)
        for i, model in enumerate(loop.models):
            tiny.close(tiny.kept(federation, i), model.state_dict(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("tau", [1.0, 2.0, 3.0, 5.0])
def test_fntd_pulls_as_hard_as_distillation(tau: float) -> None:
    """With tau^2 in both, as in Eq. 10 and 12: shares of one and the other are shares of one weight."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(10, (256,), generator=generator)
    teacher = 4 * torch.randn(256, 10, generator=generator)
    teacher[torch.arange(256), labels] += 6
    moved = teacher + 2 * torch.randn(256, 10, generator=generator)

    def pull(share: float) -> float:
        hp = registry.algorithms.params("fcclplus")(kd_share=share, tau=tau).resolved()
        algorithm = registry.algorithms.get("fcclplus")(hp)
        client: Any = SimpleNamespace(scratch={"teacher": nn.Identity()})
        logits = moved.clone().requires_grad_()
        batch: Any = SimpleNamespace(x=teacher, y=labels, outputs=logits)
        algorithm.memory_term(client, batch).backward()
        assert logits.grad is not None
        return float(logits.grad.norm(dim=1).mean())

    assert 0.5 <= pull(0.0) / pull(1.0) <= 2


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


def test_pre_trained_model_never_changes_and_the_teacher_is_the_last_reported_model() -> None:
    federation = tiny.run({"name": "fccl", "pretrain_epochs": 2})
    pretrained = trees.sha256(tiny.state_of(federation, 0)["pretrained"])
    for _ in range(2):
        federation.step()
        state = tiny.state_of(federation, 0)
        assert trees.sha256(state["pretrained"]) == pretrained
        assert trees.sha256(state["teacher"]) == trees.sha256(state["personal"])
        assert "optimizer" not in state


def test_what_keeps_from_forgetting_matters() -> None:
    terms: list[dict[str, Any]] = [
        *({"local_term": term} for term in ("none", "ewc", "two_teachers")),
        *({"kd_share": share} for share in (0.0, 0.5, 1.0)),
    ]
    runs = [tiny.run({"name": "fcclplus", **term}, rounds=2) for term in terms]
    assert len({tiny.personal_sha(run) for run in runs}) == len(terms)


FISHERS: list[dict[str, Tensor]] = []


@registry.register_algorithm("watched-fcclplus")
class Watched(registry.algorithms.get("fcclplus")):  # type: ignore[misc]
    """Notes the first client's Fisher information and the penalty's gradient before training moves anything."""

    def begin(self, client: Client) -> None:
        super().begin(client)
        if client.id == 0:
            anchor, fisher = client.scratch["anchor"], client.scratch["fisher"]
            penalty = functional.ewc_penalty(client.parameters, anchor, fisher, 1.0)
            gradients = torch.autograd.grad(penalty, list(client.parameters.values()))
            slope = torch.stack([g.abs().max() for g in gradients]).max()
            FISHERS.append({**fisher, "slope": slope})


def test_fisher_information_of_a_softmax_regression_is_its_closed_form() -> None:
    """Entry (c, d) is the mean of (p_c - y_c)^2 x_d^2; the penalty has no slope at its anchor."""
    FISHERS.clear()
    options = {"local_term": "ewc", "public_passes": 0, "teacher": "current"}
    federation = tiny.run({"name": "watched-fcclplus", **options}, CLIENTS, model="one-layer")
    x, y = tiny.as_tensors(CLIENTS)[0]
    residual = torch.softmax(x @ tiny.start(federation)[V].T, 1) - nn.functional.one_hot(y, 3)
    (fisher,) = FISHERS
    tiny.close(fisher[V], (residual**2).T @ x**2 / len(x))
    assert float(fisher["slope"]) == 0.0


# --- the released code -----------------------------------------------------------------------------
# Whole loops of WenkeHuang/FCCL, in plain PyTorch and float64: what its `col_update`, `loc_update`, `_train_net`,
# `_pretrain_net` and `train` do, written anew; nothing of flray's formulas is used. Images are vectors here: the crops
# of public images have tests of their own.


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
                tiny.descend(optimizer, nn.functional.cross_entropy(net(x[rows]), y[rows]))
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
                    loss = loss + OMEGA * divergence(torch.log_softmax(similar[i], 1), taught)
                tiny.descend(optimizer, loss)

    def local_updating(self, number: int) -> None:
        for i, net in enumerate(self.nets):
            x, y = self.data[i]
            optimizer = torch.optim.Adam(net.parameters(), lr=self.local_lr, weight_decay=1e-5)
            for batches in released.private_batches(self.federation, i, number, PRIVATE, EPOCHS):
                for rows in batches:
                    outputs = net(x[rows])
                    loss = nn.functional.cross_entropy(outputs, y[rows])
                    loss = loss + self.term(i, outputs, x[rows], y[rows])
                    tiny.descend(optimizer, loss)
        for previous, net in zip(self.previous, self.nets, strict=True):
            previous.load_state_dict(net.state_dict())

    def term(self, i: int, outputs: Tensor, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():  # never put into eval mode
            inter, intra = self.previous[i](x), self.intra[i](x)
        if not self.plus:
            student = torch.log_softmax(outputs, 1)
            return sum(
                (divergence(student, torch.softmax(z, 1)) for z in (intra, inter)), torch.zeros(())
            )
        others = torch.ones_like(outputs).scatter_(1, y[:, None], 0).bool()
        p, q = (torch.softmax(z / TAU, 1)[others].view(len(y), -1) for z in (inter, outputs))
        return divergence(q.log(), p) * TAU**2

    def average(self) -> None:
        """Plain means of all entries."""
        states = [net.state_dict() for net in self.nets]
        for name, value in states[0].items():
            if value.is_floating_point():
                mean = sum((state[name] / 3 for state in states), torch.zeros(()))
                for state in states:
                    state[name].copy_(mean)


def divergence(student: Tensor, teacher: Tensor) -> Tensor:
    """Of log probabilities from probabilities: the sum over columns, mean over rows."""
    return nn.functional.kl_div(student, teacher, reduction="batchmean")


def compare(name: str, pretrain: int = 0, averaged: bool = False, **changes: Any) -> None:
    """Run both, and compare after every round."""
    sizes = {"public_batch_size": PUBLIC, "batch_size": PRIVATE}
    options = {"name": name, "pretrain_epochs": pretrain, "average": averaged, **sizes, **changes}
    models = {} if averaged else {"client1": {"name": "two-norms", "width": 7}}
    local = {"optimizer": "adam", "lr": LR, "epochs": EPOCHS, "batch_size": 32}
    federation = released.fresh(options, models=models, local=local, rounds=ROUNDS)
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
