from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.algorithms import helpers as tiny

FULL = {"batch_size": 99}
W, V = "features.first.weight", "classifier.weight"


def test_the_first_round_is_fedavg_s_and_the_second_is_not() -> None:
    assert [
        tiny.digest("fedproc", rounds=r) == tiny.digest("fedavg", rounds=r) for r in (1, 2)
    ] == [True, False]


def test_prototypes_are_the_means_over_all_samples_of_a_class() -> None:
    """The features of a network whose body has no parameters are its inputs."""
    clients = tiny.tensors(skew=True)
    state = tiny.run("fedproc", tiny.gaussian_clients(skew=True), model="one-layer").server.state[
        "prototypes"
    ]
    x, y = torch.cat([x for x, _ in clients]), torch.cat([y for _, y in clients])
    expected = torch.stack([x[y == c].mean(0) for c in range(3)])
    tiny.close(state["vectors"], expected)
    assert state["present"].all()


def test_a_class_that_nobody_sends_keeps_its_prototype() -> None:
    federation = tiny.fresh(
        "fedproc",
        tiny.gaussian_clients(skew=True),
        classes=4,
        model="one-layer",
        participation={"clients": 1},
    )
    clients, expected, known = (
        tiny.tensors(skew=True),
        torch.zeros(4, 4, dtype=torch.float64),
        set(),
    )
    for _ in range(5):
        federation.step()
        x, y = clients[federation.server.cohort[0]]
        for c in y.unique().tolist():
            expected[c] = x[y == c].mean(0)
            known.add(c)
        state = federation.server.state["prototypes"]
        tiny.close(state["vectors"], expected)
        assert set(state["present"].nonzero().flatten().tolist()) == known
    assert known == {0, 1, 2}


def test_the_weight_of_ce_grows_over_the_rounds() -> None:
    """The contrast has no gradient where the body has no parameters, so alpha scales the steps: 1, 1/4, 2/4."""
    federation = tiny.run({"name": "fedproc", "ramp": 4}, model="one-layer", local=FULL, rounds=3)
    w = tiny.start(federation)[V]
    for alpha in (1.0, 0.25, 0.5):
        w = tiny.mean_of(
            [{V: w - 0.1 * alpha * tiny.softmax_gradient(w, x, y)} for x, y in tiny.tensors()],
            [12, 9, 15],
        )[V]
    tiny.assert_weights(federation.server.model, {V: w})


def test_two_rounds_by_hand() -> None:
    federation = tiny.run(
        {"name": "fedproc", "alpha": 0.3}, model="linear-body", local=FULL, rounds=2
    )
    clients, w = tiny.tensors(), dict(tiny.start(federation))
    trained = [
        tiny.gradient_step(w, lambda p, x=x, y=y: F.cross_entropy(x @ p[W].T @ p[V].T, y))
        for x, y in clients
    ]
    features = torch.cat([x @ p[W].T for (x, _), p in zip(clients, trained, strict=True)])
    labels = torch.cat([y for _, y in clients])
    prototypes = F.normalize(torch.stack([features[labels == c].mean(0) for c in range(3)]))
    w = tiny.mean_of(trained, [12, 9, 15])

    def loss(p: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        r = x @ p[W].T
        return 0.3 * F.cross_entropy(r @ p[V].T, y) + 0.7 * F.cross_entropy(r @ prototypes.T, y)

    trained = [tiny.gradient_step(w, lambda p, x=x, y=y: loss(p, x, y)) for x, y in clients]
    tiny.assert_weights(federation.server.model, tiny.mean_of(trained, [12, 9, 15]))
