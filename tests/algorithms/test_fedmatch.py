"""FedMatch: rounds by hand with helpers, what each step leaves alone, who helps whom, different networks."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from flray import trees
from flray.algorithms.client import Client
from flray.algorithms.common.samples import Batch
from flray.algorithms.fedmatch import FedMatch
from flray.algorithms.types import Stage
from flray.registry import register_algorithm
from tests.algorithms import helpers as tiny

CLIENTS = tiny.gaussian_clients((10, 9, 12))
DATA = tiny.as_tensors(CLIENTS)
W = "classifier.weight"
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


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"confidence": 1.1},
        {"helpers": 0},
        {"interval": 1},
        {"average": False},
        {"helpers": 1, "ratio": 1.0},
    ],
    ids=str,
)
def test_three_rounds_by_hand(options: dict[str, Any]) -> None:
    """One step of each kind in a round. Helpers arrive in round 2 and, with interval 1, anew in round 3."""
    federation = tiny.fresh({"name": "fedmatch", **NUMBERS, **options}, CLIENTS, **tiny.full())
    hp, x = federation.spec.algorithm.hp, torch.from_numpy(federation.spec.data.public)
    initial = federation.server.model[W].clone()
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
            theta, psi = (
                [tiny.mean_of([{W: w} for w in ws], (10, 9, 12))[W]] * 3 for ws in (theta, psi)
            )
            tiny.close(federation.server.model[W], theta[0])
            tiny.close(federation.server.state["psi"][W], psi[0])
        else:
            for i in range(3):
                state = tiny.state_of(federation, i)
                tiny.close(state["personal"][W], theta[i])
                tiny.close(state["psi"][W], psi[i])
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


def test_each_step_changes_its_own_part_alone() -> None:
    SEEN.clear()
    local = {"lr": 0.01, "weight_decay": 0.1, "momentum": 0.9}
    tiny.run("watched-fedmatch", rounds=2, model=tiny.DROPOUT, local=local)
    assert len(SEEN) == 3 * 2 * (3 + 2 + 4)
    for before, after in itertools.pairwise(SEEN):
        if after[0] == "sigma":
            assert before[1] != after[1] and before[2] == after[2] and before[3] != after[3]
        elif after[0] == "psi":
            assert before[1] == after[1] and before[2] != after[2] and before[3] == after[3]


def test_the_nearest_clients_help_until_others_are_sent() -> None:
    five = tiny.gaussian_clients((8,) * 5)
    federation = tiny.fresh({"name": "fedmatch", "interval": 2}, five, local={"lr": 0.01})
    algorithm, server = federation.spec.algorithm, federation.server
    federation.step()
    assert set(server.state["predictions"]) == set(map(str, range(5)))
    server.state["predictions"] = {
        str(i): torch.tensor([p, 1 - p, 0.0]) for i, p in enumerate((0.1, 0.2, 0.4, 0.7, 1))
    }
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


def test_helpers_may_have_another_network() -> None:
    settings = {"rounds": 2, "models": tiny.OTHER, "local": {"lr": 0.01}}
    federation = tiny.run({"name": "fedmatch", "average": False}, **settings)
    helpers = tiny.state_of(federation, 0)["helpers"]
    assert helpers["1"]["architecture"] != helpers["2"]["architecture"]
    assert len(helpers["1"]["weights"]["classifier.weight"][0]) == 7
    assert federation.step().metrics["train/loss"] > 0


def test_the_prediction_is_of_one_image_for_all() -> None:
    """Untrained, all clients hold one model and so predict alike."""
    federation = tiny.run({"name": "fedmatch", "public_size": 0, "lam_s": 0}, model="one-layer")
    predictions = torch.stack(list(federation.server.state["predictions"].values()))
    assert torch.equal(predictions, predictions[:1].expand(3, -1))
    assert float(predictions[0].sum()) == pytest.approx(1)
