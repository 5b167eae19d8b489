"""Exchange over public data: FedDF, FedMD, RHFL and FedMatch against loops by hand, and what may not change."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from flray import registry, trees
from flray.algorithms.client import Client
from flray.algorithms.common.public_exchange import public_subset
from flray.algorithms.common.samples import Batch
from flray.algorithms.feddf import FedDF
from flray.algorithms.fedmatch import FedMatch
from flray.algorithms.types import Message, Stage
from flray.models import SplitModel
from flray.registry import register_algorithm
from tests.algorithms import helpers as tiny
from tests.algorithms.helpers import V
from tests.helpers import cases

DATA = tiny.tensors()


def adam(w: Tensor, batches: Any, lr: float, clip: float, tau: float) -> Tensor:
    """Return a linear model after Adam with a cosine schedule on KL(teacher || student), all by hand."""
    first, second = torch.zeros_like(w), torch.zeros_like(w)
    for t, (x, teacher) in enumerate(batches):
        error = torch.softmax(x @ w.T / tau, 1) - torch.softmax(teacher / tau, 1)
        gradient = error.T @ x / len(x) / tau
        gradient = gradient * min(1.0, clip / (float(gradient.norm()) + 1e-6))
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        rate = lr * (1 + math.cos(math.pi * t / len(batches))) / 2
        length = (second / (1 - 0.999 ** (t + 1))).sqrt() + 1e-8
        w = w - rate * (first / (1 - 0.9 ** (t + 1))) / length
    return w


@cases(
    "options, sizes",
    """[{}, [10, 10, 4, 10, 10]], [{temperature: 2.0}, [10, 10, 4, 10, 10]],
    [{clip_norm: 0.01, lr: 0.1}, [10, 10, 4, 10, 10]],
    [{public_size: 7, batch_size: 4}, [4, 3, 4, 3, 4]]""",
)
def test_feddf_three_rounds_at_the_server_by_hand(options: Any, sizes: list[int]) -> None:
    options = {"name": "feddf", "steps": 5, "batch_size": 10, "lr": 0.05, **options}
    federation = tiny.fresh(options, **tiny.full())
    public, hp = torch.from_numpy(federation.spec.data.public), federation.spec.algorithm.hp
    used = public[public_subset(0, len(public), hp.public_size)]
    assert len(used) == options.get("public_size", 24)
    w = federation.server.model[V].clone()
    for _ in range(3):
        batches = list(federation.spec.algorithm.batches(federation.server, len(used)))
        assert [len(b) for b in batches] == sizes
        federation.step()
        trained = [w - 0.1 * tiny.softmax_gradient(w, x, y) for x, y in DATA]
        teacher = torch.stack([used @ one.T for one in trained]).mean(0)
        w = tiny.mean_of([{V: one} for one in trained], tiny.SIZES)[V]
        w = adam(w, [(used[b], teacher[b]) for b in batches], hp.lr, hp.clip_norm, hp.temperature)
        tiny.close(federation.server.model[V], w, rtol=1e-8, atol=1e-10)


@cases("options", "{}, {temperature: 2.0}, {public_optimizer: fresh}, {average: true}")
def test_feddf_stages_between_peers_compute_what_one_loop_does(options: dict[str, Any]) -> None:
    peers = {"name": "feddf", "mode": "peer", "public_batch_size": 10, **options}
    federation = tiny.fresh(peers, **tiny.full(momentum=0.5))
    algorithm, public = federation.spec.algorithm, torch.from_numpy(federation.spec.data.public)
    tau, fresh = options.get("temperature", 1.0), "public_optimizer" in options
    weights = [federation.server.model[V].clone() for _ in DATA]
    for number in range(3):
        federation.step()
        velocity = [torch.zeros_like(w) for w in weights]
        for positions in algorithm.public_order(0, number, len(public)):
            x = public[positions]
            mean = torch.softmax(torch.stack([x @ w.T for w in weights]).mean(0) / tau, 1)
            for i, w in enumerate(weights):
                gradient = (torch.softmax(x @ w.T / tau, 1) - mean).T @ x / len(x) / tau
                velocity[i] = gradient if fresh else 0.5 * velocity[i] + gradient
            weights = [w - 0.1 * v for w, v in zip(weights, velocity, strict=True)]
        if options.get("average"):
            weights = [torch.stack(weights).mean(0)] * 3
        pairs = zip(weights, DATA, strict=True)
        weights = [w - 0.1 * tiny.softmax_gradient(w, a, b) for w, (a, b) in pairs]
        for i, w in enumerate(weights):
            tiny.close(tiny.kept(federation, i)[V], w)


FRESH: list[bool] = []


@register_algorithm("interrupted-feddf")
class Interrupted(FedDF):
    """Notes whether a client's public steps begin without memory; the client fails after the first round's."""

    def public_step(self, client: Client, loss: Tensor, optimizer: torch.optim.Optimizer) -> None:
        if client.id == 1:
            FRESH.append(not optimizer.state)
        super().public_step(client, loss, optimizer)

    def train(self, client: Client) -> Message:
        if (client.id, client.round) == (1, 0):
            raise RuntimeError("interrupted")
        return super().train(client)


def test_a_client_that_failed_begins_the_next_round_with_a_fresh_optimiser() -> None:
    FRESH.clear()
    peers = {"name": "interrupted-feddf", "mode": "peer", "public_batch_size": 10}
    skip = {"on_client_error": "skip"}
    tiny.run(peers, rounds=2, faults=skip, **tiny.full(momentum=0.5))
    assert FRESH == [True, False, True, False, False]


def test_feddf_distillation_leaves_statistics_and_the_clients_models_alone() -> None:
    runs = [tiny.run({"name": "feddf", "steps": n}, model=tiny.DROPOUT) for n in (0, 3)]
    before, after = (run.server.model for run in runs)
    for name in before:
        statistic = "running" in name or "tracked" in name
        assert torch.equal(before[name], after[name]) == statistic, name
    assert all(handle is None for handle in runs[1].states)
    assert "ensemble" not in runs[1].server.state


def test_feddf_every_architecture_gets_a_student_of_all_clients() -> None:
    settings = {"models": tiny.OTHER, "model": tiny.DROPOUT}
    plain, distilled = (
        tiny.run({"name": "feddf", "average": True, "steps": n}, **settings).server for n in (0, 5)
    )
    assert len(distilled.models) == 2
    for key, model in distilled.models.items():
        assert trees.sha256(plain.models[key]) != trees.sha256(model)
        assert distilled.metrics[f"feddf/loss/{key}"] > 0


def test_feddf_only_a_server_that_trains_has_models_public_samples_and_all_statistics() -> None:
    federation = tiny.fresh("feddf")
    trains, peer = federation.server, {"name": "feddf", "mode": "peer"}
    assert trains.model_for is not None and trains.public is not None and len(trains.public) == 24
    shared = np.shares_memory(trains.public._x.numpy(), federation.spec.data.public)
    assert shared, "the samples were copied"
    for other in ("fedavg", peer):
        server = tiny.fresh(other).server
        assert server.model_for is None and server.public is None
    tiny.spec_of(peer, aggregation={"buffers": "local"})


@cases("options", "{}, {digest_epochs: 2}, {public_size: 10}, {average: true}")
def test_fedmd_three_rounds_by_hand(options: dict[str, Any]) -> None:
    federation = tiny.fresh({"name": "fedmd", **options}, **tiny.full())
    algorithm, public = federation.spec.algorithm, torch.from_numpy(federation.spec.data.public)
    weights = [federation.server.model[V].clone() for _ in DATA]
    seen: set[int] = set()
    for number in range(3):
        federation.step()
        order = algorithm.public_order(0, number, len(public))[0]
        x = public[order]
        assert len(x) == options.get("public_size", 24)
        seen |= set(order.tolist())
        consensus = torch.stack([x @ w.T for w in weights]).mean(0)
        for _ in range(options.get("digest_epochs", 1)):
            signs = [torch.sign(x @ w.T - consensus) for w in weights]
            pairs = zip(weights, signs, strict=True)  # the mean absolute difference's gradient
            weights = [w - 0.1 * sign.T @ x / sign.numel() for w, sign in pairs]
        if options.get("average"):
            weights = [torch.stack(weights).mean(0)] * 3
        pairs = zip(weights, DATA, strict=True)
        weights = [w - 0.1 * tiny.softmax_gradient(w, a, b) for w, (a, b) in pairs]
        for i, w in enumerate(weights):
            tiny.close(tiny.kept(federation, i)[V], w)
    assert len(seen) > 10, "every round has another subset"


@registry.register_model("few-digits")
def few_digits(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """One layer of eighths."""
    layer = nn.Linear(shape[0], num_classes, bias=False)
    with torch.no_grad():
        layer.weight.mul_(8).round_().div_(8)
    return SplitModel(nn.Flatten(), layer)


@pytest.mark.parametrize("clients", [1, 2])
def test_fedmd_batches_of_the_digest_meet_their_own_rows_of_the_consensus(clients: int) -> None:
    """With scores in eval mode and neither norm nor dropout, equals are their own consensus: nothing moves.

    The numbers have few digits, so that scores are exact however many rows are multiplied at once:
    the loss pulls at any difference with its whole strength, be it a rounding error's.
    """
    x, y = tiny.gaussian_clients((12,))[0]
    options = {"name": "fedmd", "digest_batch_size": 5, "digest_epochs": 2}
    equal = [(x.round().astype(np.float32), y)] * clients
    federation = tiny.run(options, equal, model="few-digits", local={"epochs": 0}, rounds=2)
    for i in range(clients):
        assert torch.equal(tiny.kept(federation, i)[V], federation.server.model[V])


def test_fedmd_networks_may_differ_and_the_digest_is_no_local_training() -> None:
    federation, local = (tiny.run(name, models=tiny.OTHER) for name in ("fedmd", "local"))
    assert len(federation.server.models) == 2
    metrics = federation.step().metrics
    assert metrics["train/public_loss"] > 0
    assert metrics["train/steps"] == local.step().metrics["train/steps"]


ADAM: dict[str, Any] = {"optimizer": "adam", "lr": 0.05, "batch_size": 100, "epochs": 2}


def sce(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Return 0.1 CE + RCE, written out."""
    p = torch.softmax(x @ w.T, 1)
    own = p[torch.arange(len(y)), y]
    return (-0.1 * own.log() + math.log(1e4) * (1 - own)).mean()


@cases("options", "{}, {public_optimizer: fresh}, {eta: 3.0}, {private_epochs: balanced}")
def test_rhfl_stages_compute_what_all_participants_in_one_loop_do(options: dict[str, Any]) -> None:
    """Linear networks without bias, Adam, three public batches a round, full private batches, three rounds."""
    method = {"name": "rhfl", "public_batch_size": 8, **options}
    federation = tiny.fresh(method, local=ADAM, model="one-layer")
    algorithm, public = federation.spec.algorithm, torch.from_numpy(federation.spec.data.public)
    weights = [federation.server.model[V].clone().requires_grad_() for _ in DATA]
    before: list[float] = []
    for number in range(3):
        metrics = federation.step().metrics
        losses = [float(sce(w.detach(), x, y)) for w, (x, y) in zip(weights, DATA, strict=True)]
        gains = [(b - now) / now for b, now in zip(before, losses, strict=False)]
        total = sum(gains)
        if not before:
            omega = [0.5] * 3
        elif total <= 0:
            omega = [1 / 3] * 3
        else:
            raw = [math.exp(0.5 + options.get("eta", 0.5) * gain / total) for gain in gains]
            omega = [r / sum(raw) for r in raw]
        before = losses
        for i, share in enumerate(omega):
            assert metrics[f"rhfl/confidence/client/client{i}"] == pytest.approx(share, rel=1e-9)
        optimizers = [torch.optim.Adam([w], lr=0.05) for w in weights]
        batches = algorithm.public_order(0, number, len(public))
        assert [len(b) for b in batches] == [8, 8, 8]
        for positions in batches:
            x = public[positions]
            said = [torch.softmax(x @ w.detach().T, 1) for w in weights]
            if options.get("public_optimizer") == "fresh":
                optimizers = [torch.optim.Adam([w], lr=0.05) for w in weights]
            for i, w in enumerate(weights):
                log_own = torch.log_softmax(x @ w.T, 1)
                divergences = [(p * (p.log() - log_own)).sum(1).mean() for p in said]
                loss = sum((omega[j] * divergences[j] for j in {0, 1, 2} - {i}), torch.zeros(()))
                tiny.descend(optimizers[i], loss)
        for w, (x, y) in zip(weights, DATA, strict=True):
            optimizer = torch.optim.Adam([w], lr=0.05)
            for _ in range(max(24 // len(y), 1) if "private_epochs" in options else 2):
                tiny.descend(optimizer, sce(w, x, y))
        for i, w in enumerate(weights):
            tiny.close(tiny.kept(federation, i)[V], w.detach())


def test_rhfl_who_joins_later_counts_as_neither_improving_nor_worsening() -> None:
    federation = tiny.fresh("rhfl", model="one-layer", participation={"clients": 2}, rounds=6)
    seen: set[int] = set()
    late = 0
    for _ in range(6):
        known = dict(federation.server.state.get("losses", {}))
        metrics = federation.step().metrics
        cohort, losses = federation.server.cohort, federation.server.state["losses"]
        now = {c: float(losses[str(c)]) for c in cohort}
        gains = {c: float(known.get(str(c), now[c])) / now[c] - 1 for c in cohort}
        if seen and not set(cohort) <= seen:
            late += 1
            (joined,) = set(cohort) - seen
            assert gains[joined] == 0
        total = sum(gains.values())
        raw = {c: math.exp(1 + 0.5 * (g / total if total > 0 else 0)) for c, g in gains.items()}
        for c in cohort:
            expected = raw[c] / sum(raw.values()) if seen else 1.0
            assert metrics[f"rhfl/confidence/client/client{c}"] == pytest.approx(expected, rel=1e-9)
        seen |= set(cohort)
    assert late == 1 and len(seen) == 3


def test_rhfl_networks_may_differ_and_are_averaged_where_they_do_not() -> None:
    assert len(tiny.run("rhfl", models=tiny.OTHER, rounds=2).server.models) == 2
    federation = tiny.run({"name": "rhfl", "average": True}, rounds=1, local={"epochs": 0})
    assert len({trees.sha256(tiny.kept(federation, i)) for i in range(3)}) == 1


TERMS = {"lam_s": 2.0, "lam_i": 0.3, "lam_a": 0.2, "l1": 0.05, "l2": 0.4}
NUMBERS = {**TERMS, "confidence": 0.5, "threshold": 1e-2}


def unlabelled(psi: Tensor, sigma: Tensor, helpers: list[Tensor], x: Tensor, hp: Any) -> Tensor:
    """Return the loss of psi, sample by sample."""
    terms = [torch.zeros((), dtype=torch.float64)]
    for row in x:
        p = torch.softmax(row @ (sigma + psi).T, 0)
        if float(p.detach().max()) < hp.confidence:
            continue
        votes = [int((row @ w.T).argmax()) for w in (sigma + psi.detach(), *helpers)]
        label = max(range(3), key=lambda c: (votes.count(c), c == votes[0], -c))
        teachers = [torch.softmax(row @ w.T, 0) for w in helpers]
        divergences = [(q * (q.log() - p.log())).sum() for q in teachers] or [torch.zeros(())]
        divergence = torch.stack(divergences).mean()
        terms.append(hp.lam_i * divergence - hp.lam_a * p[label].log())
    agreed = torch.stack(terms).sum() / max(len(terms) - 1, 1)
    return agreed + hp.l1 * psi.abs().sum() + hp.l2 * ((sigma - psi) ** 2).sum()


@cases(
    "options",
    "{}, {confidence: 1.1}, {helpers: 0}, {interval: 1}, {average: false}, {helpers: 1, ratio: 1.0}",
)
def test_fedmatch_three_rounds_by_hand(options: dict[str, Any]) -> None:
    """One step of each kind in a round. Helpers arrive in round 2 and, with interval 1, anew in round 3."""
    federation = tiny.fresh({"name": "fedmatch", **NUMBERS, **options}, **tiny.full())
    hp, x = federation.spec.algorithm.hp, torch.from_numpy(federation.spec.data.public)
    initial = federation.server.model[V].clone()
    theta, psi = [initial] * 3, [initial * hp.ratio / (1 + hp.ratio)] * 3
    sent: list[list[str]] = [[], [], []]
    pool: dict[str, Tensor] = {}
    trained: dict[str, Tensor] = {}
    zeroed = 0
    for number in range(3):
        if number and (number - 1) % hp.interval == 0:
            sent = [federation.spec.algorithm.nearest(federation.server, i) for i in range(3)]
            for i, helpers in enumerate(sent):
                assert len(helpers) == hp.helpers and str(i) not in helpers
            pool = dict(trained) if hp.average else {str(i): w for i, w in enumerate(theta)}
        federation.step()
        for i, (a, b) in enumerate(DATA):
            sigma = theta[i] - psi[i]
            helpers = [pool[j] + (sigma if hp.average else 0) for j in sent[i]]
            sigma = sigma - 0.1 * hp.lam_s * tiny.softmax_gradient(theta[i], a, b)
            loss = lambda w, s=sigma, h=helpers: unlabelled(w["psi"], s, h, x, hp)  # noqa: E731
            own = tiny.gradient_step({"psi": psi[i]}, loss)["psi"]
            small = own.abs() <= 1e-2
            zeroed += int(small.sum())
            trained[str(i)] = torch.where(small, 0, own)
            psi[i], theta[i] = trained[str(i)], sigma + trained[str(i)]
        if hp.average:
            means = (tiny.mean_of([{V: w} for w in ws], tiny.SIZES)[V] for ws in (theta, psi))
            theta, psi = ([mean] * 3 for mean in means)
            tiny.close(federation.server.model[V], theta[0])
            tiny.close(federation.server.state["psi"][V], psi[0])
        else:
            for i in range(3):
                state = tiny.state_of(federation, i)
                tiny.close(state["personal"][V], theta[i])
                tiny.close(state["psi"][V], psi[i])
    assert zeroed > 0


SEEN: list[tuple[str, str, str, str]] = []


@register_algorithm("watched-fedmatch")
class Watched(FedMatch):
    """Notes the parts and the buffers around every step on one of the parts."""

    def step(self, client: Client, batch: Batch, optimizer: torch.optim.Optimizer) -> None:
        SEEN.append(("start", *self.parts(client)))
        super().step(client, batch, optimizer)

    def descend(self, client: Client, part: Any) -> None:
        super().descend(client, part)
        SEEN.append((part, *self.parts(client)))

    def parts(self, client: Client) -> tuple[str, str, str]:
        sigma, psi = (dict(client.scratch[part]) for part in ("sigma", "psi"))
        buffers = client.weights(frozenset(client.resident.entries) - client.parameters.keys())
        assert not any("middle" in name for name in psi)
        return trees.sha256(sigma), trees.sha256(psi), trees.sha256(buffers)


def test_fedmatch_each_step_changes_its_own_part_alone() -> None:
    SEEN.clear()
    local = {"lr": 0.01, "weight_decay": 0.1, "momentum": 0.9}
    tiny.run("watched-fedmatch", rounds=2, model=tiny.DROPOUT, local=local)
    assert len(SEEN) == 3 * 2 * (3 + 2 + 4)
    for before, after in itertools.pairwise(SEEN):
        if after[0] == "sigma":
            assert before[1] != after[1] and before[2] == after[2] and before[3] != after[3]
        elif after[0] == "psi":
            assert before[1] == after[1] and before[2] != after[2] and before[3] == after[3]


PUBLIC: list[Tensor] = []


@register_algorithm("spreading-fedmatch")
class Spreading(FedMatch):
    """Notes the public samples of every step."""

    def public_batch(self, client: Client, batch: Batch) -> Tensor:
        PUBLIC.append(super().public_batch(client, batch))
        return PUBLIC[-1]


@pytest.mark.parametrize(("size", "steps"), [(12, 3), (13, 3), (14, 4)])
def test_fedmatch_an_epoch_spreads_all_public_samples_over_its_steps(size: int, steps: int) -> None:
    """With batch norm an epoch of 13 samples has no step for the last one."""
    PUBLIC.clear()
    clients = tiny.gaussian_clients((size,))
    federation = tiny.run("spreading-fedmatch", clients, local={"lr": 0.01, "epochs": 2})
    wanted = sorted(federation.spec.data.public.tolist())
    assert len(PUBLIC) == 2 * steps
    for epoch in (PUBLIC[:steps], PUBLIC[steps:]):
        assert sorted(torch.cat(epoch).tolist()) == wanted


def test_fedmatch_the_nearest_clients_help_until_others_are_sent() -> None:
    five = tiny.gaussian_clients((8,) * 5)
    federation = tiny.fresh({"name": "fedmatch", "interval": 2}, five, local={"lr": 0.01})
    algorithm, server = federation.spec.algorithm, federation.server
    federation.step()
    assert set(server.state["predictions"]) == set(map(str, range(5)))
    predicted = [torch.tensor([p, 1 - p, 0.0]) for p in (0.1, 0.2, 0.4, 0.7, 1)]
    server.state["predictions"] = {str(i): p for i, p in enumerate(predicted)}
    nearest = ["".join(algorithm.nearest(server, i)) for i in range(5)]
    assert nearest == ["12", "02", "10", "24", "32"]
    assert algorithm.send_private(server, 0, Stage("evaluate")) == {}
    federation.step()
    first = trees.sha256(tiny.state_of(federation, 3)["helpers"])
    assert list(tiny.state_of(federation, 3)["helpers"]) == ["2", "4"]
    federation.step()
    assert trees.sha256(tiny.state_of(federation, 3)["helpers"]) == first
    federation.step()
    assert trees.sha256(tiny.state_of(federation, 3)["helpers"]) != first


def test_fedmatch_helpers_may_have_another_network() -> None:
    settings = {"rounds": 2, "models": tiny.OTHER, "local": {"lr": 0.01}}
    federation = tiny.run({"name": "fedmatch", "average": False}, **settings)
    helpers = tiny.state_of(federation, 0)["helpers"]
    assert helpers["1"]["architecture"] != helpers["2"]["architecture"]
    assert len(helpers["1"]["weights"]["classifier.weight"][0]) == 7
    assert federation.step().metrics["train/loss"] > 0


def test_fedmatch_the_prediction_is_of_one_image_for_all() -> None:
    """Untrained, all clients hold one model and so predict alike."""
    federation = tiny.run({"name": "fedmatch", "public_size": 0, "lam_s": 0}, model="one-layer")
    predictions = torch.stack(list(federation.server.state["predictions"].values()))
    assert torch.equal(predictions, predictions[:1].expand(3, -1))
    assert float(predictions[0].sum()) == pytest.approx(1)
