import numpy as np
import pytest
import torch

from flray.functional import (
    merge_prototypes,
    prototype_contrastive_loss,
    prototype_loss,
    prototype_scores,
    update_directions,
)
from tests.functional.helpers import POISONS, normal

LABELS = torch.tensor([0, 1, 2, 2, 3])
PRESENT = torch.tensor([True, False, True, True])


def poisoned(prototypes: torch.Tensor, poison: float) -> torch.Tensor:
    return torch.where(PRESENT.unsqueeze(1), prototypes, poison)


@pytest.mark.parametrize("poison", POISONS)
def test_prototype_loss_equals_loops(poison: float) -> None:
    features, prototypes = normal(5, 3).requires_grad_(), normal(4, 3, seed=1)
    expected = np.mean(
        [
            (features[b] - prototypes[y]).square().sum().item()
            for b, y in enumerate(LABELS.tolist())
            if y != 1
        ]
    )
    loss = prototype_loss(features, LABELS, poisoned(prototypes, poison), PRESENT)
    assert loss.item() == pytest.approx(expected, rel=1e-12)
    (gradient,) = torch.autograd.grad(loss, features)
    assert torch.isfinite(gradient).all() and not gradient[1].any()
    per_feature = prototype_loss(
        features, LABELS, poisoned(prototypes, poison), PRESENT, per_feature=True
    )
    assert per_feature.item() == pytest.approx(expected / 3, rel=1e-12)
    assert torch.autograd.gradcheck(
        lambda x: prototype_loss(x, LABELS, prototypes, PRESENT), features
    )


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
    loss = prototype_contrastive_loss(
        features, LABELS, poisoned(prototypes, poison), PRESENT, 0.7, cosine
    )
    assert loss.item() == pytest.approx(np.mean(expected), rel=1e-12)
    (gradient,) = torch.autograd.grad(loss, features)
    assert torch.isfinite(gradient).all() and not gradient[1].any()
    assert torch.autograd.gradcheck(
        lambda x: prototype_contrastive_loss(x, LABELS, prototypes, PRESENT, 0.7, cosine), features
    )


@pytest.mark.parametrize("function", [prototype_loss, prototype_contrastive_loss])
def test_no_counted_sample_is_a_differentiable_zero(function) -> None:  # type: ignore[no-untyped-def]
    features, nothing = (
        normal(2, 3).requires_grad_(),
        torch.full((4, 3), float("nan"), dtype=torch.float64),
    )
    for labels, present in (
        (torch.tensor([1, 1]), PRESENT),
        (torch.tensor([0, 1]), torch.zeros(4).bool()),
    ):
        prototypes = torch.where(present.unsqueeze(1), torch.ones(4, 3).double(), nothing)
        loss = function(features, labels, prototypes, present)
        assert loss.item() == 0.0 and not torch.autograd.grad(loss, features)[0].any()


def test_one_known_class_has_no_contrast() -> None:
    loss = prototype_contrastive_loss(
        normal(3, 2), torch.tensor([1, 1, 0]), normal(2, 2, seed=1), torch.tensor([False, True])
    )
    assert loss.item() == 0.0


def test_nearest_prototype_is_never_an_absent_class() -> None:
    prototypes = torch.tensor([[0.0, 0.0], [float("nan"), 1.0], [3.0, 4.0]])
    scores = prototype_scores(
        torch.tensor([[0.0, 1.0], [3.0, 3.0]]), prototypes, torch.tensor([True, False, True])
    )
    assert scores.argmax(1).tolist() == [0, 2] and scores[:, 1].tolist() == [float("-inf")] * 2
    np.testing.assert_allclose(scores[:, [0, 2]], [[-1, -(18**0.5)], [-(18**0.5), -1]], rtol=1e-6)


@pytest.mark.parametrize("poison", POISONS)
def test_merged_prototypes_equal_loops(poison: float) -> None:
    means = normal(3, 4, 2)
    counts = torch.tensor([[2, 0, 1, 0], [6, 0, 0, 0], [1, 0, 3, 0]])
    sent = torch.where((counts > 0).unsqueeze(2), means, poison)
    uniform, present = merge_prototypes(sent, counts)
    assert present.tolist() == [True, False, True, False]
    np.testing.assert_allclose(uniform[0], means[:, 0].mean(0), rtol=1e-13)
    np.testing.assert_allclose(uniform[2], (means[0, 2] + means[2, 2]) / 2, rtol=1e-13)
    weighted, _ = merge_prototypes(sent, counts, "samples")
    np.testing.assert_allclose(
        weighted[0], (2 * means[0, 0] + 6 * means[1, 0] + means[2, 0]) / 9, rtol=1e-13
    )
    assert not uniform[[1, 3]].any() and not weighted[[1, 3]].any()
    known = torch.tensor([True, True, False, False])
    old = torch.where(known.unsqueeze(1), torch.full((4, 2), 7.0).double(), poison)
    kept, held = merge_prototypes(sent, counts, previous=(old, known))
    assert (
        held.tolist() == [True, True, True, False]
        and kept[1].tolist() == [7.0, 7.0]
        and not kept[3].any()
    )
    assert torch.equal(kept[0], uniform[0])


def test_one_holder_gives_its_own_bits() -> None:
    means = normal(1, 2, 3).float()
    assert torch.equal(merge_prototypes(means, torch.tensor([[3, 5]]))[0], means[0])


def test_direction_update_by_hand() -> None:
    weight = torch.tensor([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]], dtype=torch.float64)
    directions = torch.tensor(
        [[[0.0, 1.0], [9.0, 9.0], [1.0, 0.0]], [[1.0, 0.0], [9.0, 9.0], [-1.0, 0.0]]]
    ).double()
    directions[:, 1] = float("nan")
    moved = update_directions(weight, directions, torch.tensor([[3, 0, 2], [1, 0, 2]]), 0.9)
    row = 0.9 * np.array([1.0, 0.0]) + 0.1 * np.array([1.0, 3.0]) / 10**0.5
    np.testing.assert_allclose(moved[0], row / np.linalg.norm(row), rtol=1e-13)
    # Nobody holds class 1; the directions of class 2 cancel.
    assert torch.equal(moved[1:], weight[1:])
    np.testing.assert_allclose(moved[:2].norm(dim=1), np.ones(2), rtol=1e-14)
    assert torch.equal(update_directions(weight, directions, torch.ones(2, 3).long(), 1.0), weight)
