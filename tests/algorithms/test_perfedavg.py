from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from flray import trees
from flray.algorithms import perfedavg
from flray.algorithms.common.client_parts import gradient_at
from tests.algorithms import helpers as tiny
from tests.algorithms.helpers import V

ALPHA, BETA, DELTA = 0.5, 0.1, 1e-3


def per(form: str, **options: Any) -> dict[str, Any]:
    return {"name": "perfedavg", "form": form, "alpha": ALPHA, **options}


@pytest.mark.parametrize("form", ["fo", "hf"])
def test_one_step_by_hand(form: str) -> None:
    """Softmax regression, all samples in each batch: w - beta g with g = grad(w - alpha grad(w)), then the plain mean.

    Hessian-free, g is less alpha times a difference quotient, which is near the Hessian's product with g.
    """
    federation = tiny.run(per(form, delta=DELTA), **tiny.full(lr=BETA))
    w, ends, exact = tiny.start(federation)[V], [], []
    for x, y in tiny.tensors():
        g = tiny.softmax_gradient(w - ALPHA * tiny.softmax_gradient(w, x, y), x, y)
        after, before = (tiny.softmax_gradient(w + d * g, x, y) for d in (DELTA, -DELTA))
        second = ALPHA * (after - before) / (2 * DELTA) if form == "hf" else 0
        ends.append({V: w - BETA * (g - second)})
        loss = lambda v, x=x, y=y: F.cross_entropy(x @ v.T, y)  # noqa: E731
        _, product = torch.autograd.functional.hvp(loss, w, g)
        assert product.norm() > 0.01
        exact.append({V: w - BETA * (g - ALPHA * product)})
    tiny.close(federation.server.model, tiny.mean_of(ends, [1, 1, 1]))
    if form == "hf":
        mean = tiny.mean_of(exact, [1, 1, 1])
        tiny.close(federation.server.model, mean, rtol=1e-7, atol=1e-8)


def test_only_the_second_batch_moves_the_statistics(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[str, int, Tensor]] = []

    def watched(client: Any, batch: Any, *others: Any) -> Any:
        values = trees.sha256(client.weights(frozenset(client.parameters)))
        counter = "features.middle.num_batches_tracked"
        before = int(client.resident.entries[counter])
        found = gradient_at(client, batch, *others)
        assert trees.sha256(client.weights(frozenset(client.parameters))) == values
        seen.append((batch.phase.tag, int(client.resident.entries[counter]) - before, batch.x))
        return found

    monkeypatch.setattr(perfedavg, "gradient_at", watched)
    tiny.run(per("hf"), tiny.gaussian_clients((12,)), model=tiny.DROPOUT)
    moved = [("inner", 0), ("train", 1), ("third", 0), ("third", 0)]
    assert [one[:2] for one in seen] == moved * 3
    for step in range(3):
        inner, train, third, again = (x for _, _, x in seen[4 * step : 4 * step + 4])
        assert torch.equal(third, again)
        assert len({trees.sha256({"x": x}) for x in (inner, train, third)}) == 3
    for tag in ("inner", "train", "third"):  # each stream passes all samples once
        rows = torch.cat([x for name, _, x in seen if name == tag])
        assert len(torch.unique(rows, dim=0)) == 12


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_personal_models_are_some_plain_steps_from_the_global_one(steps: int) -> None:
    """Steps of size alpha on the training data, whatever the local optimiser; also more than an epoch has batches."""
    local = {"optimizer": "adam", "weight_decay": 0.1, "clip_norm": 1e-3, "lr_decay": 0.5}
    federation = tiny.run(per("fo", adapt_steps=steps), rounds=2, **tiny.full(**local))
    for i, (x, y) in enumerate(tiny.tensors()):
        w = federation.server.model[V]
        for _ in range(steps):
            w = w - ALPHA * tiny.softmax_gradient(w, x, y)
        tiny.has_loss(federation, i, x @ w.T)


def test_clipping_and_the_local_optimiser_act_on_the_meta_gradient() -> None:
    """Clipped to a tiny norm, every client moves by lr times that norm."""
    one = tiny.gaussian_clients((12,))
    federation = tiny.run(per("fo"), one, **tiny.full(clip_norm=1e-3))
    distance = (federation.server.model[V] - tiny.start(federation)[V]).norm()
    assert float(distance) == pytest.approx(0.1 * 1e-3, rel=1e-5)
