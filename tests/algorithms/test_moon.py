import math
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flray import trees
from tests.algorithms import helpers as tiny
from tests.algorithms.helpers import V, W


def test_first_turns_have_a_loss_of_log_2_and_no_gradient_from_it() -> None:
    moon, fedavg = (tiny.fresh(name, model=tiny.DROPOUT) for name in ("moon", "fedavg"))
    losses = [federation.step().metrics["train/loss"] for federation in (moon, fedavg)]
    assert losses[0] - losses[1] == pytest.approx(math.log(2), abs=1e-12)
    assert tiny.models_sha(moon) == tiny.models_sha(fedavg)


def test_two_rounds_by_hand() -> None:
    """Full-batch steps on a linear body; the second contrasts with the mean and with each client's own last model."""
    mu, tau, clients = 2.0, 0.3, tiny.tensors()
    options = {"name": "moon", "mu": mu, "tau": tau}
    federation = tiny.run(options, rounds=2, **tiny.full("linear-body"))
    own = tiny.each_step(tiny.start(federation), clients)
    mean = tiny.mean_of(own, tiny.SIZES)

    def loss(p: Any, last: Any, x: Tensor, y: Tensor) -> Tensor:
        r = x @ p[W].T
        near = torch.exp(F.cosine_similarity(r, x @ mean[W].T) / tau)
        far = torch.exp(F.cosine_similarity(r, x @ last[W].T) / tau)
        return F.cross_entropy(r @ p[V].T, y) - mu * torch.log(near / (near + far)).mean()

    pairs = zip(own, clients, strict=True)
    trained = [tiny.gradient_step(mean, partial(loss, last=w, x=x, y=y)) for w, (x, y) in pairs]
    tiny.close(federation.server.model, tiny.mean_of(trained, tiny.SIZES))


def test_the_previous_model_is_that_of_the_client_s_own_last_turn() -> None:
    federation = tiny.fresh("moon", participation={"clients": 1})
    previous: dict[int, str] = {}
    for _ in range(6):
        federation.step()
        # a single client's model comes back from the average with its own bits
        previous[federation.server.cohort[0]] = trees.sha256(federation.server.model)
        for known, digest in previous.items():
            assert trees.sha256(tiny.state_of(federation, known)["previous"]) == digest
    assert len(previous) > 1
