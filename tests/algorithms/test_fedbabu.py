from __future__ import annotations

import torch

from flray import trees
from tests.algorithms import helpers as tiny

DROPOUT = {"name": "two-layer", "dropout": 0.2}


def test_the_head_is_the_initial_one_whatever_the_optimiser_does() -> None:
    federation = tiny.run("fedbabu", rounds=3, local={"momentum": 0.9, "weight_decay": 0.1})
    initial = tiny.federation_of(federation.spec)
    personal = [
        trees.unpack(federation.executor.fetch(handle))["personal"] for handle in federation.states
    ]
    heads = [
        {n: v for n, v in w.items() if n.startswith("classifier")}
        for w in (initial.server.model, federation.server.model, *personal)
    ]
    assert len({trees.sha256(head) for head in heads}) == 1
    assert tiny.models_sha(initial) != tiny.models_sha(federation)


def test_body_step_by_hand() -> None:
    """Linear body, mean over clients of one full-batch step: W <- W - lr V^T g, g the gradient of the product V W."""
    model = {"name": "linear-body"}
    federation = tiny.run("fedbabu", rounds=1, model=model, local={"batch_size": 99})
    initial = tiny.start(federation)
    w, v = initial["features.first.weight"], initial["classifier.weight"]
    steps = [w - 0.1 * v.T @ tiny.softmax_gradient(v @ w, x, y) for x, y in tiny.tensors()]
    tiny.close(federation.server.model["features.first.weight"], torch.stack(steps).mean(0))


def test_without_fine_tuning_personal_is_global() -> None:
    metrics = tiny.run({"name": "fedbabu", "fine_tune_epochs": 0}, rounds=2).evaluate()
    assert metrics["personal/local/loss"] == metrics["global/local/loss"]


def test_fine_tuning_helps_and_is_forgotten() -> None:
    losses = set()
    for part in ("all", "classifier", "features"):
        federation = tiny.run({"name": "fedbabu", "fine_tune": part}, rounds=2, model=DROPOUT)
        before = federation.sha256()
        metrics = federation.evaluate()
        assert metrics["personal/local/loss"] < metrics["global/local/loss"]
        assert metrics == federation.evaluate()
        assert federation.sha256() == before
        losses.add(metrics["personal/local/loss"])
    assert len(losses) == 3


def test_training_does_not_depend_on_fine_tuning() -> None:
    digests = {
        tiny.run({"name": "fedbabu", "fine_tune_epochs": epochs}, rounds=3).sha256()
        for epochs in (0, 5)
    }
    assert len(digests) == 1
