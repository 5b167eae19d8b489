from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flray import trees
from flray.algorithms import perfedavg
from flray.algorithms.common.gradients import gradient_at
from tests.algorithms import helpers as tiny

NAME = "classifier.weight"
ALPHA, BETA, DELTA = 0.5, 0.1, 1e-3
FULL = {"model": "one-layer", "local": {"batch_size": 99, "lr": BETA}}


def per(form: str, **options: Any) -> dict[str, Any]:
    return {"name": "perfedavg", "form": form, "alpha": ALPHA, **options}


def initial(settings: dict[str, Any] = FULL) -> Tensor:
    return tiny.fresh("perfedavg", **settings).server.model[NAME]


def test_first_order_step_by_hand() -> None:
    """Softmax regression, all samples in each batch: w - beta grad(w - alpha grad(w)), then the plain mean."""
    w = initial()
    ends = [
        {NAME: w - BETA * tiny.softmax_gradient(w - ALPHA * tiny.softmax_gradient(w, x, y), x, y)}
        for x, y in tiny.tensors()
    ]
    tiny.assert_weights(tiny.run(per("fo"), **FULL).server.model, tiny.mean_of(ends, [1, 1, 1]))


def test_hessian_free_step_by_hand_and_by_the_hessian() -> None:
    w = initial()
    ends, exact = [], []
    for x, y in tiny.tensors():
        g = tiny.softmax_gradient(w - ALPHA * tiny.softmax_gradient(w, x, y), x, y)
        change = tiny.softmax_gradient(w + DELTA * g, x, y) - tiny.softmax_gradient(
            w - DELTA * g, x, y
        )
        ends.append({NAME: w - BETA * (g - ALPHA * change / (2 * DELTA))})
        _, product = torch.autograd.functional.hvp(
            lambda v, x=x, y=y: F.cross_entropy(x @ v.T, y), w, g
        )
        assert product.norm() > 0.01
        exact.append({NAME: w - BETA * (g - ALPHA * product)})
    found = tiny.run(per("hf", delta=DELTA), **FULL).server.model
    tiny.close(found[NAME], tiny.mean_of(ends, [1, 1, 1])[NAME])
    torch.testing.assert_close(
        found[NAME], tiny.mean_of(exact, [1, 1, 1])[NAME], rtol=1e-7, atol=1e-8
    )


def test_batches_are_independent_and_only_the_second_moves_the_statistics(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen: list[tuple[str, int, Tensor]] = []

    def watched(client: Any, batch: Any, *others: Any) -> Any:
        values = trees.sha256(client.weights(frozenset(client.parameters)))
        counts = [int(client.resident.entries["features.middle.num_batches_tracked"])]
        found = gradient_at(client, batch, *others)
        counts.append(int(client.resident.entries["features.middle.num_batches_tracked"]))
        assert trees.sha256(client.weights(frozenset(client.parameters))) == values
        seen.append((batch.phase.tag, counts[1] - counts[0], batch.x))
        return found

    monkeypatch.setattr(perfedavg, "gradient_at", watched)
    tiny.fresh(
        per("hf"), tiny.gaussian_clients((12,)), model={"name": "two-layer", "dropout": 0.2}
    ).step()
    assert [(tag, moved) for tag, moved, _ in seen] == [
        ("inner", 0),
        ("train", 1),
        ("third", 0),
        ("third", 0),
    ] * 3
    for step in range(3):
        inner, train, third, again = (x for _, _, x in seen[4 * step : 4 * step + 4])
        assert torch.equal(third, again)
        assert (
            not torch.equal(inner, train)
            and not torch.equal(train, third)
            and not torch.equal(inner, third)
        )
    for tag in ("inner", "train", "third"):  # each stream passes all samples once
        rows = torch.cat([x for name, _, x in seen if name == tag])
        assert len(torch.unique(rows, dim=0)) == 12


@pytest.mark.parametrize("form", ["fo", "hf"])
def test_both_forms_differ_from_fedavg_and_from_each_other(form: str) -> None:
    settings = {
        "rounds": 2,
        "model": {"name": "two-layer", "dropout": 0.2},
        "aggregation": {"weights": "uniform"},
    }
    other = "hf" if form == "fo" else "fo"
    digest = tiny.digest(per(form), **settings)
    assert digest not in (tiny.digest("fedavg", **settings), tiny.digest(per(other), **settings))


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_personal_models_are_some_plain_steps_from_the_global_one(steps: int) -> None:
    """Steps of size alpha on the training data, whatever the local optimiser; also more than an epoch has batches."""
    settings = {
        "model": "one-layer",
        "local": {
            "batch_size": 99,
            "optimizer": "adam",
            "weight_decay": 0.1,
            "lr_decay": 0.5,
            "clip_norm": 1e-3,
        },
    }
    federation = tiny.run(per("fo", adapt_steps=steps), rounds=2, **settings)
    before = federation.sha256()
    metrics = federation.evaluate()
    assert federation.sha256() == before
    for i, (x, y) in enumerate(tiny.tensors()):
        w = federation.server.model[NAME]
        for _ in range(steps):
            w = w - ALPHA * tiny.softmax_gradient(w, x, y)
        loss = float(F.cross_entropy(x @ w.T, y))
        assert metrics[f"personal/local/loss/client/client{i}"] == pytest.approx(loss, rel=1e-12)


def test_clipping_and_the_local_optimiser_act_on_the_meta_gradient() -> None:
    """Clipped to a tiny norm, every client moves by lr times that norm."""
    federation = tiny.run(
        per("fo"),
        tiny.gaussian_clients((12,)),
        model="one-layer",
        local={"batch_size": 99, "clip_norm": 1e-3},
    )
    distance = (federation.server.model[NAME] - tiny.start(federation)[NAME]).norm()
    assert float(distance) == pytest.approx(0.1 * 1e-3, rel=1e-5)
