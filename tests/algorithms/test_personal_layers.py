"""Methods that share a part of the network and keep the rest: FedPer, FedRep, FedBABU, FedAlt, FedSim and COPA."""

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flray import registry, trees
from flray.algorithms.client import Client
from flray.algorithms.common.samples import Batch
from flray.models import SplitModel, select
from tests.algorithms import helpers as tiny
from tests.algorithms.helpers import V, W
from tests.helpers import cases
from tests.messages import refused

TUNED = ("all", "classifier", "features")


def rep(head: int, body: int, **options: int) -> dict[str, object]:
    return {"name": "fedrep", "head_epochs": head, "body_epochs": body, **options}


@pytest.mark.parametrize("name", ["fedalt", "fedsim", "fedbabu"])
def test_one_round_by_hand(name: str) -> None:
    """One full-batch step each on logits x W^T V^T: V by x W^T, W by V^T g, under the new V (FedAlt) or the old one.

    FedBABU trains the body alone.
    """
    federation = tiny.run(name, **tiny.full("linear-body"))
    start, bodies = tiny.start(federation), []
    for i, (x, y) in enumerate(tiny.tensors()):
        head = start[V] - 0.1 * tiny.softmax_gradient(start[V], x @ start[W].T, y)
        if name != "fedbabu":
            tiny.close(tiny.kept(federation, i), {V: head})
        used = head if name == "fedalt" else start[V]
        bodies.append({W: start[W] - 0.1 * used.T @ tiny.softmax_gradient(used @ start[W], x, y)})
    sizes = [1] * 3 if name == "fedbabu" else tiny.SIZES
    tiny.close(federation.server.model, tiny.mean_of(bodies, sizes))


@pytest.mark.parametrize(("method", "rounds"), [("fedper", 2), (rep(2, 3), 1)], ids=str)
def test_the_head_is_softmax_regression_on_the_received_features(method: Any, rounds: int) -> None:
    """On a network whose body has no parameters: two full-batch steps, of two rounds or of two epochs."""
    federation = tiny.run(method, rounds=rounds, **tiny.full())
    for i, (x, y) in enumerate(tiny.tensors()):
        head = tiny.softmax_steps(tiny.start(federation)[V], x, y, 2)
        tiny.close(tiny.kept(federation, i)[V], head)


@registry.register_model("no-parts")
def no_parts(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return nn.Sequential(nn.Linear(shape[0], 5), nn.BatchNorm1d(5), nn.Linear(5, num_classes))


@pytest.mark.parametrize("name", ["fedper", "fedsim", "fedalt"])
def test_a_group_of_a_network_without_parts_is_personal_too(name: str) -> None:
    federation = tiny.run({"name": name, "personal": "batch_norm"}, model="no-parts")
    assert tiny.kept(federation, 0).keys() == select(no_parts((4,), 3), "batch_norm")
    refused(tiny.run, name, model="no-parts")


@cases(
    "method, group",
    """[{name: fedrep, head_epochs: 2, body_epochs: 1}, classifier],
    [{name: fedalt, personal: features, personal_epochs: 2}, features],
    [{name: fedalt, personal: batch_norm, personal_epochs: 2}, batch_norm],
    [{name: fedalt, personal: classifier+batch_norm, personal_epochs: 2}, classifier+batch_norm]""",
)
def test_each_phase_leaves_the_other_part_as_it_is(
    method: dict[str, Any], group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Statistics included, and with the momentum and weight decay that move weights of zero gradient."""
    seen: list[tuple[str, str, str]] = []
    kind: Any = registry.algorithms.get(method["name"])
    step = kind.step

    def watched(self: Any, client: Client, batch: Batch, optimizer: torch.optim.Optimizer) -> None:
        step(self, client, batch, optimizer)
        personal = select(client.model, group)
        parts = personal, frozenset(client.resident.entries) - personal
        seen.append((batch.phase.tag, *(trees.sha256(client.weights(part)) for part in parts)))

    monkeypatch.setattr(kind, "step", watched)
    local = {"momentum": 0.9, "weight_decay": 0.1}
    tiny.run(method, tiny.gaussian_clients((12,)), local=local)
    own, common = [s for s in seen if s[0] == "personal"], [s for s in seen if s[0] == "train"]
    assert (len(own), len(common)) == (6, 3) and seen == own + common
    assert len({s[2] for s in own}) == 1 and len({s[1] for s in own}) == 6
    assert len({s[2] for s in common}) == 3 and {s[1] for s in common} == {own[-1][1]}


def test_fedrep_without_body_epochs_keeps_the_initial_body() -> None:
    federation = tiny.run(rep(3, 0), rounds=2)
    assert trees.sha256(federation.server.model) == trees.sha256(tiny.start(federation))
    assert tiny.kept(federation, 0)["classifier.bias"].norm() > 0


def test_fedrep_s_heads_fitted_for_the_test_are_forgotten() -> None:
    """On a network that has nothing but a head to fit."""
    methods = (rep(1, 1, evaluation_epochs=epochs) for epochs in (5, 0))
    fitted, plain = (tiny.run(method, model="one-layer") for method in methods)
    loss = "personal/local/loss"
    assert fitted.evaluate()[loss] < plain.evaluate()[loss]
    for _ in range(2):
        assert fitted.sha256() == plain.sha256()
        fitted.step()
        plain.step()


def test_fedbabu_s_head_is_the_initial_one_whatever_the_optimiser_does() -> None:
    federation = tiny.run("fedbabu", rounds=3, local={"momentum": 0.9, "weight_decay": 0.1})
    start, personal = tiny.start(federation), [tiny.kept(federation, i) for i in range(3)]
    models = (start, federation.server.model, *personal)
    heads = [{n: v for n, v in w.items() if n.startswith("classifier")} for w in models]
    assert len(set(map(trees.sha256, heads))) == 1
    assert trees.sha256(start) != trees.sha256(federation.server.model)


def test_fedbabu_s_fine_tuning_helps_and_is_forgotten() -> None:
    losses, digests = set(), set()
    for options in ({"fine_tune_epochs": 0}, *({"fine_tune": part} for part in TUNED)):
        federation = tiny.run({"name": "fedbabu", **options}, rounds=2, model=tiny.DROPOUT)
        metrics = federation.evaluate()
        personal, common = metrics["personal/local/loss"], metrics["global/local/loss"]
        assert personal == common if "fine_tune_epochs" in options else personal < common
        assert metrics == federation.evaluate()
        losses.add(personal)
        digests.add(federation.sha256())
    assert len(losses) == 4 and len(digests) == 1, "training does not depend on it"


@pytest.mark.parametrize("rate", [{}, {"schedule": "cosine"}, {"lr_decay": 0.5}])
@pytest.mark.parametrize("method", [rep(1, 1, evaluation_epochs=2), "fedbabu"])
def test_heads_are_fitted_for_the_test_at_the_full_rate(method: Any, rate: dict[str, Any]) -> None:
    """After the last round a cosine has no rate left."""
    federation = tiny.run(method, rounds=3, **tiny.full(**rate))
    for i, (x, y) in enumerate(tiny.tensors()):
        w = federation.server.model[V] if method == "fedbabu" else tiny.kept(federation, i)[V]
        w = tiny.softmax_steps(w, x, y, 5 if method == "fedbabu" else 2)
        tiny.has_loss(federation, i, x @ w.T)


@pytest.mark.parametrize("model", [tiny.DROPOUT, {"name": "deep-classifier"}], ids=str)
def test_copa_one_client_is_local(model: dict[str, object]) -> None:
    one = tiny.gaussian_clients((12,))
    copa, local = (tiny.run(name, one, rounds=2, model=model) for name in ("copa", "local"))
    whole = {**copa.server.model, **tiny.kept(copa, 0)}
    assert trees.sha256(whole) == trees.sha256(tiny.kept(local, 0))
    assert copa.evaluate() == local.evaluate()


class Scaled(nn.Linear):
    """A linear layer whose outputs are scaled by a constant that is no part of its state."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__(inputs, outputs)
        self.register_buffer("scale", torch.tensor(2.0), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) * self.scale  # type: ignore[operator]


@registry.register_model("scaled-classifier")
def scaled_classifier(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    return SplitModel(nn.Sequential(nn.Linear(shape[0], 5), nn.ReLU()), Scaled(5, num_classes))


@pytest.mark.parametrize("name", ["copa", "fedco2"])
def test_classifiers_that_travel_have_their_constants(name: str) -> None:
    federation = tiny.run(name, model="scaled-classifier", rounds=2)
    assert federation.evaluate()["personal/local/accuracy"] > 0.4


def copa_loss(p: Any, x: Tensor, y: Tensor, others: Any) -> Any:
    return sum(F.cross_entropy(x @ p[W].T @ head.T, y) for head in (p[V], *others))


def test_copa_two_rounds_by_hand() -> None:
    """Full-batch steps on a linear body; the others' heads are those of the round's start, and their terms a sum."""
    federation = tiny.run("copa", rounds=2, **tiny.full("linear-body"))
    start, clients = tiny.start(federation), tiny.tensors()
    body, heads = {W: start[W]}, [start[V]] * 3
    for _ in range(2):
        trained = []
        for own, (x, y) in enumerate(clients):
            others = [head for j, head in enumerate(heads) if j != own]
            step = partial(copa_loss, x=x, y=y, others=others)
            trained.append(tiny.gradient_step({**body, V: heads[own]}, step))
        body = tiny.mean_of([{W: p[W]} for p in trained], tiny.SIZES)
        heads = [p[V] for p in trained]
    tiny.close(federation.server.model, body)
    for own, (x, _) in enumerate(clients):
        for held in (federation.server.state["heads"][str(own)], tiny.kept(federation, own)):
            tiny.close(held, {V: heads[own]})
        tiny.has_loss(federation, own, sum(x @ body[W].T @ head.T for head in heads) / 3)


def test_copa_the_last_known_heads_of_absent_clients_are_used() -> None:
    federation = tiny.fresh("copa", participation={"clients": 1})
    for _ in range(3):
        before = federation.server.state["heads"]
        federation.step()
        after = federation.server.state["heads"]
        changed = {int(i) for i in before if trees.sha256(before[i]) != trees.sha256(after[i])}
        assert changed == set(federation.server.cohort)
