from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.algorithms.helpers import (
    as_tensors,
    assert_weights,
    federation_of,
    gaussian_clients,
    gradient_step,
    mean_of,
    models_sha,
    run_federation,
    softmax_gradient,
    spec_of,
)

FULL = {"batch_size": 99}
W, V = "features.first.weight", "classifier.weight"


def test_the_first_round_is_fedavg_s_and_the_second_is_not() -> None:
    assert [
        models_sha(run_federation("fedproc", rounds=r))
        == models_sha(run_federation("fedavg", rounds=r))
        for r in (1, 2)
    ] == [True, False]


def test_prototypes_are_the_means_over_all_samples_of_a_class() -> None:
    """The features of a network whose body has no parameters are its inputs."""
    clients = as_tensors(gaussian_clients(skew=True))
    state = run_federation("fedproc", gaussian_clients(skew=True), model="one-layer").server.state[
        "prototypes"
    ]
    x, y = torch.cat([x for x, _ in clients]), torch.cat([y for _, y in clients])
    expected = torch.stack([x[y == c].mean(0) for c in range(3)])
    torch.testing.assert_close(state["vectors"], expected, rtol=1e-12, atol=1e-14)
    assert state["present"].all()


def test_a_class_that_nobody_sends_keeps_its_prototype() -> None:
    federation = federation_of(
        spec_of(
            "fedproc",
            gaussian_clients(skew=True),
            classes=4,
            model="one-layer",
            participation={"clients": 1},
        )
    )
    clients, expected, known = (
        as_tensors(gaussian_clients(skew=True)),
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
        torch.testing.assert_close(state["vectors"], expected, rtol=1e-12, atol=1e-14)
        assert set(state["present"].nonzero().flatten().tolist()) == known
    assert known == {0, 1, 2}


def test_the_weight_of_ce_grows_over_the_rounds() -> None:
    """The contrast has no gradient where the body has no parameters, so alpha scales the steps: 1, 1/4, 2/4."""
    federation = run_federation(
        {"name": "fedproc", "ramp": 4}, model="one-layer", local=FULL, rounds=3
    )
    w = federation_of(federation.spec).server.model[V]
    for alpha in (1.0, 0.25, 0.5):
        w = mean_of(
            [
                {V: w - 0.1 * alpha * softmax_gradient(w, x, y)}
                for x, y in as_tensors(gaussian_clients())
            ],
            [12, 9, 15],
        )[V]
    assert_weights(federation.server.model, {V: w})


def test_two_rounds_by_hand() -> None:
    federation = run_federation(
        {"name": "fedproc", "alpha": 0.3}, model="linear-body", local=FULL, rounds=2
    )
    clients, w = as_tensors(gaussian_clients()), dict(federation_of(federation.spec).server.model)
    trained = [
        gradient_step(w, lambda p, x=x, y=y: F.cross_entropy(x @ p[W].T @ p[V].T, y))
        for x, y in clients
    ]
    features = torch.cat([x @ p[W].T for (x, _), p in zip(clients, trained, strict=True)])
    labels = torch.cat([y for _, y in clients])
    prototypes = F.normalize(torch.stack([features[labels == c].mean(0) for c in range(3)]))
    w = mean_of(trained, [12, 9, 15])

    def loss(p: Mapping[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        r = x @ p[W].T
        return 0.3 * F.cross_entropy(r @ p[V].T, y) + 0.7 * F.cross_entropy(r @ prototypes.T, y)

    trained = [gradient_step(w, lambda p, x=x, y=y: loss(p, x, y)) for x, y in clients]
    assert_weights(federation.server.model, mean_of(trained, [12, 9, 15]))
