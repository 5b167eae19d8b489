import math
from typing import Literal

import numpy as np
import pytest
import torch

from flray.functional import model_contrastive_loss, relaxed_contrastive_loss
from tests.functional.helpers import normal


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def test_model_contrastive_equals_loops() -> None:
    own, common, before = normal(4, 3).requires_grad_(), normal(4, 3, seed=1), normal(4, 3, seed=2)
    expected = 0.0
    for r, g, p in zip(own.detach().numpy(), common.numpy(), before.numpy(), strict=True):
        a, b = math.exp(cosine(r, g) / 0.5), math.exp(cosine(r, p) / 0.5)
        expected -= math.log(a / (a + b)) / 4
    assert model_contrastive_loss(own, common, before).item() == pytest.approx(expected, rel=1e-12)
    assert torch.autograd.gradcheck(lambda x: model_contrastive_loss(x, common, before, 0.3), own)
    references = common.requires_grad_(), before.requires_grad_()
    loss = model_contrastive_loss(own, *references)
    assert torch.autograd.grad(loss, references, allow_unused=True) == (None, None)


def test_model_contrastive_first_round_and_scale() -> None:
    own, common = normal(4, 3).requires_grad_(), normal(4, 3, seed=1)
    loss = model_contrastive_loss(own, common, common)
    assert loss.item() == pytest.approx(math.log(2), rel=1e-15)
    assert not torch.autograd.grad(loss, own)[0].any()
    before = normal(4, 3, seed=2)
    assert torch.equal(
        model_contrastive_loss(2 * own, common, before), model_contrastive_loss(own, common, before)
    )


def test_model_contrastive_edges() -> None:
    zero = torch.zeros(1, 3, requires_grad=True)
    loss = model_contrastive_loss(zero, torch.ones(1, 3), -torch.ones(1, 3))
    assert (
        loss.item() == pytest.approx(math.log(2)) and not torch.autograd.grad(loss, zero)[0].any()
    )
    saturated = model_contrastive_loss(torch.ones(2, 3), -torch.ones(2, 3), torch.ones(2, 3), 1e-3)
    assert saturated.item() == pytest.approx(2000.0, rel=1e-5)
    assert (
        model_contrastive_loss(torch.ones(0, 3), torch.ones(0, 3), torch.ones(0, 3)).item() == 0.0
    )


def loop_relaxed(
    x: np.ndarray, y: list[int], tau: float, threshold: float, beta: float, k: int, pairs: str
) -> float:
    total = 0.0
    for a in range(len(x)):
        s = [1.0 if i == a else cosine(x[a], x[i]) for i in range(len(x))]
        partners = [s[i] for i in range(len(x)) if y[i] == y[a] and i != a]
        others = sorted((s[i] for i in range(len(x)) if y[i] != y[a]), reverse=True)
        positives, close = partners or [1.0], partners
        if pairs == "top":
            positives, close, others = [min(positives)], sorted(partners)[:1], others[:k]
        repulsion = sum(math.exp(v / tau) for v in others)
        total += sum(
            -math.log(math.exp(p / tau) / (math.exp(p / tau) + repulsion)) for p in positives
        ) / len(positives)
        attraction = sum(math.exp(v / tau) for v in close if v >= threshold)
        total += beta * -math.log(math.exp(1 / tau) / (math.exp(1 / tau) + attraction))
    return total / len(x)


@pytest.mark.parametrize("pairs", ["top", "all"])
@pytest.mark.parametrize(
    "labels", [[0, 0, 0, 1, 1, 2, 2], [0, 1, 2, 3, 4, 5, 6], [0] * 7, [0, 0, 0, 0, 0, 0, 1]]
)
@pytest.mark.parametrize("threshold", [0.2, 1.1])
def test_relaxed_contrastive_equals_loops(pairs: str, labels: list[int], threshold: float) -> None:
    features = normal(7, 4).requires_grad_()

    def call(x: torch.Tensor) -> torch.Tensor:
        return relaxed_contrastive_loss(x, torch.tensor(labels), 0.3, threshold, 0.7, 2, pairs)  # type: ignore[arg-type]

    expected = loop_relaxed(features.detach().numpy(), labels, 0.3, threshold, 0.7, 2, pairs)
    assert call(features).item() == pytest.approx(expected, rel=1e-11, abs=1e-14)
    assert torch.autograd.gradcheck(call, features)


@pytest.mark.parametrize("pairs", ["top", "all"])
def test_relaxed_contrastive_of_several_layers_is_their_mean(pairs: Literal["top", "all"]) -> None:
    layers, labels = (
        [normal(7, d, seed=d).requires_grad_() for d in (2, 4, 9)],
        torch.tensor([0, 0, 0, 1, 1, 2, 3]),
    )
    loss = relaxed_contrastive_loss(layers, labels, 0.3, 0.2, 0.7, 2, pairs)
    single = [
        relaxed_contrastive_loss(layer, labels, 0.3, 0.2, 0.7, 2, pairs).item() for layer in layers
    ]
    assert loss.item() == pytest.approx(sum(single) / 3, rel=1e-13) and len(set(single)) == 3


def test_relaxed_contrastive_invariances_and_defaults() -> None:
    features, labels = normal(6, 4).float(), torch.tensor([0, 0, 1, 1, 2, 2])
    loss = relaxed_contrastive_loss(features, labels)
    assert torch.isfinite(loss) and torch.equal(
        relaxed_contrastive_loss(features * 8, labels), loss
    )
    order = torch.tensor([3, 5, 0, 2, 1, 4])
    assert relaxed_contrastive_loss(features[order], labels[order]).item() == pytest.approx(
        loss.item(), rel=1e-5
    )
    without = relaxed_contrastive_loss(features, labels, threshold=1.1)
    assert without.item() == relaxed_contrastive_loss(features, labels, penalty=0.0).item()


@pytest.mark.parametrize("size", [0, 1, 2])
def test_relaxed_contrastive_small_batches_and_equal_samples(size: int) -> None:
    features = torch.ones(size, 3, dtype=torch.float64, requires_grad=True)
    loss = relaxed_contrastive_loss(features, torch.zeros(size).long())
    loss.backward()
    # Two equal samples of one class: no contrast, the penalty is log 2 for each.
    assert loss.item() == pytest.approx(math.log(2) if size == 2 else 0.0, rel=1e-12)
    assert features.grad is not None and torch.isfinite(features.grad).all()
