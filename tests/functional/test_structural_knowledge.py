"""Structural knowledge: what is sent, merged, learnt from and reviewed, against loops."""

import math

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from pytest import approx
from torch.autograd import grad, gradcheck
from torch.testing import assert_close

import flray.functional as fn
from tests.functional.helpers import F64, POISONS, near, normal


def test_class_means_by_hand() -> None:
    outputs = torch.tensor([[1.0, 2.0], [3.0, 4.0], [10.0, 0.0]], dtype=F64)
    means, counts = fn.class_means(outputs, torch.tensor([2, 2, 0]), 4)
    assert means.tolist() == [[10.0, 0.0], [0.0, 0.0], [2.0, 3.0], [0.0, 0.0]]
    assert counts.tolist() == [1, 0, 2, 0] and counts.dtype == torch.int64


def test_structural_knowledge_is_c_sigmoid_c() -> None:
    outputs, labels = normal(30, 5), torch.arange(30) % 3
    knowledge, counts = fn.structural_knowledge(outputs, labels, 5)
    for j in range(3):
        mean = outputs.numpy()[j::3].mean(0)
        assert_allclose(knowledge[j].numpy(), mean / (1 + np.exp(-mean)), rtol=1e-13)
    assert counts.tolist() == [10, 10, 10, 0, 0] and not knowledge[3:].any()
    plain, _ = fn.structural_knowledge(outputs, labels, 5, gate=False)
    assert_allclose(plain[1].numpy(), outputs.numpy()[1::3].mean(0), rtol=1e-13)
    assert gradcheck(lambda x: fn.structural_knowledge(x, labels, 5)[0], outputs.requires_grad_())


def test_gate_saturates_without_nan() -> None:
    knowledge, _ = fn.structural_knowledge(
        torch.tensor([[-1e5, 1e5, 0.0]], dtype=F64), torch.tensor([0]), 1
    )
    assert knowledge.tolist() == [[0.0, 1e5, 0.0]]


def test_class_means_do_not_mix_classes_dtypes_or_large_sums() -> None:
    means, _ = fn.class_means(torch.tensor([[float("nan")], [2.0]]), torch.tensor([0, 1]), 2)
    assert means[1].item() == 2.0 and means.dtype == torch.float32
    many = torch.full((20_000, 1), 0.1)
    near(fn.class_means(many, torch.zeros(20_000, dtype=torch.long), 1)[0], 0.1, rel=1e-7)
    empty, counts = fn.class_means(torch.empty(0, 3), torch.empty(0, dtype=torch.long), 2)
    assert not empty.any() and counts.tolist() == [0, 0]


def loop_global(knowledge: np.ndarray, present: np.ndarray, neighbours: int) -> np.ndarray:
    clients, classes, entries = knowledge.shape
    result = np.zeros((classes, entries))
    for j in range(classes):
        holders = [k for k in range(clients) if present[k, j]]
        merged = []
        for k in holders:
            others = sorted(
                (i for i in holders if i != k),
                key=lambda i: (np.linalg.norm(knowledge[k, j] - knowledge[i, j]), i),
            )[:neighbours]
            merged.append(
                (knowledge[k, j] + sum(knowledge[i, j] for i in others)) / (len(others) + 1)
            )
        if merged:
            result[j] = sum(merged) / len(merged)
    return result


@pytest.mark.parametrize("neighbours", [0, 1, 2, 10])
@pytest.mark.parametrize("poison", POISONS)
def test_global_knowledge_equals_loops(neighbours: int, poison: float) -> None:
    knowledge = normal(6, 5, 4)
    present = torch.from_numpy(np.random.default_rng(1).random((6, 5)) < 0.6)
    present[:, 0], present[:, 1] = False, False
    present[3, 1] = True
    expected = loop_global(knowledge.numpy(), present.numpy(), neighbours)
    merged, held = fn.global_structural_knowledge(
        torch.where(present.unsqueeze(-1), knowledge, poison), present, neighbours
    )
    assert_allclose(merged.numpy(), expected, rtol=1e-13, atol=1e-15)
    assert held.tolist() == present.any(0).tolist() and not held[0]
    assert torch.equal(merged[1], knowledge[3, 1])


def test_global_knowledge_by_hand_with_ties() -> None:
    # Points 0, 1, 2 on a line: the middle one is equally near to both and takes the first client.
    knowledge = torch.tensor([[[0.0]], [[1.0]], [[2.0]]], dtype=F64)
    merged, _ = fn.global_structural_knowledge(knowledge, torch.ones(3, 1, dtype=torch.bool))
    near(merged, (0.5 + 0.5 + 1.5) / 3, rel=1e-15)
    single, held = fn.global_structural_knowledge(
        knowledge[:1], torch.ones(1, 1, dtype=torch.bool), 3
    )
    assert single.item() == 0.0 and held.item()


def loop_contrastive(
    logits: np.ndarray,
    labels: list[int],
    prototypes: np.ndarray,
    present: list[bool],
    tau: float,
    distance: bool,
) -> float:
    losses, classes = [], [j for j, p in enumerate(present) if p]
    spread = {
        j: np.mean([np.linalg.norm(x - prototypes[j]) for x in logits]) if distance else 1.0
        for j in classes
    }
    for x, y in zip(logits, labels, strict=True):
        if present[y]:
            lengths = np.linalg.norm(x) * np.linalg.norm(prototypes, axis=1)
            s = {j: x @ prototypes[j] / lengths[j] / spread[j] / tau for j in classes}
            losses.append(math.log(sum(math.exp(v - s[y]) for v in s.values())))
    return float(np.mean(losses)) if losses else 0.0


@pytest.mark.parametrize("normaliser", ["distance", "none"])
@pytest.mark.parametrize("poison", POISONS)
def test_local_contrastive_loss_equals_loops_and_ignores_absent(
    normaliser: str, poison: float
) -> None:
    logits, labels = normal(7, 4).requires_grad_(), torch.tensor([0, 1, 2, 3, 0, 1, 2])
    present = torch.tensor([True, False, True, True])
    prototypes = normal(4, 4, seed=1)
    poisoned = torch.where(present.unsqueeze(1), prototypes, poison)
    loss = fn.local_contrastive_loss(logits, labels, poisoned, present, 0.3, normaliser)  # type: ignore[arg-type]
    given = logits.detach().numpy(), labels.tolist(), prototypes.numpy(), present.tolist()
    expected = loop_contrastive(*given, 0.3, normaliser == "distance")
    near(loss, expected)
    (gradient,) = grad(loss, logits)
    assert torch.isfinite(gradient).all() and not gradient[[1, 5]].any() and gradient[0].any()


def test_local_contrastive_gradient_holds_the_distance_constant() -> None:
    logits, prototypes = normal(5, 3).requires_grad_(), normal(3, 3, seed=2)
    labels, present = torch.tensor([0, 1, 2, 0, 1]), torch.ones(3, dtype=torch.bool)
    spread = torch.stack([(logits.detach() - p).norm(dim=1).mean() for p in prototypes])

    def by_hand(x: torch.Tensor) -> torch.Tensor:
        lengths = x.norm(dim=1, keepdim=True) * prototypes.norm(dim=1)
        return torch.nn.functional.cross_entropy(x @ prototypes.T / lengths / spread / 0.08, labels)

    (expected,) = grad(by_hand(logits), logits)
    (found,) = grad(fn.local_contrastive_loss(logits, labels, prototypes, present), logits)
    assert_close(found, expected, rtol=1e-10, atol=1e-12)
    assert gradcheck(
        lambda x: fn.local_contrastive_loss(x, labels, prototypes, present, 0.3, "none"), logits
    )


@pytest.mark.parametrize(
    "labels, present", [([1, 1], [True, False, True]), ([0, 1], [False] * 3), ([], [True] * 3)]
)
def test_local_contrastive_without_counted_samples_is_a_differentiable_zero(
    labels: list[int], present: list[bool]
) -> None:
    logits, known = normal(len(labels), 3).requires_grad_(), torch.tensor(present)
    prototypes = torch.full((3, 3), float("nan"), dtype=F64)
    prototypes[known] = 1.0
    classes = torch.tensor(labels, dtype=torch.long)
    loss = fn.local_contrastive_loss(logits, classes, prototypes, known)
    loss.backward()
    assert loss.item() == 0.0 and logits.grad is not None and not logits.grad.any()


def test_local_contrastive_zero_vectors_and_exact_hits_are_finite() -> None:
    prototypes = torch.tensor([[1.0, 0.0], [0.0, 0.0]], dtype=F64)
    logits = torch.tensor([[0.0, 0.0]], dtype=F64, requires_grad=True)
    loss = fn.local_contrastive_loss(
        logits, torch.tensor([0]), prototypes, torch.ones(2, dtype=torch.bool)
    )
    loss.backward()
    near(loss, math.log(2))
    assert logits.grad is not None and logits.grad.tolist() == [[0.0, 0.0]]
    hit = fn.local_contrastive_loss(
        prototypes[:1], torch.tensor([0]), prototypes, torch.ones(2, dtype=torch.bool), 1.0
    )
    near(hit, math.log(1 + math.exp(-1)))
    given = torch.tensor([0, 1, 0]), normal(2, 2, seed=3), torch.ones(2, dtype=torch.bool)
    tiny, same = (
        fn.local_contrastive_loss(normal(3, 2) * scale, *given, 0.3, "none")
        for scale in (1e-200, 1)
    )
    near(tiny, same.item())


@pytest.mark.parametrize("poison", POISONS)
def test_discrepancy_sums_distances_over_present_classes(poison: float) -> None:
    knowledge, global_ = normal(3, 4, 2), normal(4, 2, seed=1)
    present = torch.tensor([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 0, 0]], dtype=torch.bool)
    expected = [
        sum(np.linalg.norm(knowledge[k, j] - global_[j]) for j in range(4) if present[k, j])
        for k in range(3)
    ]
    global_[3] = poison
    found = fn.knowledge_discrepancy(
        torch.where(present.unsqueeze(-1), knowledge, poison), present, global_
    )
    assert_allclose(found.numpy(), expected, rtol=1e-13)
    assert found[2].item() == 0.0


def test_discrepancy_weights_by_hand() -> None:
    sizes, distance = torch.tensor([1.0, 2.0], dtype=F64), torch.tensor([1.0, 3.0], dtype=F64)
    sigmoids = [1 / (1 + math.exp(-x)) for x in (1 - 0.25 * 1 + 1 / 3, 2 - 0.75 * 3 + 2 / 3)]
    assert_allclose(
        fn.discrepancy_weights(sizes, distance), np.array(sigmoids) / sum(sigmoids), rtol=1e-13
    )
    scaled = [1 / (1 + math.exp(-x)) for x in (1 / 3 - 0.25 + 1 / 3, 2 / 3 - 2.25 + 2 / 3)]
    found = fn.discrepancy_weights(sizes, distance, sample_scale="fraction")
    assert_allclose(found, np.array(scaled) / sum(scaled), rtol=1e-13)


def test_discrepancy_weights_saturate_to_uniform_and_survive_underflow() -> None:
    big = fn.discrepancy_weights(
        torch.tensor([4000, 2000, 100]), torch.tensor([3.0, 1.0, 9.0], dtype=F64)
    )
    assert big.tolist() == [1 / 3] * 3
    # Arguments near -1250 and -5000: both sigmoids underflow, the ratio is exp of their difference.
    low = fn.discrepancy_weights(
        torch.tensor([0.0, 0.0, 0.0], dtype=F64), torch.tensor([5e3, 5e3, 1e4], dtype=F64)
    )
    assert low.tolist() == [0.5, 0.5, 0.0]
    pair = fn.discrepancy_weights(
        torch.zeros(2, dtype=F64), torch.tensor([2000.0, 2001.0], dtype=F64)
    )
    gap = (2001.0**2 - 2000.0**2) / 4001.0
    near(pair[1], math.exp(-gap) / (1 + math.exp(-gap)), rel=1e-9)
    huge = fn.discrepancy_weights(torch.tensor([1, 1]), torch.tensor([1e308, 1e308], dtype=F64))
    assert huge.tolist() == [0.5, 0.5]


def test_discrepancy_weights_neutral_cases() -> None:
    assert fn.discrepancy_weights(torch.tensor([5]), torch.tensor([2.0])).tolist() == [1.0]
    assert fn.discrepancy_weights(torch.tensor([7, 7]), torch.zeros(2)).tolist() == [0.5, 0.5]
    assert fn.discrepancy_weights(torch.tensor([0, 0]), torch.zeros(2)).tolist() == [0.5, 0.5]
    equal = fn.discrepancy_weights(torch.full((5,), 3), torch.full((5,), 0.7, dtype=F64))
    assert equal.tolist() == [0.2] * 5


def rho_of(now: np.ndarray, before: np.ndarray) -> float:
    return float((now.var(axis=1).sum() - before.var(axis=1).sum()) / before.var(axis=1).sum())


@pytest.mark.parametrize("poison", POISONS)
def test_period_review_on_trees_and_masks(poison: float) -> None:
    now, before = normal(4, 3), normal(4, 3, seed=1)
    present_now = torch.tensor([True, True, True, False])
    present_before = torch.tensor([True, False, True, True])
    rho = rho_of(now.numpy()[[0, 2]], before.numpy()[[0, 2]])
    now[3], before[1] = poison, poison
    current = {"w": torch.tensor([1.0, 2.0], dtype=F64), "n": torch.tensor(7)}
    previous = {"w": torch.tensor([3.0, -2.0], dtype=F64), "n": torch.tensor(5)}
    given = (current, previous, now, before, 0.9)
    masks = {"present_now": present_now, "present_before": present_before}
    reviewed = fn.period_review(*given, **masks)
    assert_allclose(reviewed["w"], [0.9 + 0.1 * rho * 2, 1.8 - 0.1 * rho * 4], rtol=1e-12)
    assert reviewed["n"].item() == 7 and current["w"].tolist() == [1.0, 2.0]
    moved = fn.period_review(*given, **masks, review="interpolate")
    assert_allclose(moved["w"], [1 + 0.1 * rho * 2, 2 - 0.1 * rho * 4], rtol=1e-12)


def test_period_review_without_masks_and_equal_knowledge() -> None:
    now, before, weights = normal(3, 3), normal(3, 3, seed=1), normal(4, seed=2)
    expected = 0.95 * weights + 0.05 * rho_of(now.numpy(), before.numpy()) * (2.0 - weights)
    assert_close(fn.period_review(weights, torch.full_like(weights, 2.0), now, before), expected)
    same = fn.period_review(weights, torch.zeros_like(weights), now, now)
    assert_close(same, 0.95 * weights, rtol=1e-15, atol=0)
    now[0] = float("nan")
    assert fn.variance_change(now, before) == approx(
        rho_of(now.numpy()[1:], before.numpy()[1:]), rel=1e-12
    )


def test_period_review_returns_current_where_rho_is_undefined() -> None:
    weights, none = torch.tensor([0.1, 3.0]), torch.zeros(2, dtype=torch.bool)
    # 0.1 is not exact in binary: its computed variance must still be zero.
    flat = torch.full((2, 3), 0.1)
    assert fn.variance_change(torch.randn(2, 3), flat) is None
    assert torch.equal(fn.period_review(weights, weights + 1, torch.randn(2, 3), flat), weights)
    assert torch.equal(
        fn.period_review(weights, weights + 1, torch.eye(2), torch.eye(2), present_now=none),
        weights,
    )
    assert fn.variance_change(torch.zeros(2, 3), torch.eye(2, 3)) == -1.0


def test_variances_of_the_classes_of_both_rounds_or_of_each_rounds_own() -> None:
    now = torch.tensor([[0.0, 2.0], [0.0, 4.0], [0.0, 6.0]], dtype=torch.float64)
    before = torch.tensor([[0.0, 4.0], [1.0, 1.0], [0.0, 2.0]], dtype=torch.float64)
    here, earlier = torch.tensor([True, True, False]), torch.tensor([True, False, True])
    # variances 1, 4, 9 now and 4, 0, 1 before
    rho = fn.variance_change
    assert rho(now, before, here, earlier) == approx((1 - 4) / 4)
    assert rho(now, before, here, earlier, classes="each") == approx((5 - 5) / 5)
    assert rho(now, before, classes="each") == rho(now, before) == approx((14 - 5) / 5)
    nobody = torch.zeros(3, dtype=torch.bool)
    assert rho(now, before, here, nobody, classes="each") is None
    with pytest.raises(ValueError, match=r"classes.*both.*each"):
        rho(now, before, classes="all")  # type: ignore[arg-type]
