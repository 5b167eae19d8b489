"""Prototypes of classes: losses, means and episodes, against loops."""

import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from pytest import approx
from torch.autograd import grad, gradcheck

import flray.functional as fn
from tests.functional.helpers import POISONS, flat, near, normal

LABELS = torch.tensor([0, 1, 2, 2, 3])
PRESENT = torch.tensor([True, False, True, True])


def poisoned(prototypes: torch.Tensor, poison: float) -> torch.Tensor:
    return torch.where(PRESENT.unsqueeze(1), prototypes, poison)


@pytest.mark.parametrize("poison", POISONS)
def test_prototype_loss_equals_loops(poison: float) -> None:
    features, prototypes = normal(5, 3).requires_grad_(), normal(4, 3, seed=1)
    squares = (features - prototypes[LABELS]).square().sum(1)
    expected = np.mean([squares[b].item() for b in (0, 2, 3, 4)])
    loss = fn.prototype_loss(features, LABELS, poisoned(prototypes, poison), PRESENT)
    near(loss, expected)
    (gradient,) = grad(loss, features)
    assert torch.isfinite(gradient).all() and not gradient[1].any()
    per_feature = fn.prototype_loss(
        features, LABELS, poisoned(prototypes, poison), PRESENT, per_feature=True
    )
    near(per_feature, expected / 3)
    assert gradcheck(lambda x: fn.prototype_loss(x, LABELS, prototypes, PRESENT), features)


@pytest.mark.parametrize("poison", POISONS)
@pytest.mark.parametrize("cosine", [False, True])
def test_prototype_contrast_equals_loops(poison: float, cosine: bool) -> None:
    features, prototypes, expected = normal(5, 3).requires_grad_(), normal(4, 3, seed=1), []
    directions = (prototypes / prototypes.norm(dim=1, keepdim=True)).numpy()
    for r, y in zip(features.detach().numpy(), LABELS.tolist(), strict=True):
        if y != 1:
            r = r / np.linalg.norm(r) if cosine else r
            shares = {c: np.exp(r @ directions[c] / 0.7) for c in (0, 2, 3)}
            expected.append(-np.log(shares[y] / sum(shares.values())))
    loss = fn.prototype_contrastive_loss(
        features, LABELS, poisoned(prototypes, poison), PRESENT, 0.7, cosine
    )
    near(loss, np.mean(expected))
    (gradient,) = grad(loss, features)
    assert torch.isfinite(gradient).all() and not gradient[1].any()
    assert gradcheck(
        lambda x: fn.prototype_contrastive_loss(x, LABELS, prototypes, PRESENT, 0.7, cosine),
        features,
    )


@pytest.mark.parametrize("function", [fn.prototype_loss, fn.prototype_contrastive_loss])
def test_no_counted_sample_is_a_differentiable_zero(function) -> None:  # type: ignore[no-untyped-def]
    features = normal(2, 3).requires_grad_()
    nothing = torch.full((4, 3), float("nan"), dtype=torch.float64)
    for labels, present in (
        (torch.tensor([1, 1]), PRESENT),
        (torch.tensor([0, 1]), torch.zeros(4).bool()),
    ):
        prototypes = torch.where(present.unsqueeze(1), torch.ones(4, 3).double(), nothing)
        loss = function(features, labels, prototypes, present)
        flat(loss, features)


def test_one_known_class_has_no_contrast() -> None:
    loss = fn.prototype_contrastive_loss(
        normal(3, 2), torch.tensor([1, 1, 0]), normal(2, 2, seed=1), torch.tensor([False, True])
    )
    assert loss.item() == 0.0


def test_nearest_prototype_is_never_an_absent_class() -> None:
    prototypes = torch.tensor([[0.0, 0.0], [float("nan"), 1.0], [3.0, 4.0]])
    scores = fn.prototype_scores(
        torch.tensor([[0.0, 1.0], [3.0, 3.0]]), prototypes, torch.tensor([True, False, True])
    )
    assert scores.argmax(1).tolist() == [0, 2] and scores[:, 1].tolist() == [float("-inf")] * 2
    assert_allclose(scores[:, [0, 2]], [[-1, -(18**0.5)], [-(18**0.5), -1]], rtol=1e-6)


@pytest.mark.parametrize("poison", POISONS)
def test_merged_prototypes_equal_loops(poison: float) -> None:
    means = normal(3, 4, 2)
    counts = torch.tensor([[2, 0, 1, 0], [6, 0, 0, 0], [1, 0, 3, 0]])
    sent = torch.where((counts > 0).unsqueeze(2), means, poison)
    uniform, present = fn.merge_prototypes(sent, counts)
    assert present.tolist() == [True, False, True, False]
    assert_allclose(uniform[0], means[:, 0].mean(0), rtol=1e-13)
    assert_allclose(uniform[2], (means[0, 2] + means[2, 2]) / 2, rtol=1e-13)
    weighted, _ = fn.merge_prototypes(sent, counts, "samples")
    assert_allclose(weighted[0], (2 * means[0, 0] + 6 * means[1, 0] + means[2, 0]) / 9, rtol=1e-13)
    assert not uniform[[1, 3]].any() and not weighted[[1, 3]].any()
    known = torch.tensor([True, True, False, False])
    old = torch.where(known.unsqueeze(1), torch.full((4, 2), 7.0).double(), poison)
    kept, held = fn.merge_prototypes(sent, counts, previous=(old, known))
    assert held.tolist() == [True, True, True, False]
    assert kept[1].tolist() == [7.0, 7.0] and not kept[3].any()
    assert torch.equal(kept[0], uniform[0])


def test_one_holder_gives_its_own_bits() -> None:
    means = normal(1, 2, 3).float()
    assert torch.equal(fn.merge_prototypes(means, torch.tensor([[3, 5]]))[0], means[0])


def test_direction_update_by_hand() -> None:
    weight = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]], dtype=torch.float64)
    directions = torch.tensor(
        [[[0.0, 1.0], [9.0, 9.0], [1.0, 0.0]], [[1.0, 0.0], [9.0, 9.0], [-1.0, 0.0]]]
    ).double()
    directions[:, 1] = float("nan")
    moved = fn.update_directions(weight, directions, torch.tensor([[3, 0, 2], [1, 0, 2]]), 0.9)
    row = 0.9 * np.array([1.0, 0.0]) + 0.1 * np.array([1.0, 3.0]) / 10**0.5
    assert_allclose(moved[0], row / np.linalg.norm(row), rtol=1e-13)
    # Nobody holds class 1; the directions of class 2 cancel.
    assert torch.equal(moved[1:], weight[1:])
    assert_allclose(moved[:2].norm(dim=1), np.ones(2), rtol=1e-14)
    assert torch.equal(
        fn.update_directions(weight, directions, torch.ones(2, 3).long(), 1.0), weight
    )


KNOWN = torch.tensor([True, False, True])


@pytest.mark.parametrize("poison", POISONS)
def test_hyper_prediction_equals_loops(poison: float) -> None:
    logits, targets = normal(3, 3), torch.softmax(normal(3, 3, seed=1), 1)
    expected = 0.0
    for c in (0, 2):
        e = np.exp(logits[c].numpy() / 0.5)
        expected += float(np.linalg.norm(e / e.sum() - targets[c].numpy())) / 3
    spoilt = torch.where(KNOWN.unsqueeze(1), logits, poison).requires_grad_()
    loss = fn.hyper_prediction_loss(spoilt, torch.where(KNOWN.unsqueeze(1), targets, poison), KNOWN)
    near(loss, expected)
    (gradient,) = grad(loss, spoilt)
    assert torch.isfinite(gradient).all() and not gradient[1].any() and gradient[0].any()
    assert gradcheck(lambda x: fn.hyper_prediction_loss(x, targets, KNOWN), logits.requires_grad_())


@pytest.mark.parametrize("poison", POISONS)
def test_hyper_feature_equals_loops(poison: float) -> None:
    features = normal(4, 2).requires_grad_()
    centres = normal(3, 2, seed=1)
    labels = torch.tensor([0, 1, 2, 2])
    expected = np.mean([(features[b] - centres[labels[b]]).norm().item() for b in (0, 2, 3)])
    loss = fn.hyper_feature_loss(
        features, labels, torch.where(KNOWN.unsqueeze(1), centres, poison), KNOWN
    )
    near(loss, expected)
    (gradient,) = grad(loss, features)
    assert torch.isfinite(gradient).all() and not gradient[1].any()


def test_exact_hits_and_absent_classes_have_zero_gradient() -> None:
    features = torch.ones(2, 2, requires_grad=True)
    for present in (torch.tensor([True, True]), torch.tensor([False, False])):
        loss = fn.hyper_feature_loss(features, torch.tensor([0, 1]), torch.ones(2, 2), present)
        flat(loss, features)
    logits = torch.zeros(2, 2, requires_grad=True)
    loss = fn.hyper_prediction_loss(logits, torch.full((2, 2), 0.5), torch.tensor([True, True]))
    flat(loss, logits)


def test_clipping() -> None:
    rows = torch.tensor([[3.0, 4.0], [0.3, 0.4], [0.0, 0.0]], dtype=torch.float64)
    assert_allclose(fn.clip_norms(rows, 2.5), [[1.5, 2.0], [0.3, 0.4], [0.0, 0.0]], rtol=1e-15)


def test_noise_has_the_stated_scale_and_is_reproducible() -> None:
    means, counts = torch.zeros(3, 20_000, dtype=torch.float64), torch.tensor([10, 20, 0])
    noisy = fn.noisy_class_means(means, counts, 1.5, 7.0, torch.Generator().manual_seed(1))
    deviations = noisy.std(1)
    near(deviations[0], 7 * 3 / 10, rel=0.03)
    assert (deviations[0] / deviations[1]).item() == approx(2.0, rel=0.03) and not noisy[2].any()
    assert torch.equal(
        noisy, fn.noisy_class_means(means, counts, 1.5, 7.0, torch.Generator().manual_seed(1))
    )
    exact = normal(3, 2)
    same = fn.noisy_class_means(
        exact, torch.tensor([1, 2, 3]), 1.0, 0.0, torch.Generator().manual_seed(1)
    )
    assert torch.equal(same, exact)


def test_logits_are_negative_squared_distances() -> None:
    queries = torch.tensor([[0.0, 0.0], [3.0, 4.0]])
    prototypes = torch.tensor([[0.0, 1.0], [3.0, 0.0]])
    assert fn.prototypical_logits(queries, prototypes).tolist() == [[-1.0, -9.0], [-18.0, -16.0]]
    stacked = fn.prototypical_logits(queries.expand(5, 2, 2), prototypes.expand(5, 2, 2))
    assert stacked.shape == (5, 2, 2)


def test_loss_by_hand() -> None:
    """Prototypes 1 (class 7: samples 0 and 2) and 5 (class 3), one query of each class; order is as it comes."""
    embeddings = torch.tensor([[0.0], [4.0], [2.0], [6.0], [2.5], [5.5]], dtype=torch.float64)
    labels = torch.tensor([7, 3, 7, 3, 7, 3])
    first, second = (math.log(1 + math.exp(a - b)) for a, b in ((1.5**2, 2.5**2), (0.5**2, 4.5**2)))
    near(fn.prototypical_loss(embeddings, labels, 2), (first + second) / 2, abs=1e-14)


def test_support_and_queries_both_learn() -> None:
    embeddings = torch.randn(8, 3, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    fn.prototypical_loss(embeddings, labels, 2).backward()
    assert embeddings.grad is not None and bool((embeddings.grad.abs().sum(1) > 1e-6).all())


def test_without_queries_there_is_nothing_to_learn() -> None:
    embeddings = torch.randn(4, 3, requires_grad=True)
    loss = fn.prototypical_loss(embeddings, torch.tensor([0, 0, 1, 1]), 2)
    loss.backward()
    assert loss.item() == 0 and embeddings.grad is not None and not embeddings.grad.any()
