from __future__ import annotations

import math
from collections.abc import Mapping

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flray import trees
from tests.algorithms import helpers as tiny

DROPOUT = {"name": "two-layer", "dropout": 0.2}
W, V = "features.first.weight", "classifier.weight"


def test_first_turns_have_a_loss_of_log_2_and_no_gradient_from_it() -> None:
    spec, plain = tiny.spec_of("moon", model=DROPOUT), tiny.spec_of("fedavg", model=DROPOUT)
    moon, fedavg = tiny.federation_of(spec), tiny.federation_of(plain)
    losses = [federation.step().metrics["train/loss"] for federation in (moon, fedavg)]
    assert losses[0] - losses[1] == pytest.approx(math.log(2), abs=1e-12)
    assert tiny.models_sha(moon) == tiny.models_sha(fedavg)
    moon.step()
    fedavg.step()
    assert tiny.models_sha(moon) != tiny.models_sha(fedavg)


def test_two_rounds_by_hand() -> None:
    """Full-batch steps on a linear body; the second contrasts with the mean and with each client's own last model."""
    mu, tau, sizes, clients = 2.0, 0.3, [12, 9, 15], tiny.tensors()
    federation = tiny.run(
        {"name": "moon", "mu": mu, "tau": tau},
        model="linear-body",
        local={"batch_size": 99},
        rounds=2,
    )
    start = tiny.start(federation)
    own = [
        tiny.gradient_step(start, lambda p, x=x, y=y: F.cross_entropy(x @ p[W].T @ p[V].T, y))
        for x, y in clients
    ]
    mean = tiny.mean_of(own, sizes)

    def loss(
        p: Mapping[str, Tensor], x: Tensor, y: Tensor, previous: Mapping[str, Tensor]
    ) -> Tensor:
        r = x @ p[W].T
        near = torch.exp(F.cosine_similarity(r, x @ mean[W].T) / tau)
        far = torch.exp(F.cosine_similarity(r, x @ previous[W].T) / tau)
        return F.cross_entropy(r @ p[V].T, y) - mu * torch.log(near / (near + far)).mean()

    trained = [
        tiny.gradient_step(mean, lambda p, x=x, y=y, last=last: loss(p, x, y, last))
        for (x, y), last in zip(clients, own, strict=True)
    ]
    tiny.assert_weights(federation.server.model, tiny.mean_of(trained, sizes))


def test_the_previous_model_is_that_of_the_client_s_own_last_turn() -> None:
    federation = tiny.fresh("moon", participation={"clients": 1})
    previous: dict[int, str] = {}
    for _ in range(6):
        federation.step()
        (client,) = federation.server.cohort
        # a single client's model comes back from the average with its own bits
        previous[client] = tiny.models_sha(federation)
        for known, digest in previous.items():
            assert (
                trees.sha256({"two-layer": tiny.state_of(federation, known)["previous"]}) == digest
            )
    assert len(previous) > 1
