"""Classifiers' losses, the Dice loss and what they are computed with."""

import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.testing import assert_allclose
from pytest import approx
from torch.autograd import grad, gradcheck
from torch.testing import assert_close

import flray.functional as fn
from flray.functional.numerics import (
    batch_mean,
    cross_entropy,
    keep_rows,
    masked_cross_entropy,
    masked_mean,
    unit,
)
from tests.functional.helpers import near, normal

LABELS = torch.tensor([0, 1, 2, 0])


def test_balanced_softmax_equals_loops() -> None:
    logits, counts = normal(4, 3).requires_grad_(), torch.tensor([6, 3, 1])
    expected = 0.0
    for z, y in zip(logits.detach().numpy(), LABELS.tolist(), strict=True):
        weighted = np.exp(z) * np.array([0.6, 0.3, 0.1])
        expected -= float(np.log(weighted[y] / weighted.sum())) / 4
    near(fn.balanced_softmax_loss(logits, LABELS, counts), expected)
    assert gradcheck(lambda x: fn.balanced_softmax_loss(x, LABELS, counts), logits)


def test_balanced_softmax_neutral_and_absent_classes() -> None:
    logits = normal(4, 3).requires_grad_()
    (plain,) = grad(F.cross_entropy(logits, LABELS), logits)
    for counts in (torch.tensor([7, 7, 7]), torch.tensor([0, 0, 0])):
        (uniform,) = grad(fn.balanced_softmax_loss(logits, LABELS, counts), logits)
        assert_close(uniform, plain, rtol=1e-12, atol=1e-15)
    loss = fn.balanced_softmax_loss(logits, LABELS, torch.tensor([5, 0, 5]))
    assert torch.isfinite(loss) and torch.isfinite(grad(loss, logits)[0]).all()


def test_restricted_scale_binary_and_graded() -> None:
    counts = torch.tensor([10, 0, 5])
    assert fn.restricted_scale(counts, 0.5).tolist() == [1.0, 0.5, 1.0]
    assert fn.restricted_scale(counts, 0.2, graded=True).tolist() == approx([1.0, 0.2, 0.6])
    assert fn.restricted_scale(counts, 1.0, graded=True).tolist() == [1.0, 1.0, 1.0]
    assert fn.restricted_scale(torch.zeros(2), 0.3, graded=True).tolist() == approx([0.3, 0.3])


def test_restricted_logits_scale_the_weights_not_the_bias() -> None:
    features, weight, bias = normal(4, 5), normal(3, 5, seed=1), normal(3, seed=2)
    scale = torch.tensor([1.0, 0.5, 0.0])
    found = fn.restricted_softmax_logits(features, weight, bias, scale)
    assert_allclose(found, (features @ weight.T).numpy() * scale.numpy() + bias.numpy(), rtol=1e-12)
    without = fn.restricted_softmax_logits(features, weight, None, scale)
    assert not without[:, 2].any()


def test_restricted_logits_at_one_are_the_linear_layer_bit_for_bit() -> None:
    shapes = ((4, 5), (3, 5), (3,))
    features, weight, bias = (normal(*s, seed=i).float() for i, s in enumerate(shapes))
    weight.requires_grad_()
    plain = F.linear(features, weight, bias)
    restricted = fn.restricted_softmax_logits(features, weight, bias, torch.ones(3))
    gradients = [grad(F.cross_entropy(logits, LABELS), weight)[0] for logits in (plain, restricted)]
    assert torch.equal(plain, restricted) and torch.equal(gradients[0], gradients[1])


def test_scale_zero_gives_missing_classes_no_gradient() -> None:
    weight = normal(3, 5).requires_grad_()
    scale = fn.restricted_scale(torch.tensor([3, 0, 1]), 0.0)
    logits = fn.restricted_softmax_logits(normal(4, 5, seed=1), weight, None, scale)
    (gradient,) = grad(F.cross_entropy(logits, torch.tensor([0, 2, 2, 0])), weight)
    assert not gradient[1].any() and gradient[0].any()


def test_cosine_logits() -> None:
    features = torch.tensor([[3.0, 4.0], [0.0, 0.0]], dtype=torch.float64, requires_grad=True)
    weight = torch.tensor([[1.0, 0.0], [0.0, 1.0], [-0.6, -0.8]], dtype=torch.float64)
    logits = fn.cosine_logits(features, weight, 10.0)
    assert_allclose(logits.detach().numpy(), [[6, 8, -10], [0, 0, 0]], atol=1e-14)
    (gradient,) = grad(logits.sum(), features)
    assert torch.isfinite(gradient).all() and not gradient[1].any()
    assert gradcheck(
        lambda x, s: fn.cosine_logits(x, weight, s),
        (normal(3, 2).requires_grad_(), torch.tensor(2.0).double().requires_grad_()),
    )


def test_closed_form() -> None:
    logits = torch.tensor([[[[0.0, 0.0]]]], dtype=torch.float64)  # p = 1/2 twice
    masks = torch.tensor([[[[1, 0]]]], dtype=torch.uint8)
    near(fn.dice_loss(logits, masks, smooth=0.0), 1 - 1 / 1.5, abs=1e-15)
    perfect = torch.tensor([[[[40.0, -40.0]]]], dtype=torch.float64)
    near(fn.dice_loss(perfect, masks), 0, abs=1e-12)
    near(fn.dice_loss(-40 * torch.ones(1, 1, 2, 2), torch.zeros(1, 1, 2, 2)), 0, abs=1e-6)


def test_a_mean_over_samples_and_structures() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(3, 2, 5, 4, generator=generator, dtype=torch.float64)
    masks = torch.randint(2, (3, 2, 5, 4), generator=generator)
    places = [(slice(i, i + 1), slice(k, k + 1)) for i in range(3) for k in range(2)]
    single = torch.stack([fn.dice_loss(logits[at], masks[at]) for at in places]).reshape(3, 2)
    assert_close(fn.dice_loss(logits, masks), single.mean(), rtol=1e-12, atol=0)
    assert_close(fn.dice_loss(logits, masks, reduction="none"), single.mean(1), rtol=1e-12, atol=0)


def test_gradient() -> None:
    logits = torch.randn(2, 1, 3, 3, dtype=torch.float64, requires_grad=True)
    masks = torch.randint(2, (2, 1, 3, 3))
    assert gradcheck(lambda z: fn.dice_loss(z, masks), logits)


def test_equals_monai() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from monai.losses import DiceLoss

        generator = torch.Generator().manual_seed(1)
        logits = torch.randn(4, 2, 8, 8, generator=generator, dtype=torch.float64)
        masks = (torch.rand(4, 2, 8, 8, generator=generator) < 0.3).double()
        masks[0, 1] = 0
        expected = DiceLoss(sigmoid=True, squared_pred=True)(logits, masks)
    assert_close(fn.dice_loss(logits, masks), expected, rtol=1e-9, atol=0)


@pytest.mark.parametrize("scale", [1.0, 1e-200, 1e200, 1e-320])
def test_unit_vectors_of_any_size(scale: float) -> None:
    directions = unit(torch.tensor([[3.0, -4.0], [0.0, 0.0]], dtype=torch.float64) * scale)
    assert_allclose(directions, [[0.6, -0.8], [0.0, 0.0]], rtol=1e-3 if scale < 1e-300 else 1e-14)


def test_unit_gradient_along_any_dimension() -> None:
    vectors = normal(4, 3).requires_grad_()
    for dim in (0, 1, -1):
        assert gradcheck(lambda x, d=dim: unit(x, d), vectors)
    zero = torch.zeros(2, 3, requires_grad=True)
    (gradient,) = grad(unit(zero).sum(), zero)
    assert not gradient.any()
    # A diverged model must not look like a zero vector.
    assert unit(torch.tensor([[float("nan"), 1.0]])).isnan().all()


def test_means_of_nothing_are_zero_with_a_gradient() -> None:
    values = torch.zeros(0, requires_grad=True)
    assert batch_mean(values).item() == 0.0 and batch_mean(values).requires_grad
    spoilt = torch.tensor([float("nan"), 2.0, 4.0, float("inf")], requires_grad=True)
    mean = masked_mean(spoilt, torch.tensor([False, True, True, False]))
    assert mean.item() == 3.0 and grad(mean, spoilt)[0].tolist() == [0.0, 0.5, 0.5, 0.0]
    assert masked_mean(spoilt, torch.zeros(4).bool()).item() == 0.0


def test_rows_that_are_not_kept_leave_no_trace() -> None:
    rows = torch.tensor([[1.0, 2.0], [float("nan"), float("inf")]], requires_grad=True)
    kept = keep_rows(rows, torch.tensor([True, False]))
    assert kept.tolist() == [[1.0, 2.0], [0.0, 0.0]]
    assert grad(kept.square().sum(), rows)[0].tolist() == [[2.0, 4.0], [0.0, 0.0]]


def test_cross_entropies() -> None:
    scores, labels = normal(5, 3).requires_grad_(), torch.tensor([0, 1, 2, 0, 1])
    assert torch.equal(cross_entropy(scores, labels), F.cross_entropy(scores, labels))
    assert cross_entropy(scores[:0], labels[:0]).item() == 0.0
    everything = masked_cross_entropy(scores, labels, torch.ones(3).bool())
    near(everything, F.cross_entropy(scores, labels).item(), rel=1e-14)
    some = masked_cross_entropy(scores, labels, torch.tensor([True, False, True]))
    kept = F.cross_entropy(scores[[0, 2, 3]][:, [0, 2]], torch.tensor([0, 1, 0]))
    near(some, kept.item(), rel=1e-14)
    assert not grad(some, scores)[0][:, 1].any()
