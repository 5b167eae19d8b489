import numpy as np
import pytest
import torch
import torch.nn.functional as F

from flray.functional import (
    balanced_softmax_loss,
    cosine_logits,
    restricted_scale,
    restricted_softmax_logits,
)
from tests.functional.helpers import normal

LABELS = torch.tensor([0, 1, 2, 0])


def test_balanced_softmax_equals_loops() -> None:
    logits, counts = normal(4, 3).requires_grad_(), torch.tensor([6, 3, 1])
    expected = 0.0
    for z, y in zip(logits.detach().numpy(), LABELS.tolist(), strict=True):
        weighted = np.exp(z) * np.array([0.6, 0.3, 0.1])
        expected -= float(np.log(weighted[y] / weighted.sum())) / 4
    assert balanced_softmax_loss(logits, LABELS, counts).item() == pytest.approx(
        expected, rel=1e-12
    )
    assert torch.autograd.gradcheck(lambda x: balanced_softmax_loss(x, LABELS, counts), logits)


def test_balanced_softmax_neutral_and_absent_classes() -> None:
    logits = normal(4, 3).requires_grad_()
    (plain,) = torch.autograd.grad(F.cross_entropy(logits, LABELS), logits)
    for counts in (torch.tensor([7, 7, 7]), torch.tensor([0, 0, 0])):
        (uniform,) = torch.autograd.grad(balanced_softmax_loss(logits, LABELS, counts), logits)
        torch.testing.assert_close(uniform, plain, rtol=1e-12, atol=1e-15)
    loss = balanced_softmax_loss(logits, LABELS, torch.tensor([5, 0, 5]))
    assert torch.isfinite(loss) and torch.isfinite(torch.autograd.grad(loss, logits)[0]).all()


def test_restricted_scale_binary_and_graded() -> None:
    counts = torch.tensor([10, 0, 5])
    assert restricted_scale(counts, 0.5).tolist() == [1.0, 0.5, 1.0]
    assert restricted_scale(counts, 0.2, graded=True).tolist() == pytest.approx([1.0, 0.2, 0.6])
    assert restricted_scale(counts, 1.0, graded=True).tolist() == [1.0, 1.0, 1.0]
    assert restricted_scale(torch.zeros(2), 0.3, graded=True).tolist() == pytest.approx([0.3, 0.3])


def test_restricted_logits_scale_the_weights_not_the_bias() -> None:
    features, weight, bias = normal(4, 5), normal(3, 5, seed=1), normal(3, seed=2)
    scale = torch.tensor([1.0, 0.5, 0.0])
    found = restricted_softmax_logits(features, weight, bias, scale)
    np.testing.assert_allclose(
        found, (features @ weight.T).numpy() * scale.numpy() + bias.numpy(), rtol=1e-12
    )
    without = restricted_softmax_logits(features, weight, None, scale)
    assert not without[:, 2].any()


def test_restricted_logits_at_one_are_the_linear_layer_bit_for_bit() -> None:
    shapes = ((4, 5), (3, 5), (3,))
    features, weight, bias = (normal(*s, seed=i).float() for i, s in enumerate(shapes))
    weight.requires_grad_()
    plain = F.linear(features, weight, bias)
    restricted = restricted_softmax_logits(features, weight, bias, torch.ones(3))
    gradients = [
        torch.autograd.grad(F.cross_entropy(logits, LABELS), weight)[0]
        for logits in (plain, restricted)
    ]
    assert torch.equal(plain, restricted) and torch.equal(gradients[0], gradients[1])


def test_scale_zero_gives_missing_classes_no_gradient() -> None:
    weight = normal(3, 5).requires_grad_()
    scale = restricted_scale(torch.tensor([3, 0, 1]), 0.0)
    logits = restricted_softmax_logits(normal(4, 5, seed=1), weight, None, scale)
    (gradient,) = torch.autograd.grad(F.cross_entropy(logits, torch.tensor([0, 2, 2, 0])), weight)
    assert not gradient[1].any() and gradient[0].any()


def test_cosine_logits() -> None:
    features = torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    weight = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-0.6, -0.8]], dtype=torch.float64)
    logits = cosine_logits(features, weight, 10.0)
    np.testing.assert_allclose(logits.detach().numpy(), [[6, 8, -10], [0, 0, 0]], atol=1e-14)
    (gradient,) = torch.autograd.grad(logits.sum(), features)
    assert torch.isfinite(gradient).all() and not gradient[1].any()
    assert torch.autograd.gradcheck(
        lambda x, s: cosine_logits(x, weight, s),
        (normal(3, 2).requires_grad_(), torch.tensor(2.0).double().requires_grad_()),
    )
