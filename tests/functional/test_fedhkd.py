import numpy as np
import pytest
import torch

from flray.functional import (
    clip_norms,
    hyper_feature_loss,
    hyper_prediction_loss,
    noisy_class_means,
)
from tests.functional.helpers import POISONS, normal

PRESENT = torch.tensor([True, False, True])


@pytest.mark.parametrize("poison", POISONS)
def test_hyper_prediction_equals_loops(poison: float) -> None:
    logits, targets = normal(3, 3), torch.softmax(normal(3, 3, seed=1), 1)
    expected = 0.0
    for c in (0, 2):
        e = np.exp(logits[c].numpy() / 0.5)
        expected += float(np.linalg.norm(e / e.sum() - targets[c].numpy())) / 3
    spoilt = torch.where(PRESENT.unsqueeze(1), logits, poison).requires_grad_()
    loss = hyper_prediction_loss(
        spoilt, torch.where(PRESENT.unsqueeze(1), targets, poison), PRESENT
    )
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    (gradient,) = torch.autograd.grad(loss, spoilt)
    assert torch.isfinite(gradient).all() and not gradient[1].any() and gradient[0].any()
    assert torch.autograd.gradcheck(
        lambda x: hyper_prediction_loss(x, targets, PRESENT), logits.requires_grad_()
    )


@pytest.mark.parametrize("poison", POISONS)
def test_hyper_feature_equals_loops(poison: float) -> None:
    features, centres, labels = (
        normal(4, 2).requires_grad_(),
        normal(3, 2, seed=1),
        torch.tensor([0, 1, 2, 2]),
    )
    expected = np.mean([(features[b] - centres[labels[b]]).norm().item() for b in (0, 2, 3)])
    loss = hyper_feature_loss(
        features, labels, torch.where(PRESENT.unsqueeze(1), centres, poison), PRESENT
    )
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    (gradient,) = torch.autograd.grad(loss, features)
    assert torch.isfinite(gradient).all() and not gradient[1].any()


def test_exact_hits_and_absent_classes_have_zero_gradient() -> None:
    features = torch.ones(2, 2, requires_grad=True)
    for present in (torch.tensor([True, True]), torch.tensor([False, False])):
        loss = hyper_feature_loss(features, torch.tensor([0, 1]), torch.ones(2, 2), present)
        assert loss.item() == 0.0 and not torch.autograd.grad(loss, features)[0].any()
    logits = torch.zeros(2, 2, requires_grad=True)
    loss = hyper_prediction_loss(logits, torch.full((2, 2), 0.5), torch.tensor([True, True]))
    assert loss.item() == 0.0 and not torch.autograd.grad(loss, logits)[0].any()


def test_clipping() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]], dtype=torch.float64)
    np.testing.assert_allclose(
        clip_norms(rows, 2.5), [[1.5, 2.0], [0.3, 0.4], [0.0, 0.0]], rtol=1e-15
    )


def test_noise_has_the_stated_scale_and_is_reproducible() -> None:
    means, counts = torch.zeros(3, 20_000, dtype=torch.float64), torch.tensor([10, 20, 0])
    noisy = noisy_class_means(means, counts, 1.5, 7.0, torch.Generator().manual_seed(1))
    deviations = noisy.std(1)
    assert deviations[0].item() == pytest.approx(7 * 3 / 10, rel=0.03)
    assert (deviations[0] / deviations[1]).item() == pytest.approx(2.0, rel=0.03) and not noisy[
        2
    ].any()
    assert torch.equal(
        noisy, noisy_class_means(means, counts, 1.5, 7.0, torch.Generator().manual_seed(1))
    )
    exact = normal(3, 2)
    same = noisy_class_means(
        exact, torch.tensor([1, 2, 3]), 1.0, 0.0, torch.Generator().manual_seed(1)
    )
    assert torch.equal(same, exact)
