"""Contrast between samples, models and clients, against loops."""

import math
from typing import Literal

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from pytest import approx
from torch.autograd import grad, gradcheck
from torch.testing import assert_close

import flray.functional as fn
from tests.functional.helpers import near, normal


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / (np.linalg.norm(a) * np.linalg.norm(b)))


def test_model_contrastive_equals_loops() -> None:
    own, common, before = normal(4, 3).requires_grad_(), normal(4, 3, seed=1), normal(4, 3, seed=2)
    expected = 0.0
    for r, g, p in zip(own.detach().numpy(), common.numpy(), before.numpy(), strict=True):
        a, b = math.exp(cosine(r, g) / 0.5), math.exp(cosine(r, p) / 0.5)
        expected -= math.log(a / (a + b)) / 4
    near(fn.model_contrastive_loss(own, common, before), expected)
    assert gradcheck(lambda x: fn.model_contrastive_loss(x, common, before, 0.3), own)
    references = common.requires_grad_(), before.requires_grad_()
    loss = fn.model_contrastive_loss(own, *references)
    assert grad(loss, references, allow_unused=True) == (None, None)


def test_model_contrastive_first_round_and_scale() -> None:
    own, common = normal(4, 3).requires_grad_(), normal(4, 3, seed=1)
    loss = fn.model_contrastive_loss(own, common, common)
    near(loss, math.log(2), rel=1e-15)
    assert not grad(loss, own)[0].any()
    before = normal(4, 3, seed=2)
    assert torch.equal(
        fn.model_contrastive_loss(2 * own, common, before),
        fn.model_contrastive_loss(own, common, before),
    )


def test_model_contrastive_edges() -> None:
    zero = torch.zeros(1, 3, requires_grad=True)
    loss = fn.model_contrastive_loss(zero, torch.ones(1, 3), -torch.ones(1, 3))
    assert loss.item() == approx(math.log(2)) and not grad(loss, zero)[0].any()
    saturated = fn.model_contrastive_loss(
        torch.ones(2, 3), -torch.ones(2, 3), torch.ones(2, 3), 1e-3
    )
    near(saturated, 2000.0, rel=1e-5)
    assert (
        fn.model_contrastive_loss(torch.ones(0, 3), torch.ones(0, 3), torch.ones(0, 3)).item()
        == 0.0
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
        return fn.relaxed_contrastive_loss(x, torch.tensor(labels), 0.3, threshold, 0.7, 2, pairs)  # type: ignore[arg-type]

    expected = loop_relaxed(features.detach().numpy(), labels, 0.3, threshold, 0.7, 2, pairs)
    near(call(features), expected, rel=1e-11, abs=1e-14)
    assert gradcheck(call, features)


@pytest.mark.parametrize("pairs", ["top", "all"])
def test_relaxed_contrastive_of_several_layers_is_their_mean(pairs: Literal["top", "all"]) -> None:
    layers = [normal(7, d, seed=d).requires_grad_() for d in (2, 4, 9)]
    labels = torch.tensor([0, 0, 0, 1, 1, 2, 3])
    loss = fn.relaxed_contrastive_loss(layers, labels, 0.3, 0.2, 0.7, 2, pairs)
    single = [
        fn.relaxed_contrastive_loss(layer, labels, 0.3, 0.2, 0.7, 2, pairs).item()
        for layer in layers
    ]
    assert loss.item() == approx(sum(single) / 3, rel=1e-13) and len(set(single)) == 3


def test_relaxed_contrastive_invariances_and_defaults() -> None:
    features, labels = normal(6, 4).float(), torch.tensor([0, 0, 1, 1, 2, 2])
    loss = fn.relaxed_contrastive_loss(features, labels)
    assert torch.isfinite(loss)
    assert torch.equal(fn.relaxed_contrastive_loss(features * 8, labels), loss)
    order = torch.tensor([3, 5, 0, 2, 1, 4])
    near(fn.relaxed_contrastive_loss(features[order], labels[order]), loss.item(), rel=1e-5)
    without = fn.relaxed_contrastive_loss(features, labels, threshold=1.1)
    assert without.item() == fn.relaxed_contrastive_loss(features, labels, penalty=0.0).item()


@pytest.mark.parametrize("size", [0, 1, 2])
def test_relaxed_contrastive_small_batches_and_equal_samples(size: int) -> None:
    features = torch.ones(size, 3, dtype=torch.float64, requires_grad=True)
    loss = fn.relaxed_contrastive_loss(features, torch.zeros(size).long())
    loss.backward()
    # Two equal samples of one class: no contrast, the penalty is log 2 for each.
    near(loss, math.log(2) if size == 2 else 0.0)
    assert features.grad is not None and torch.isfinite(features.grad).all()


def test_correlation_equals_numpy() -> None:
    own, mean = normal(9, 4), normal(9, 4, seed=1)
    expected = np.corrcoef(own.numpy().T, mean.numpy().T)[:4, 4:]
    assert_allclose(fn.cross_correlation(own, mean).numpy(), expected, rtol=1e-12, atol=1e-14)
    loss = sum((1 - expected[u, u]) ** 2 for u in range(4))
    loss += 0.3 * sum((1 + expected[u, v]) ** 2 for u in range(4) for v in range(4) if u != v)
    near(fn.cross_correlation_loss(own, mean, 0.3), loss)


def test_correlation_of_identical_clients_and_affine_maps() -> None:
    own, mean = normal(9, 4), normal(9, 4, seed=1)
    assert_close(fn.cross_correlation(own, own).diagonal(), torch.ones(4, dtype=torch.float64))
    scaled = own * torch.tensor([2.0, 0.1, 30.0, 1e-3]) + torch.tensor([1.0, -5.0, 0.0, 1e3])
    losses = (fn.cross_correlation_loss(logits, mean) for logits in (scaled, own))
    near(next(losses), next(losses).item(), rel=1e-9)
    assert fn.cross_correlation(own, mean).abs().max() <= 1 + 1e-14


def test_correlation_gradients_and_constant_mean() -> None:
    own, mean = normal(5, 3).requires_grad_(), normal(5, 3, seed=1).requires_grad_()
    assert gradcheck(lambda x: fn.cross_correlation_loss(x, mean.detach(), 0.5), own)
    assert gradcheck(fn.cross_correlation, (own, mean))
    assert grad(fn.cross_correlation_loss(own, mean), mean, allow_unused=True)[0] is None


@pytest.mark.parametrize("value", [0.0, 0.1, 1e20, -7.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_columns_without_variance_have_no_correlation(value: float, dtype: torch.dtype) -> None:
    own = normal(7, 3).to(dtype)
    own[:, 1] = value
    own.requires_grad_()
    mean = normal(7, 3, seed=1).to(dtype)
    mean[:, 2] = value
    correlation = fn.cross_correlation(own, mean)
    assert not correlation[1].any() and not correlation[:, 2].any() and correlation[0, 0] != 0
    (gradient,) = grad(fn.cross_correlation_loss(own, mean), own)
    assert torch.isfinite(gradient).all() and not gradient[:, 1].any() and gradient[:, 0].any()


def test_small_batches() -> None:
    one = normal(1, 3).requires_grad_()
    loss = fn.cross_correlation_loss(one, normal(1, 3, seed=1), 0.5)
    assert loss.item() == 3 + 0.5 * 6 and not grad(loss, one)[0].any()
    two = torch.tensor([[0.0, 5.0], [1.0, 2.0]], dtype=torch.float64)
    assert_allclose(fn.cross_correlation(two, two).numpy(), [[1, -1], [-1, 1]], rtol=1e-15)
    near(fn.cross_correlation_loss(two, two), 0.0, abs=1e-15)


def test_similarity_equals_loops_without_the_diagonal() -> None:
    features = normal(5, 3)
    found = fn.instance_similarity(features, 0.5)
    for b in range(5):
        row = [
            features[b] @ features[a] / (features[b].norm() * features[a].norm()) / 0.5
            for a in range(5)
            if a != b
        ]
        assert_allclose(found[b].numpy(), torch.stack(row).numpy(), rtol=1e-12)
    assert gradcheck(lambda x: fn.instance_similarity(x, 0.5), features.requires_grad_())


def test_similarity_loss_equals_loops() -> None:
    own, mean = normal(4, 3).requires_grad_(), normal(4, 3, seed=1).requires_grad_()
    expected = 0.0
    for s, m in zip(own.detach().numpy(), mean.detach().numpy(), strict=True):
        p, q = np.exp(m) / np.exp(m).sum(), np.exp(s) / np.exp(s).sum()
        expected += float((p * np.log(p / q)).sum()) / 4
    near(fn.instance_similarity_loss(own, mean), expected)
    assert gradcheck(lambda x: fn.instance_similarity_loss(x, mean.detach()), own)
    assert grad(fn.instance_similarity_loss(own, mean), mean, allow_unused=True)[0] is None
    assert fn.instance_similarity_loss(own, own).item() == 0.0


def test_similarity_edges() -> None:
    features = torch.tensor(
        [[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]], dtype=torch.float64, requires_grad=True
    )
    similarity = fn.instance_similarity(features)
    assert_allclose(similarity.detach().numpy(), [[0, 0], [0, 50], [0, 50]], rtol=1e-13)
    loss = fn.instance_similarity_loss(similarity, torch.zeros(3, 2, dtype=torch.float64))
    near(loss, 2 / 3 * (25 + math.log((1 + math.exp(-50)) / 2)))
    (gradient,) = grad(loss, features)
    assert torch.isfinite(gradient).all() and not gradient[0].any()
    for batch in (0, 1, 2):
        small = normal(batch, 4).requires_grad_()
        value = fn.instance_similarity_loss(
            fn.instance_similarity(small), fn.instance_similarity(normal(batch, 4, seed=1))
        )
        value.backward()
        assert value.item() == 0.0 and small.grad is not None and not small.grad.any()
    # Saturated rows: the cosine divided by the paper's temperature reaches 50.
    rows = torch.tensor([[50.0, -50.0]] * 3)
    assert fn.instance_similarity_loss(rows, -rows).item() == 100.0


def test_shrunk_correlations_are_those_of_the_unbiased_deviation_divided_by_the_batch() -> None:
    logits, mean = (
        torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(i))
        for i in (0, 1)
    )
    z, other = ((v - v.mean(0)) / v.std(0) for v in (logits, mean))
    m = z.T @ other / 6
    off = ~torch.eye(3, dtype=torch.bool)
    expected = ((1 - m.diagonal()) ** 2).sum() + 0.0051 * ((1 + m[off]) ** 2).sum()
    assert_close(fn.cross_correlation_loss(logits, mean, shrunk=True), expected)
