"""FCCL and FCCL+: the staged exchange against all participants in one loop, ablations, identities, deviations."""

from __future__ import annotations

import copy
import math
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flray import functional, registry, trees
from flray.algorithms.client import Client
from flray.errors import ConfigError
from flray.federation.federation import Federation
from tests.algorithms import helpers as tiny

ADAM: dict[str, Any] = {"optimizer": "adam", "lr": 0.02, "batch_size": 100, "epochs": 2}
CLIENTS = tiny.gaussian_clients((10, 9, 12))


class Loop:
    """All participants in one process, as the paper's pseudo-code has it: compute everything, then step."""

    def __init__(self, federation: Federation, options: dict[str, Any]) -> None:
        self.algorithm = federation.spec.algorithm
        self.options, self.hp, self.spec = options, self.algorithm.hp, federation.spec
        self.models = [federation.spec.build(key) for key in federation.spec.architecture_of]
        self.data = tiny.as_tensors(CLIENTS)
        assert federation.spec.data.public is not None
        self.public = torch.from_numpy(federation.spec.data.public)
        self.teachers = [copy.deepcopy(m) for m in self.models]
        self.rate, self.decay = 0.02, self.hp.weight_decay or 0.0
        if self.hp.pretrain_epochs:
            for i, model in enumerate(self.models):
                self.local(i, model, self.hp.pretrain_epochs, term=False)
        self.teachers = [copy.deepcopy(m) for m in self.models]
        self.pretrained = [copy.deepcopy(m) for m in self.models]

    def adam(self, model: nn.Module, decay: float | None = None) -> torch.optim.Optimizer:
        decay = self.decay if decay is None else decay
        return torch.optim.Adam(model.parameters(), lr=self.rate, weight_decay=decay)

    def round(self, number: int) -> None:
        hp = self.hp
        if hp.lr_schedule == "linear":
            self.rate = 0.02 * (1 - 0.9 * max(number - 1, 0) / 3)
        optimizers = [self.adam(m, hp.public_weight_decay) for m in self.models]
        batches = (
            self.algorithm.public_order(0, number, len(self.public)) if hp.fccm or hp.fisl else []
        )
        for positions in batches:
            x = self.public[positions]
            features = [m.train().features(x) for m in self.models]
            logits = [m.classifier(f) for m, f in zip(self.models, features, strict=True)]
            mean = torch.stack([z.detach() for z in logits]).mean(0)
            if hp.fisl:
                if hp.second_forward:
                    features = [m.features(x) for m in self.models]
                own = [functional.instance_similarity(f, hp.mu) for f in features]
                similar = torch.stack([s.detach() for s in own]).mean(0)
            for i, model in enumerate(self.models):
                loss = logits[i].sum() * 0
                if hp.fccm:
                    m = functional.cross_correlation(logits[i], mean)
                    m = m * ((len(x) - 1) / len(x)) if hp.shrunk else m
                    off = ~torch.eye(3, dtype=torch.bool)
                    loss = (
                        loss + ((1 - m.diagonal()) ** 2).sum() + 0.0051 * ((1 + m[off]) ** 2).sum()
                    )
                if hp.fisl:
                    loss = loss + hp.omega * kl(similar, own[i], 1.0).sum(1).mean()
                optimizer = optimizers[i]
                if hp.public_optimizer == "fresh":
                    optimizer = self.adam(model, hp.public_weight_decay)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
        if hp.average and hp.average_after == "public":
            self.average()
        for i, model in enumerate(self.models):
            if getattr(hp, "teacher", "previous") == "current":
                self.teachers[i] = copy.deepcopy(model)
            self.local(i, model, 2, term=True)
        self.teachers = [copy.deepcopy(m) for m in self.models]
        if hp.average and hp.average_after == "local":
            self.average()

    def average(self) -> None:
        states = [m.state_dict() for m in self.models]
        mean_state = {
            n: torch.stack([s[n].double() for s in states]).mean(0).to(v.dtype)
            if v.is_floating_point()
            else torch.stack([s[n] for s in states]).amax(0)
            for n, v in states[0].items()
        }
        for m in self.models:
            m.load_state_dict(mean_state)

    def local(self, i: int, model: nn.Module, epochs: int, term: bool) -> None:
        x, y = self.data[i]
        optimizer = self.adam(model, None if term else self.hp.pretrain_weight_decay)
        guides = [copy.deepcopy(self.teachers[i])]
        if term and self.hp.local_term == "two_teachers":
            guides.append(copy.deepcopy(self.pretrained[i]))
        fisher = self.fisher(guides[0].eval(), x, y) if self.hp.local_term == "ewc" else None
        for number in range(epochs):
            if number and self.hp.epoch_optimizer == "fresh" and term:
                optimizer = self.adam(model)
            if not term and self.hp.pretrain_schedule == "cosine":
                share = (1 + math.cos(math.pi * max(number - 1, 0) / epochs)) / 2
                optimizer.param_groups[0]["lr"] = 1e-6 + (0.02 - 1e-6) * share
            logits = model.train()(x)
            loss = nn.functional.cross_entropy(logits, y)
            with torch.no_grad():
                taught = [g.train(self.hp.teacher_mode == "train")(x) for g in guides]
            if term:
                loss = loss + self.term(model, guides[0], fisher, logits, taught, y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()

    def term(
        self,
        model: nn.Module,
        teacher: nn.Module,
        fisher: Any,
        logits: Tensor,
        taught: list[Tensor],
        y: Tensor,
    ) -> Tensor:
        hp = self.hp
        if hp.local_term == "none":
            return torch.zeros(())
        if hp.local_term == "ewc":
            anchor = dict(teacher.named_parameters())
            return (
                hp.ewc
                / 2
                * sum(
                    (fisher[n] * (w - anchor[n].detach()) ** 2).sum()
                    for n, w in model.named_parameters()
                )
            )
        if hp.local_term == "two_teachers":
            return sum(kl(t, logits, 1.0).sum(1).mean() for t in taught)
        parts = kl(taught[0], logits, hp.tau)
        other = parts.clone()
        other[torch.arange(len(y)), y] = 0
        scale = hp.tau**2 if hp.tau_squared else 1
        return (1 - hp.kd_share) * scale * other.sum(
            1
        ).mean() + hp.kd_share * hp.tau**2 * parts.sum(1).mean()

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
    "options",
    [
        {},
        {"omega": 0.5, "mu": 0.1},
        {"fccm": False},
        {"fisl": False},
        {"local_term": "none"},
        {"public_passes": 2},
        {"public_optimizer": "fresh"},
        {"epoch_optimizer": "fresh"},
        {"lr_schedule": "linear"},
        {"shrunk": True},
        {"tau_squared": True},
        {"kd_share": 0.4},
        {"teacher": "current"},
        {"teacher_mode": "train"},
        {"local_term": "ewc", "ewc": 5.0},
        {"average": True},
        {"average": True, "average_after": "local"},
        {"weight_decay": 0.1},
        {"weight_decay": 0.1, "public_weight_decay": 0.0},
        {"public_weight_decay": 0.1},
        {"second_forward": True},
        {"name": "fccl", "pretrain_epochs": 3},
        {"name": "fccl", "pretrain_epochs": 3, "pretrain_weight_decay": 0.1},
        {"name": "fccl", "pretrain_epochs": 3, "pretrain_schedule": "cosine"},
        {"variant": "released", "public_batch_size": 10, "batch_size": 100},
    ],
    ids=str,
)
def test_stages_compute_what_all_participants_in_one_loop_do(options: dict[str, Any]) -> None:
    """Batch norm, Adam, three public batches a round, full private batches, three rounds."""
    options = {"name": "fcclplus", "public_batch_size": 10, **options}
    federation = tiny.fresh(options, CLIENTS, local=ADAM)
    loop = Loop(federation, options)
    for number in range(3):
        federation.step()
        loop.round(number)
        for i, model in enumerate(loop.models):
            found = tiny.state_of(federation, i)["personal"]
            for name, value in model.state_dict().items():
                torch.testing.assert_close(
                    found[name], value, rtol=1e-5, atol=1e-7, msg=partial("{}: {}".format, name)
                )


def test_participants_may_have_different_networks() -> None:
    models = {"client1": {"name": "two-layer", "width": 7, "norm": False}}
    federation = tiny.fresh(
        {"name": "fcclplus", "public_batch_size": 10}, CLIENTS, models=models, local=ADAM
    )
    loop = Loop(federation, {})
    federation.step()
    loop.round(0)
    for i, model in enumerate(loop.models):
        found = tiny.state_of(federation, i)["personal"]
        for name, value in model.state_dict().items():
            torch.testing.assert_close(found[name], value, rtol=1e-5, atol=1e-7)


def test_every_public_sample_is_seen_once_per_pass_by_all() -> None:
    algorithm = registry.algorithms.get("fcclplus")(
        registry.algorithms.params("fcclplus")(public_size=20, public_batch_size=6, public_passes=2)
    )
    batches = algorithm.public_order(3, 5, 50)
    assert [len(b) for b in batches] == [6, 6, 6, 2] * 2
    first, second = torch.cat(list(batches[:4])), torch.cat(list(batches[4:]))
    assert len(set(first.tolist())) == 20 and set(first.tolist()) == set(second.tolist())
    assert first.tolist() != second.tolist()
    other = torch.cat(list(algorithm.public_order(3, 6, 50)))
    assert set(other.tolist()) == set(first.tolist()), "the public samples are chosen once"
    assert other.tolist() != torch.cat(list(batches)).tolist()


def personal(federation: Federation) -> str:
    return trees.sha256(*(tiny.state_of(federation, i)["personal"] for i in range(3)))


SETTINGS: dict[str, Any] = {"model": {"name": "two-layer", "dropout": 0.3}, "rounds": 3}


@pytest.mark.parametrize("off", [{"public_passes": 0}, {"fccm": False, "fisl": False}], ids=str)
def test_without_public_steps_and_memory_it_is_local_training(off: dict[str, Any]) -> None:
    alone = personal(tiny.run("local", **SETTINGS))
    assert (
        personal(tiny.run({"name": "fcclplus", "local_term": "none", **off}, **SETTINGS)) == alone
    )
    assert personal(tiny.run({"name": "fcclplus", **off}, **SETTINGS)) != alone


@pytest.mark.parametrize("without", [{"fisl": False}, {"omega": 0}], ids=str)
def test_with_two_teachers_and_no_similarity_it_is_fccl(without: dict[str, Any]) -> None:
    general = {"name": "fcclplus", "local_term": "two_teachers", "pretrain_epochs": 2, **without}
    fccl = tiny.run({"name": "fccl", "pretrain_epochs": 2}, **SETTINGS)
    assert personal(tiny.run(general, **SETTINGS)) == personal(fccl)
    assert personal(tiny.run("fcclplus", **SETTINGS)) != personal(fccl)


def test_pre_trained_model_never_changes_and_the_teacher_is_the_last_reported_model() -> None:
    federation = tiny.fresh({"name": "fccl", "pretrain_epochs": 2})
    federation.step()
    pretrained = trees.sha256(tiny.state_of(federation, 0)["pretrained"])
    for _ in range(2):
        federation.step()
        state = tiny.state_of(federation, 0)
        assert trees.sha256(state["pretrained"]) == pretrained
        assert trees.sha256(state["teacher"]) == trees.sha256(state["personal"])
        assert "optimizer" not in state


@pytest.mark.parametrize(
    ("name", "more"),
    [
        ("fcclplus", {"tau_squared": (False, True), "second_forward": (False, True)}),
        ("fccl", {"average_after": ("public", "local")}),
    ],
)
def test_the_switch_changes_exactly_these_values(name: str, more: dict[str, Any]) -> None:
    params = registry.algorithms.params(name)
    paper, released = (params(variant=v).resolved().model_dump() for v in ("paper", "released"))
    changed = {n: (paper[n], released[n]) for n in paper if paper[n] != released[n]}
    assert changed == {
        "variant": ("paper", "released"),
        "public_batch_size": (512, 256),
        "public_optimizer": ("kept", "fresh"),
        "batch_size": (None, 128),
        "lr_schedule": ("constant", "linear"),
        "weight_decay": (None, 1e-5),
        "public_weight_decay": (None, 0.0),
        "pretrain_weight_decay": (None, 0.0),
        "pretrain_schedule": ("constant", "cosine"),
        "augment": (None, "none"),
        "public_augment": (None, "crop"),
        "shrunk": (False, True),
        "teacher_mode": ("eval", "train"),
        **more,
    }
    for field, (_, other) in changed.items():
        if field != "variant":
            alone = params(**{field: other}).resolved().model_dump()
            assert {n for n in paper if alone[n] != paper[n]} == {field}


def test_private_batch_that_would_be_ignored_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"algorithm\.batch_size: 16"):
        tiny.spec_of({"name": "fcclplus", "variant": "released"}, local={"batch_size": 16})


def test_what_keeps_from_forgetting_matters_and_without_strength_is_nothing() -> None:
    terms: list[dict[str, Any]] = [
        {"local_term": "none"},
        {},
        {"kd_share": 0.5},
        {"kd_share": 1.0},
        {"local_term": "ewc"},
        {"local_term": "two_teachers"},
    ]
    digests = [personal(tiny.run({"name": "fcclplus", **term}, **SETTINGS)) for term in terms]
    assert len(set(digests)) == len(terms)
    assert (
        personal(tiny.run({"name": "fcclplus", "local_term": "ewc", "ewc": 0.0}, **SETTINGS))
        == digests[0]
    )


FISHERS: list[dict[str, Tensor]] = []


@registry.register_algorithm("watched-fcclplus")
class Watched(registry.algorithms.get("fcclplus")):  # type: ignore[misc]
    """Notes the first client's Fisher information and the penalty's gradient before training moves anything."""

    def begin(self, client: Client) -> None:
        super().begin(client)
        if client.id == 0:
            penalty = functional.ewc_penalty(
                client.parameters, client.scratch["anchor"], client.scratch["fisher"], 1.0
            )
            gradients = torch.autograd.grad(penalty, list(client.parameters.values()))
            FISHERS.append(
                {
                    **client.scratch["fisher"],
                    "slope": torch.stack([g.abs().max() for g in gradients]).max(),
                }
            )


def test_fisher_information_of_a_softmax_regression_is_its_closed_form() -> None:
    """Entry (c, d) is the mean of (p_c - y_c)^2 x_d^2; the penalty has no slope at its anchor."""
    FISHERS.clear()
    federation = tiny.fresh(
        {"name": "watched-fcclplus", "local_term": "ewc", "public_passes": 0, "teacher": "current"},
        CLIENTS,
        model="one-layer",
    )
    w = federation.server.model["classifier.weight"]
    x, y = tiny.as_tensors(CLIENTS)[0]
    federation.step()
    residual = torch.softmax(x @ w.T, 1) - torch.nn.functional.one_hot(y, 3)
    (fisher,) = FISHERS
    tiny.close(fisher["classifier.weight"], (residual**2).T @ x**2 / len(x))
    assert float(fisher["slope"]) == 0.0
