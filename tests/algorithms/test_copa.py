from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from flray import trees
from tests.algorithms import helpers as tiny

W, V = "features.first.weight", "classifier.weight"


@pytest.mark.parametrize(
    "model", [{"name": "two-layer", "dropout": 0.2}, {"name": "deep-classifier"}]
)
def test_one_client_is_local(model: dict[str, object]) -> None:
    copa, local = (
        tiny.run(name, tiny.gaussian_clients((12,)), rounds=2, model=model)
        for name in ("copa", "local")
    )
    whole = {**copa.server.model, **tiny.state_of(copa, 0)["personal"]}
    assert trees.sha256(whole) == trees.sha256(tiny.state_of(local, 0)["personal"])
    assert copa.evaluate() == local.evaluate()


def test_two_rounds_by_hand() -> None:
    """Full-batch steps on a linear body; the others' heads are those of the round's start, and their terms a sum."""
    federation = tiny.run("copa", model="linear-body", local={"batch_size": 99}, rounds=2)
    start, clients = (dict(tiny.start(federation)), tiny.tensors())
    body, heads = {W: start[W]}, [start[V]] * 3
    for _ in range(2):
        trained = []
        for own, (x, y) in enumerate(clients):
            others = [head for j, head in enumerate(heads) if j != own]
            trained.append(
                tiny.gradient_step(
                    {**body, V: heads[own]},
                    lambda p, x=x, y=y, others=others: sum(
                        F.cross_entropy(x @ p[W].T @ head.T, y) for head in (p[V], *others)
                    ),
                )
            )
        body, heads = (
            tiny.mean_of([{W: p[W]} for p in trained], [12, 9, 15]),
            [p[V] for p in trained],
        )
    tiny.assert_weights(federation.server.model, body)
    for own, (x, y) in enumerate(clients):
        tiny.assert_weights(federation.server.state["heads"][str(own)], {V: heads[own]})
        tiny.assert_weights(tiny.state_of(federation, own)["personal"], {V: heads[own]})
        logits = sum(x @ body[W].T @ head.T for head in heads) / 3
        assert federation.evaluate()[f"personal/local/loss/client/client{own}"] == pytest.approx(
            float(F.cross_entropy(logits, y)), rel=1e-12
        )


def test_an_ensemble_of_equal_heads_is_one_head() -> None:
    copa, fedavg = (tiny.fresh(name).evaluate() for name in ("copa", "fedavg"))
    assert copa["personal/local/loss"] == pytest.approx(fedavg["global/local/loss"], rel=1e-12)
    assert copa["personal/local/accuracy"] == fedavg["global/local/accuracy"]


def test_the_last_known_heads_of_absent_clients_are_used() -> None:
    federation = tiny.fresh("copa", participation={"clients": 1})
    for _ in range(3):
        before = federation.server.state["heads"]
        federation.step()
        after = federation.server.state["heads"]
        changed = {int(i) for i in before if trees.sha256(before[i]) != trees.sha256(after[i])}
        assert changed == set(federation.server.cohort)


def test_peers_matter() -> None:
    """In the first round already, with heads that are all the initial one."""
    assert tiny.digest("copa") != tiny.digest("fedper")
    assert torch.equal(tiny.run("copa").server.model[V], tiny.fresh("copa").server.model[V])
