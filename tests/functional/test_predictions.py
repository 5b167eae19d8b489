"""Losses between the predictions of several models, against loops."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from numpy.testing import assert_allclose
from pytest import approx
from torch import nn
from torch.autograd import grad, gradcheck
from torch.testing import assert_close

import flray.functional as fn
from tests.functional.helpers import F64, flat, near, normal


def softmax(row: np.ndarray, tau: float) -> np.ndarray:
    e = np.exp(row / tau - (row / tau).max())
    return e / e.sum()


@pytest.mark.parametrize("batch", [1, 2, 5])
@pytest.mark.parametrize("tau", [1.0, 3.0])
def test_kl_and_its_parts_equal_loops(batch: int, tau: float) -> None:
    student, teacher = normal(batch, 4), normal(batch, 4, seed=1)
    labels = torch.arange(batch) % 4
    full = others = 0.0
    for s, t, y in zip(student.numpy(), teacher.numpy(), labels.tolist(), strict=True):
        p, q = softmax(t, tau), softmax(s, tau)
        full += sum(p[u] * math.log(p[u] / q[u]) for u in range(4)) / batch
        others += sum(p[u] * math.log(p[u] / q[u]) for u in range(4) if u != y) / batch
    near(fn.distillation_loss(student, teacher, tau), full)
    near(fn.scaled_distillation_loss(student, teacher, tau), tau**2 * full)
    near(fn.non_target_distillation_loss(student, teacher, labels, tau), others)


def test_gradients_and_constant_teacher() -> None:
    student, teacher = normal(3, 4).requires_grad_(), normal(3, 4, seed=1).requires_grad_()
    labels = torch.tensor([0, 3, 3])
    assert gradcheck(lambda x: fn.distillation_loss(x, teacher.detach(), 2.0), student)
    assert gradcheck(
        lambda x: fn.non_target_distillation_loss(x, teacher.detach(), labels), student
    )
    loss = fn.distillation_loss(student, teacher) + fn.non_target_distillation_loss(
        student, teacher, labels
    )
    assert grad(loss, teacher, allow_unused=True)[0] is None


def test_teacher_equal_to_student_gives_zero_and_shift_does_not_matter() -> None:
    student, teacher = normal(3, 4).requires_grad_(), normal(3, 4, seed=1)
    loss = fn.distillation_loss(student, student.detach())
    loss.backward()
    assert loss.item() == 0.0 and student.grad is not None and student.grad.abs().max() < 1e-15
    assert fn.non_target_distillation_loss(student, student, torch.tensor([0, 1, 2])).item() == 0.0
    shifted = fn.distillation_loss(student + 7.0, teacher - 100.0)
    assert_close(shifted, fn.distillation_loss(student, teacher), rtol=1e-12, atol=0)


def test_non_target_differs_from_kd_only_through_the_target_term() -> None:
    # d FNTD / d z_u = (p_S(u) (1 - p_T(t)) - p_T(u) [u != t]) / tau, for one sample
    student, teacher = normal(1, 4).requires_grad_(), normal(1, 4, seed=1)
    (gradient,) = grad(
        fn.non_target_distillation_loss(student, teacher, torch.tensor([2]), 3.0), student
    )
    p, q = softmax(teacher[0].numpy(), 3.0), softmax(student.detach()[0].numpy(), 3.0)
    expected = (q * (1 - p[2]) - np.where(np.arange(4) == 2, 0, p)) / 3.0
    assert_allclose(gradient[0].numpy(), expected, rtol=1e-12)


def test_large_temperature_limit() -> None:
    # tau^2 KL -> sum of squared differences of centred logits / (2 C)
    student, teacher = normal(1, 5), normal(1, 5, seed=1)
    difference = (student - student.mean()) - (teacher - teacher.mean())
    near(
        fn.scaled_distillation_loss(student, teacher, 1e4),
        difference.square().sum().item() / 10,
        rel=1e-3,
    )


def test_saturated_logits_and_empty_batches_are_finite() -> None:
    student = torch.tensor([[1e4, -1e4, 0.0]], dtype=torch.float64, requires_grad=True)
    loss = fn.distillation_loss(student, -student)
    loss = loss + fn.non_target_distillation_loss(student, -student, torch.tensor([0]), 1.0)
    loss.backward()
    assert loss.item() == approx(4e4, rel=1e-12) and torch.isfinite(student.grad).all()  # type: ignore[arg-type]
    empty = torch.empty(0, 3, requires_grad=True)
    assert fn.non_target_distillation_loss(empty, empty, torch.empty(0).long()).item() == 0.0


def test_digest_is_the_mean_absolute_difference() -> None:
    scores = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    loss = fn.digest_loss(scores, torch.tensor([[0.0, 2.0], [5.0, 4.5]]))
    near(loss, (1 + 0 + 2 + 0.5) / 4, rel=1e-6)
    assert grad(fn.digest_loss(scores, scores), scores)[0].tolist() == [[0.0, 0.0], [0.0, 0.0]]


THREE = torch.tensor([0, 2, 1])


def test_symmetric_cross_entropy_equals_loops() -> None:
    logits, expected = normal(3, 4).requires_grad_(), 0.0
    for z, y in zip(logits.detach().numpy(), THREE.tolist(), strict=True):
        p = np.exp(z) / np.exp(z).sum()
        reverse = -sum(max(p[c], 1e-7) * math.log(1.0 if c == y else 1e-4) for c in range(4))
        expected += (0.1 * -math.log(p[y]) + 1.0 * reverse) / 3
    near(fn.symmetric_cross_entropy(logits, THREE), expected)
    assert gradcheck(lambda x: fn.symmetric_cross_entropy(x, THREE), logits)


def test_symmetric_cross_entropy_parts() -> None:
    logits = normal(3, 4).float()
    assert torch.equal(
        fn.symmetric_cross_entropy(logits, THREE, a=1.0, b=0.0), F.cross_entropy(logits, THREE)
    )
    sure = torch.tensor([[50.0, -50.0]], dtype=torch.float64)
    near(fn.symmetric_cross_entropy(sure, torch.tensor([0]), 0.0), 1e-7 * 9.2103, rel=1e-4)
    near(fn.symmetric_cross_entropy(sure, torch.tensor([1]), 0.0), -math.log(1e-4))
    assert fn.symmetric_cross_entropy(torch.zeros(0, 3), torch.zeros(0).long()).item() == 0.0


def test_confidence_by_hand() -> None:
    now = torch.tensor([1.0, 2.0, 4.0], dtype=F64)
    before = torch.tensor([2.0, 3.0, 4.0], dtype=F64)
    q = np.array([1.0, 0.5, 0.0])
    expected = np.exp(0.5 + 0.5 * q / 1.5)
    assert_allclose(fn.confidence_weights(now, before), expected / expected.sum(), rtol=1e-12)


def test_confidence_neutral_cases() -> None:
    losses = torch.tensor([1.0, 2.0, 4.0])
    assert fn.confidence_weights(losses).tolist() == [0.5] * 3
    uniform = approx([1 / 3] * 3)
    assert fn.confidence_weights(losses, losses * 2, eta=0.0).tolist() == uniform
    assert fn.confidence_weights(losses, losses).tolist() == uniform
    rising = fn.confidence_weights(losses, torch.tensor([0.9, 1.0, 1.0]))
    assert rising.tolist() == uniform  # a negative sum of efficiencies would reverse the ranking
    for one in ((losses[:1],), (losses[:1], losses[:1])):
        assert fn.confidence_weights(*one).tolist() == [0.0]
    perfect = fn.confidence_weights(torch.tensor([0.0, 1.0]), torch.tensor([1.0, 2.0]))
    assert perfect[0] > perfect[1] and perfect.sum().item() == approx(1.0)


def test_peer_distillation_equals_loops_and_skips_itself() -> None:
    logits, weights = normal(2, 3).requires_grad_(), torch.tensor([0.2, 0.3, 0.5], dtype=F64)
    peers = torch.softmax(normal(3, 2, 3, seed=1), dim=2)
    peers[2, 0] = torch.tensor([1.0, 0.0, 0.0])  # a zero probability contributes nothing
    own = torch.softmax(logits.detach(), dim=1)
    expected = 0.0
    for j, b in ((0, 0), (0, 1), (2, 0), (2, 1)):
        pairs = zip(peers[j, b], own[b], strict=True)
        expected += weights[j].item() / 2 * sum(float(p * math.log(p / q)) for p, q in pairs if p)
    peers[1] = float("nan")
    loss = fn.peer_distillation_loss(logits, peers, weights, 1)
    near(loss, expected)
    assert gradcheck(lambda x: fn.peer_distillation_loss(x, peers, weights, 1), logits)


def test_peer_distillation_neutral_cases() -> None:
    logits = normal(2, 3).requires_grad_()
    same = torch.softmax(logits.detach(), dim=1).expand(3, 2, 3)
    near(fn.peer_distillation_loss(logits, same, torch.ones(3).double(), 0), 0.0, abs=1e-15)
    alone = fn.peer_distillation_loss(logits, same[:1], torch.ones(1).double(), 0)
    flat(alone, logits)


def test_confidence_and_votes() -> None:
    logits = torch.tensor([[0.0, 2.0], [0.0, 1.0]])  # largest probabilities 0.881 and 0.731
    assert (
        fn.confident(logits, 0.75).tolist() == [True, False]
        and not fn.confident(logits, 1.01).any()
    )
    # The second sample is tied three ways.
    picks = torch.tensor([[2, 2, 1, 0], [1, 1, 1, 1], [1, 0, 1, 1]])
    assert fn.vote(torch.nn.functional.one_hot(picks, 3).double()).tolist() == [1, 2, 1, 1]
    own = normal(1, 5, 3)
    assert torch.equal(fn.vote(own.expand(3, 5, 3)), own[0].argmax(1))


def test_pseudo_labels_count_kept_samples_only() -> None:
    logits, labels = normal(3, 4).requires_grad_(), torch.tensor([0, 1, 2])
    shares = torch.softmax(logits.detach(), 1).numpy()
    loss = fn.pseudo_label_loss(logits, labels, torch.tensor([True, False, True]))
    near(loss, -(np.log(shares[0, 0]) + np.log(shares[2, 2])) / 2)
    (gradient,) = grad(loss, logits)
    assert gradient[0].any() and not gradient[1].any()
    assert fn.pseudo_label_loss(logits, labels, torch.zeros(3).bool()).item() == 0.0


def test_consistency_equals_loops() -> None:
    logits = normal(3, 4).requires_grad_()
    helpers = normal(2, 3, 4, seed=1)
    keep = torch.tensor([True, True, False])
    own = torch.softmax(logits.detach(), 1).numpy()
    expected = 0.0
    for helper in torch.softmax(helpers, 2).numpy():
        expected += (
            sum(float((helper[b] * np.log(helper[b] / own[b])).sum()) for b in (0, 1)) / 2 / 2
        )
    near(fn.helper_consistency_loss(logits, helpers, keep), expected)
    assert gradcheck(lambda x: fn.helper_consistency_loss(x, helpers, keep), logits)
    none = fn.helper_consistency_loss(logits, helpers[:0], keep)
    flat(none, logits)


def test_decomposition_penalty_moves_psi_only() -> None:
    psi = {"w": torch.tensor([1.0, -2.0], requires_grad=True)}
    sigma = {"w": torch.tensor([3.0, 0.0], requires_grad=True)}
    loss = fn.decomposition_penalty(psi, sigma, l1=0.5, l2=2.0)
    assert loss.item() == 0.5 * 3 + 2 * 8
    gradients = grad(loss, (psi["w"], sigma["w"]), allow_unused=True)
    assert gradients[1] is None and gradients[0].tolist() == [0.5 - 8.0, -0.5 - 8.0]


def linear_heads(number: int) -> list[nn.Module]:
    rng = np.random.default_rng(0)
    heads: list[nn.Module] = []
    for _ in range(number):
        head = nn.Linear(3, 4).double()
        head.load_state_dict(
            {
                "weight": torch.from_numpy(rng.normal(size=(4, 3))),
                "bias": torch.from_numpy(rng.normal(size=4)),
            }
        )
        heads.append(head)
    return heads


FEATURES = torch.from_numpy(np.random.default_rng(1).normal(size=(5, 3)))
LABELS = torch.tensor([0, 1, 2, 3, 0])


def test_sum_over_the_other_heads_equals_loops() -> None:
    heads, expected = linear_heads(4), 0.0
    for j in (0, 2, 3):
        logits = (
            FEATURES.numpy() @ heads[j].weight.detach().numpy().T + heads[j].bias.detach().numpy()
        )
        shares = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
        expected += float(-np.log(shares[np.arange(5), LABELS.numpy()]).mean())
    near(fn.peer_classifier_loss(FEATURES, LABELS, heads, 1), expected)
    features = FEATURES.clone().requires_grad_()
    assert gradcheck(lambda x: fn.peer_classifier_loss(x, LABELS, heads, 1), features)


def test_heads_stay_frozen_and_as_they_were() -> None:
    heads: list[nn.Module] = [
        nn.Sequential(nn.Linear(3, 6), nn.BatchNorm1d(6), nn.Dropout(0.5), nn.Linear(6, 4)).double()
        for _ in range(3)
    ]
    heads[2][1].eval()
    before = [{name: value.clone() for name, value in head.state_dict().items()} for head in heads]
    features = FEATURES.clone().requires_grad_()
    first, second = (fn.peer_classifier_loss(features, LABELS, heads, 0) for _ in range(2))
    first.backward()
    assert first.item() == second.item()  # eval mode: no dropout
    assert features.grad is not None and features.grad.any()
    for head, state in zip(heads, before, strict=True):
        assert all(torch.equal(value, state[name]) for name, value in head.state_dict().items())
        assert all(p.grad is None and p.requires_grad for p in head.parameters()) and head.training
    assert not heads[2][1].training and heads[1][1].training


def test_single_participant_and_poisoned_own_head() -> None:
    features = torch.full((2, 3), float("inf"), dtype=torch.float64, requires_grad=True)
    loss = fn.peer_classifier_loss(features, LABELS[:2], linear_heads(1), 0)
    loss.backward()
    assert loss.item() == 0.0 and features.grad is not None and not features.grad.any()
    heads = linear_heads(2)
    nn.init.constant_(heads[0].weight, float("nan"))  # type: ignore[arg-type]
    assert torch.isfinite(fn.peer_classifier_loss(FEATURES[:1], LABELS[:1], heads, 0))


def test_fusion_is_the_sum_of_raw_logits() -> None:
    fused = fn.fuse_predictions(torch.tensor([[1.0, 2.0]]), torch.tensor([[0.5, -4.0]]))
    assert fused.tolist() == [[1.5, -2.0]]
