import math

import numpy as np
import pytest
import torch

from flray.functional import (
    cross_correlation,
    cross_correlation_loss,
    instance_similarity,
    instance_similarity_loss,
)
from tests.functional.helpers import normal


def test_correlation_equals_numpy() -> None:
    own, mean = normal(9, 4), normal(9, 4, seed=1)
    expected = np.corrcoef(own.numpy().T, mean.numpy().T)[:4, 4:]
    np.testing.assert_allclose(
        cross_correlation(own, mean).numpy(), expected, rtol=1e-12, atol=1e-14
    )
    loss = sum((1 - expected[u, u]) ** 2 for u in range(4))
    loss += 0.3 * sum((1 + expected[u, v]) ** 2 for u in range(4) for v in range(4) if u != v)
    assert cross_correlation_loss(own, mean, 0.3).item() == pytest.approx(loss, rel=1e-12)


def test_correlation_of_identical_clients_and_affine_maps() -> None:
    own, mean = normal(9, 4), normal(9, 4, seed=1)
    torch.testing.assert_close(
        cross_correlation(own, own).diagonal(), torch.ones(4, dtype=torch.float64)
    )
    scaled = own * torch.tensor([2.0, 0.1, 30.0, 1e-3]) + torch.tensor([1.0, -5.0, 0.0, 1e3])
    assert cross_correlation_loss(scaled, mean).item() == pytest.approx(
        cross_correlation_loss(own, mean).item(), 1e-9
    )
    assert cross_correlation(own, mean).abs().max() <= 1 + 1e-14


def test_correlation_gradients_and_constant_mean() -> None:
    own, mean = normal(5, 3).requires_grad_(), normal(5, 3, seed=1).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: cross_correlation_loss(x, mean.detach(), 0.5), own)
    assert torch.autograd.gradcheck(cross_correlation, (own, mean))
    assert (
        torch.autograd.grad(cross_correlation_loss(own, mean), mean, allow_unused=True)[0] is None
    )


@pytest.mark.parametrize("value", [0.0, 0.1, 1e20, -7.3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_columns_without_variance_have_no_correlation(value: float, dtype: torch.dtype) -> None:
    own = normal(7, 3).to(dtype)
    own[:, 1] = value
    own.requires_grad_()
    mean = normal(7, 3, seed=1).to(dtype)
    mean[:, 2] = value
    correlation = cross_correlation(own, mean)
    assert not correlation[1].any() and not correlation[:, 2].any() and correlation[0, 0] != 0
    (gradient,) = torch.autograd.grad(cross_correlation_loss(own, mean), own)
    assert torch.isfinite(gradient).all() and not gradient[:, 1].any() and gradient[:, 0].any()


def test_small_batches() -> None:
    one = normal(1, 3).requires_grad_()
    loss = cross_correlation_loss(one, normal(1, 3, seed=1), 0.5)
    assert loss.item() == 3 + 0.5 * 6 and not torch.autograd.grad(loss, one)[0].any()
    two = torch.tensor([[0.0, 5.0], [1.0, 2.0]], dtype=torch.float64)
    np.testing.assert_allclose(cross_correlation(two, two).numpy(), [[1, -1], [-1, 1]], rtol=1e-15)
    assert cross_correlation_loss(two, two).item() == pytest.approx(0.0, abs=1e-15)


def test_similarity_equals_loops_without_the_diagonal() -> None:
    features = normal(5, 3)
    found = instance_similarity(features, 0.5)
    for b in range(5):
        row = [
            features[b] @ features[a] / (features[b].norm() * features[a].norm()) / 0.5
            for a in range(5)
            if a != b
        ]
        np.testing.assert_allclose(found[b].numpy(), torch.stack(row).numpy(), rtol=1e-12)
    assert torch.autograd.gradcheck(
        lambda x: instance_similarity(x, 0.5), features.requires_grad_()
    )


def test_similarity_loss_equals_loops() -> None:
    own, mean = normal(4, 3).requires_grad_(), normal(4, 3, seed=1).requires_grad_()
    expected = 0.0
    for s, m in zip(own.detach().numpy(), mean.detach().numpy(), strict=True):
        p, q = np.exp(m) / np.exp(m).sum(), np.exp(s) / np.exp(s).sum()
        expected += float((p * np.log(p / q)).sum()) / 4
    assert instance_similarity_loss(own, mean).item() == pytest.approx(expected, rel=1e-12)
    assert torch.autograd.gradcheck(lambda x: instance_similarity_loss(x, mean.detach()), own)
    assert (
        torch.autograd.grad(instance_similarity_loss(own, mean), mean, allow_unused=True)[0] is None
    )
    assert instance_similarity_loss(own, own).item() == 0.0


def test_similarity_edges() -> None:
    features = torch.tensor(
        [[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]], dtype=torch.float64, requires_grad=True
    )
    similarity = instance_similarity(features)
    np.testing.assert_allclose(similarity.detach().numpy(), [[0, 0], [0, 50], [0, 50]], rtol=1e-13)
    loss = instance_similarity_loss(similarity, torch.zeros(3, 2, dtype=torch.float64))
    assert loss.item() == pytest.approx(2 / 3 * (25 + math.log((1 + math.exp(-50)) / 2)), rel=1e-12)
    (gradient,) = torch.autograd.grad(loss, features)
    assert torch.isfinite(gradient).all() and not gradient[0].any()
    for batch in (0, 1, 2):
        small = normal(batch, 4).requires_grad_()
        value = instance_similarity_loss(
            instance_similarity(small), instance_similarity(normal(batch, 4, seed=1))
        )
        value.backward()
        assert value.item() == 0.0 and small.grad is not None and not small.grad.any()
    # Saturated rows: the cosine divided by the paper's temperature reaches 50.
    rows = torch.tensor([[50.0, -50.0]] * 3)
    assert instance_similarity_loss(rows, -rows).item() == 100.0


def test_shrunk_correlations_are_those_of_the_unbiased_deviation_divided_by_the_batch() -> None:
    logits, mean = (
        torch.randn(6, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(i))
        for i in (0, 1)
    )
    z, other = ((v - v.mean(0)) / v.std(0) for v in (logits, mean))
    m = z.T @ other / 6
    off = ~torch.eye(3, dtype=torch.bool)
    expected = ((1 - m.diagonal()) ** 2).sum() + 0.0051 * ((1 + m[off]) ** 2).sum()
    torch.testing.assert_close(cross_correlation_loss(logits, mean, shrunk=True), expected)
