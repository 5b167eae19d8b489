from typing import Any

import pytest
import torch.nn.functional as F
from torch import Tensor

from flray import trees
from tests.algorithms import helpers as tiny
from tests.algorithms.helpers import V, W


@pytest.mark.parametrize("model", [tiny.DROPOUT, {"name": "deep-classifier"}], ids=str)
def test_one_client_is_local(model: dict[str, object]) -> None:
    one = tiny.gaussian_clients((12,))
    copa, local = (tiny.run(name, one, rounds=2, model=model) for name in ("copa", "local"))
    whole = {**copa.server.model, **tiny.kept(copa, 0)}
    assert trees.sha256(whole) == trees.sha256(tiny.kept(local, 0))
    assert copa.evaluate() == local.evaluate()


def test_two_rounds_by_hand() -> None:
    """Full-batch steps on a linear body; the others' heads are those of the round's start, and their terms a sum."""
    federation = tiny.run("copa", rounds=2, **tiny.full("linear-body"))
    start, clients = tiny.start(federation), tiny.tensors()
    body, heads = {W: start[W]}, [start[V]] * 3
    for _ in range(2):
        trained = []
        for own, (x, y) in enumerate(clients):
            others = [head for j, head in enumerate(heads) if j != own]

            def loss(p: Any, x: Tensor = x, y: Tensor = y, others: Any = others) -> Any:
                every = (p[V], *others)
                return sum(F.cross_entropy(x @ p[W].T @ head.T, y) for head in every)

            trained.append(tiny.gradient_step({**body, V: heads[own]}, loss))
        body = tiny.mean_of([{W: p[W]} for p in trained], tiny.SIZES)
        heads = [p[V] for p in trained]
    tiny.close(federation.server.model, body)
    for own, (x, _) in enumerate(clients):
        tiny.close(federation.server.state["heads"][str(own)], {V: heads[own]})
        tiny.close(tiny.kept(federation, own), {V: heads[own]})
        tiny.has_loss(federation, own, sum(x @ body[W].T @ head.T for head in heads) / 3)


def test_the_last_known_heads_of_absent_clients_are_used() -> None:
    federation = tiny.fresh("copa", participation={"clients": 1})
    for _ in range(3):
        before = federation.server.state["heads"]
        federation.step()
        after = federation.server.state["heads"]
        changed = {int(i) for i in before if trees.sha256(before[i]) != trees.sha256(after[i])}
        assert changed == set(federation.server.cohort)
