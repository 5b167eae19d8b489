from __future__ import annotations

import pytest
import torch

from flray import trees
from flray.algorithms.client import Client
from flray.algorithms.common.samples import Batch
from flray.algorithms.fedrep import FedRep
from tests.algorithms import helpers as tiny

DROPOUT = {"name": "two-layer", "dropout": 0.2}


def rep(head: int | None, body: int | None, **options: int) -> dict[str, object]:
    return {"name": "fedrep", "head_epochs": head, "body_epochs": body, **options}


def test_each_phase_leaves_the_other_part_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Statistics included, and with the momentum and weight decay that move weights of zero gradient."""
    seen: list[tuple[str, str, str]] = []
    step = FedRep.step

    def watched(
        self: FedRep, client: Client, batch: Batch, optimizer: torch.optim.Optimizer
    ) -> None:
        step(self, client, batch, optimizer)
        features, classifier = (
            trees.sha256({n: v for n, v in client.resident.entries.items() if n.startswith(part)})
            for part in ("features", "classifier")
        )
        seen.append((batch.phase.tag, features, classifier))

    monkeypatch.setattr(FedRep, "step", watched)
    federation = tiny.fresh(
        rep(2, 1), tiny.gaussian_clients((12,)), local={"momentum": 0.9, "weight_decay": 0.1}
    )
    federation.step()
    head, body = [s for s in seen if s[0] == "personal"], [s for s in seen if s[0] == "train"]
    assert (len(head), len(body)) == (6, 3) and seen == head + body
    assert len({s[1] for s in head}) == 1 and len({s[2] for s in head}) == 6
    assert len({s[1] for s in body}) == 3 and {s[2] for s in body} == {head[-1][2]}


def test_without_body_epochs_the_body_stays_the_initial_one() -> None:
    federation = tiny.run(rep(3, 0), rounds=2)
    initial = tiny.federation_of(federation.spec).server.models
    assert tiny.models_sha(federation) == trees.sha256(initial)
    assert tiny.state_of(federation, 0)["personal"]["classifier.bias"].norm() > 0


def test_head_phase_is_softmax_regression_on_the_received_features() -> None:
    """On a network whose body has no parameters, so that its phase is empty: two full-batch steps."""
    federation = tiny.run(rep(2, 3), rounds=1, model="one-layer", local={"batch_size": 99})
    for i, (x, y) in enumerate(tiny.tensors()):
        w = federation.server.model["classifier.weight"].clone()
        for _ in range(2):
            w -= 0.1 * tiny.softmax_gradient(w, x, y)
        tiny.close(tiny.state_of(federation, i)["personal"]["classifier.weight"], w)


def test_without_head_epochs_training_is_fedbabu_s() -> None:
    settings = {"model": DROPOUT, "aggregation": {"weights": "uniform"}}
    babu = tiny.run("fedbabu", rounds=3, **settings)
    assert tiny.digest(rep(0, None), rounds=3, **settings) == tiny.models_sha(babu)
    assert tiny.digest(rep(1, None), rounds=3, **settings) != tiny.models_sha(babu)


def test_heads_fitted_for_the_test_are_forgotten() -> None:
    """On a network that has nothing but a head to fit."""
    fitted, plain = (
        tiny.run(rep(1, 1, evaluation_epochs=epochs), model="one-layer") for epochs in (5, 0)
    )
    loss = "personal/local/loss"
    assert fitted.evaluate()[loss] < plain.evaluate()[loss]
    assert fitted.sha256() == plain.sha256()
    fitted.step()
    plain.step()
    assert fitted.sha256() == plain.sha256()
