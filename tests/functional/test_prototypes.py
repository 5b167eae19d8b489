"""Prototypes and structural knowledge of classes at their edges; absent entries leave no trace."""

import math
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from pytest import approx
from torch.autograd import grad, gradcheck

import flray.functional as fn
from tests.functional.helpers import F64, POISONS, f64, flat, near, normal

LABELS = torch.tensor([0, 1, 2, 2, 3])
PRESENT = torch.tensor([True, False, True, True])
P = normal(4, 4, seed=1)
FEATURES = normal(5, 4)
COUNTS = torch.tensor([[2, 0, 1, 0], [6, 0, 0, 0], [1, 0, 3, 0]])
HOLDERS, NOW = COUNTS > 0, torch.tensor([True, True, True, False])
BEFORE = PRESENT
Spoil = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def absent(x: torch.Tensor, spoil: Spoil) -> Iterator[torch.Tensor]:
    """Yield values of which some are absent; `spoil` hides what a mask leaves out."""
    prototypes, held = spoil(P, PRESENT), spoil(x[:3, None].expand(3, 4, 4), HOLDERS)
    for name in ABSENT[:4]:
        yield getattr(fn, name)(x, LABELS, prototypes, PRESENT)
    yield fn.hyper_prediction_loss(spoil(x[:4], PRESENT), spoil(P.softmax(1), PRESENT), PRESENT)
    yield fn.knowledge_discrepancy(held, HOLDERS, spoil(P, HOLDERS.any(0)))
    yield fn.merge_prototypes(held, COUNTS, previous=(spoil(P, NOW), NOW))[0]
    yield fn.global_structural_knowledge(held, HOLDERS)[0]
    knowledge = spoil(normal(4, 3), NOW), spoil(normal(4, 3, seed=1), BEFORE)
    two = {"w": x}, {"w": 2 * x}
    yield fn.period_review(*two, *knowledge, present_now=NOW, present_before=BEFORE)["w"]
    peers = spoil(normal(4, 5, 4).softmax(2), PRESENT)
    yield fn.peer_distillation_loss(x, peers, torch.ones(4).double(), 1)


_NAMES = """prototype_loss prototype_contrastive_loss hyper_feature_loss local_contrastive_loss
hyper_prediction_loss knowledge_discrepancy merge_prototypes global_structural_knowledge
period_review peer_distillation_loss"""
ABSENT = _NAMES.split()


@pytest.mark.parametrize("name", ABSENT)
def test_what_is_absent_may_hold_anything(name: str) -> None:
    def found(poison: float) -> list[torch.Tensor]:
        def spoil(values: torch.Tensor, present: torch.Tensor) -> torch.Tensor:
            mask = present.reshape(*present.shape, *[1] * (values.dim() - present.dim()))
            return torch.where(mask, values, poison)

        x = FEATURES.clone().requires_grad_()
        value = dict(zip(ABSENT, absent(x, spoil), strict=True))[name]
        return [value.detach(), *torch.autograd.grad(value.sum(), x)]

    clean = found(0.5)
    assert all(torch.isfinite(one).all() for one in clean) and clean[1].any()
    for poison in POISONS:
        assert all(map(torch.equal, found(poison), clean)), poison


@pytest.mark.parametrize("cosine", [False, True])
def test_prototype_contrast_equals_loops(cosine: bool) -> None:
    features, prototypes, expected = normal(5, 3).requires_grad_(), normal(4, 3, seed=1), []
    directions = (prototypes / prototypes.norm(dim=1, keepdim=True)).numpy()
    for r, y in zip(features.detach().numpy(), LABELS.tolist(), strict=True):
        if y != 1:
            r = r / np.linalg.norm(r) if cosine else r
            shares = {c: np.exp(r @ directions[c] / 0.7) for c in (0, 2, 3)}
            expected.append(-np.log(shares[y] / sum(shares.values())))
    loss = fn.prototype_contrastive_loss(features, LABELS, prototypes, PRESENT, 0.7, cosine)
    near(loss, np.mean(expected))
    (gradient,) = grad(loss, features)
    assert torch.isfinite(gradient).all() and not gradient[1].any()
    given = LABELS, prototypes, PRESENT, 0.7, cosine
    assert gradcheck(lambda x: fn.prototype_contrastive_loss(x, *given), features)


@pytest.mark.parametrize("function", [fn.prototype_loss, fn.prototype_contrastive_loss])
def test_no_counted_sample_is_a_differentiable_zero(function) -> None:  # type: ignore[no-untyped-def]
    features = normal(2, 3).requires_grad_()
    nothing = torch.full((4, 3), float("nan"), dtype=torch.float64)
    nobody = torch.zeros(4).bool()
    for labels, present in ((torch.tensor([1, 1]), PRESENT), (torch.tensor([0, 1]), nobody)):
        prototypes = torch.where(present.unsqueeze(1), torch.ones(4, 3).double(), nothing)
        loss = function(features, labels, prototypes, present)
        flat(loss, features)


def test_nearest_prototype_is_never_an_absent_class() -> None:
    prototypes = torch.tensor([[0.0, 0.0], [float("nan"), 1.0], [3.0, 4.0]])
    points, present = torch.tensor([[0.0, 1.0], [3.0, 3.0]]), torch.tensor([True, False, True])
    scores = fn.prototype_scores(points, prototypes, present)
    assert scores.argmax(1).tolist() == [0, 2] and scores[:, 1].tolist() == [float("-inf")] * 2
    assert_allclose(scores[:, [0, 2]], [[-1, -(18**0.5)], [-(18**0.5), -1]], rtol=1e-6)


def test_one_holder_gives_its_own_bits_and_one_known_class_has_no_contrast() -> None:
    held = normal(1, 2, 3).float()
    assert torch.equal(fn.merge_prototypes(held, torch.tensor([[3, 5]]))[0], held[0])
    labels, present = torch.tensor([1, 1, 0]), torch.tensor([False, True])
    loss = fn.prototype_contrastive_loss(normal(3, 2), labels, normal(2, 2, seed=1), present)
    assert loss.item() == 0.0


def test_direction_update_by_hand() -> None:
    weight = f64([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]])
    directions = f64([[[0.0, 1.0], [9.0, 9.0], [1.0, 0.0]], [[1.0, 0.0], [9.0, 9.0], [-1.0, 0.0]]])
    directions[:, 1] = float("nan")
    moved = fn.update_directions(weight, directions, torch.tensor([[3, 0, 2], [1, 0, 2]]), 0.9)
    row = 0.9 * np.array([1.0, 0.0]) + 0.1 * np.array([1.0, 3.0]) / 10**0.5
    assert_allclose(moved[0], row / np.linalg.norm(row), rtol=1e-13)
    # Nobody holds class 1; the directions of class 2 cancel.
    assert torch.equal(moved[1:], weight[1:])
    assert_allclose(moved[:2].norm(dim=1), np.ones(2), rtol=1e-14)
    still = fn.update_directions(weight, directions, torch.ones(2, 3).long(), 1.0)
    assert torch.equal(still, weight)


def test_exact_hits_and_absent_classes_have_zero_gradient() -> None:
    features = torch.ones(2, 2, requires_grad=True)
    for present in (torch.tensor([True, True]), torch.tensor([False, False])):
        loss = fn.hyper_feature_loss(features, torch.tensor([0, 1]), torch.ones(2, 2), present)
        flat(loss, features)
    logits = torch.zeros(2, 2, requires_grad=True)
    loss = fn.hyper_prediction_loss(logits, torch.full((2, 2), 0.5), torch.tensor([True, True]))
    flat(loss, logits)


def test_the_prototypical_loss_by_hand_and_that_support_and_queries_both_learn() -> None:
    """Prototypes 1 (class 7: samples 0 and 2) and 5 (class 3), one query of each class; order is as it comes."""
    embeddings = f64([[0.0], [4.0], [2.0], [6.0], [2.5], [5.5]])
    labels = torch.tensor([7, 3, 7, 3, 7, 3])
    first, second = (math.log(1 + math.exp(a - b)) for a, b in ((1.5**2, 2.5**2), (0.5**2, 4.5**2)))
    near(fn.prototypical_loss(embeddings, labels, 2), (first + second) / 2, abs=1e-14)
    embeddings = torch.randn(8, 3, dtype=torch.float64, requires_grad=True)
    fn.prototypical_loss(embeddings, torch.arange(8) // 4, 2).backward()
    assert bool((embeddings.grad.abs().sum(1) > 1e-6).all())
    without = torch.randn(4, 3, requires_grad=True)
    flat(fn.prototypical_loss(without, torch.tensor([0, 0, 1, 1]), 2), without)


def test_class_means_do_not_mix_classes_dtypes_or_large_sums() -> None:
    means, _ = fn.class_means(torch.tensor([[float("nan")], [2.0]]), torch.tensor([0, 1]), 2)
    assert means[1].item() == 2.0 and means.dtype == torch.float32
    many = torch.full((20_000, 1), 0.1)
    near(fn.class_means(many, torch.zeros(20_000, dtype=torch.long), 1)[0], 0.1, rel=1e-7)
    empty, counts = fn.class_means(torch.empty(0, 3), torch.empty(0, dtype=torch.long), 2)
    assert not empty.any() and counts.tolist() == [0, 0]


def test_a_gate_saturates_without_nan_and_global_knowledge_by_hand_with_ties() -> None:
    gated, _ = fn.structural_knowledge(f64([[-1e5, 1e5, 0.0]]), torch.tensor([0]), 1)
    assert gated.tolist() == [[0.0, 1e5, 0.0]]
    # Points 0, 1, 2 on a line: the middle one is equally near to both and takes the first client.
    knowledge = f64([[[0.0]], [[1.0]], [[2.0]]])
    merged, _ = fn.global_structural_knowledge(knowledge, torch.ones(3, 1).bool())
    near(merged, (0.5 + 0.5 + 1.5) / 3, rel=1e-15)
    single, held = fn.global_structural_knowledge(knowledge[:1], torch.ones(1, 1).bool(), 3)
    assert single.item() == 0.0 and held.item()


@pytest.mark.parametrize(
    "labels, present", [([1, 1], [True, False, True]), ([0, 1], [False] * 3), ([], [True] * 3)]
)
def test_local_contrastive_without_counted_samples_is_a_zero(labels: list, present: list) -> None:
    logits, known = normal(len(labels), 3).requires_grad_(), torch.tensor(present)
    prototypes = torch.full((3, 3), float("nan"), dtype=F64)
    prototypes[known] = 1.0
    classes = torch.tensor(labels, dtype=torch.long)
    flat(fn.local_contrastive_loss(logits, classes, prototypes, known), logits)


def test_local_contrastive_zero_vectors_and_exact_hits_are_finite() -> None:
    prototypes = f64([[1.0, 0.0], [0.0, 0.0]])
    logits = f64([[0.0, 0.0]], requires_grad=True)
    known = torch.tensor([0]), prototypes, torch.ones(2).bool()
    loss = fn.local_contrastive_loss(logits, *known)
    loss.backward()
    near(loss, math.log(2))
    assert logits.grad.tolist() == [[0.0, 0.0]]
    hit = fn.local_contrastive_loss(prototypes[:1], *known, 1.0)
    near(hit, math.log(1 + math.exp(-1)))
    given = torch.tensor([0, 1, 0]), normal(2, 2, seed=3), torch.ones(2).bool()
    both = (normal(3, 2) * scale for scale in (1e-200, 1))
    tiny, same = (fn.local_contrastive_loss(logits, *given, 0.3, "none") for logits in both)
    near(tiny, same.item())


def test_discrepancy_weights_saturate_to_uniform_and_survive_underflow() -> None:
    def weights(sizes: torch.Tensor, distances: torch.Tensor) -> list[float]:
        return fn.discrepancy_weights(sizes, distances).tolist()

    assert weights(torch.tensor([4000, 2000, 100]), f64([3.0, 1.0, 9.0])) == [1 / 3] * 3
    # Arguments near -1250 and -5000: both sigmoids underflow, the ratio is exp of their difference.
    assert weights(f64([0.0] * 3), f64([5e3, 5e3, 1e4])) == [0.5, 0.5, 0.0]
    gap = (2001.0**2 - 2000.0**2) / 4001.0
    ratio = approx(math.exp(-gap) / (1 + math.exp(-gap)), rel=1e-9)
    assert weights(f64([0.0] * 2), f64([2000.0, 2001.0]))[1] == ratio
    assert weights(torch.tensor([1, 1]), f64([1e308, 1e308])) == [0.5, 0.5]
    assert weights(torch.tensor([5]), torch.tensor([2.0])) == [1.0]
    for size in (7, 0):
        assert weights(torch.tensor([size] * 2), torch.zeros(2)) == [0.5, 0.5]
    assert weights(torch.full((5,), 3), f64([0.7] * 5)) == [0.2] * 5


def test_period_review_returns_current_where_rho_is_undefined() -> None:
    none, eye = torch.zeros(2).bool(), torch.eye(2)
    now, before = ({"w": torch.tensor([0.1, 3.0]) + more} for more in (0, 1))
    # 0.1 is not exact in binary: its computed variance must still be zero.
    flat = torch.full((2, 3), 0.1)
    assert fn.variance_change(torch.randn(2, 3), flat) is None
    assert torch.equal(fn.period_review(now, before, torch.randn(2, 3), flat)["w"], now["w"])
    found = fn.period_review(now, before, eye, eye, present_now=none)
    assert torch.equal(found["w"], now["w"])
    assert fn.variance_change(torch.zeros(2, 3), torch.eye(2, 3)) == -1.0


def test_variances_of_the_classes_of_both_rounds_or_of_each_rounds_own() -> None:
    now = f64([[0.0, 2.0], [0.0, 4.0], [0.0, 6.0]])
    before = f64([[0.0, 4.0], [1.0, 1.0], [0.0, 2.0]])
    here, earlier = torch.tensor([True, True, False]), torch.tensor([True, False, True])
    # variances 1, 4, 9 now and 4, 0, 1 before
    rho = fn.variance_change
    assert rho(now, before, here, earlier) == approx((1 - 4) / 4)
    assert rho(now, before, here, earlier, classes="each") == approx((5 - 5) / 5)
    assert rho(now, before, classes="each") == rho(now, before) == approx((14 - 5) / 5)
    nobody = torch.zeros(3).bool()
    assert rho(now, before, here, nobody, classes="each") is None
