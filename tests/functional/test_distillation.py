import math

import numpy as np
import pytest
import torch

from flray.functional import (
    digest_loss,
    distillation_loss,
    non_target_distillation_loss,
    scaled_distillation_loss,
)
from tests.functional.helpers import normal


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
    assert distillation_loss(student, teacher, tau).item() == pytest.approx(full, rel=1e-12)
    assert scaled_distillation_loss(student, teacher, tau).item() == pytest.approx(
        tau**2 * full, rel=1e-12
    )
    assert non_target_distillation_loss(student, teacher, labels, tau).item() == pytest.approx(
        others, rel=1e-12
    )


def test_gradients_and_constant_teacher() -> None:
    student, teacher = normal(3, 4).requires_grad_(), normal(3, 4, seed=1).requires_grad_()
    labels = torch.tensor([0, 3, 3])
    assert torch.autograd.gradcheck(lambda x: distillation_loss(x, teacher.detach(), 2.0), student)
    assert torch.autograd.gradcheck(
        lambda x: non_target_distillation_loss(x, teacher.detach(), labels), student
    )
    loss = distillation_loss(student, teacher) + non_target_distillation_loss(
        student, teacher, labels
    )
    assert torch.autograd.grad(loss, teacher, allow_unused=True)[0] is None


def test_teacher_equal_to_student_gives_zero_and_shift_does_not_matter() -> None:
    student, teacher = normal(3, 4).requires_grad_(), normal(3, 4, seed=1)
    loss = distillation_loss(student, student.detach())
    loss.backward()
    assert loss.item() == 0.0 and student.grad is not None and student.grad.abs().max() < 1e-15
    assert non_target_distillation_loss(student, student, torch.tensor([0, 1, 2])).item() == 0.0
    shifted = distillation_loss(student + 7.0, teacher - 100.0)
    torch.testing.assert_close(shifted, distillation_loss(student, teacher), rtol=1e-12, atol=0)


def test_non_target_differs_from_kd_only_through_the_target_term() -> None:
    # d FNTD / d z_u = (p_S(u) (1 - p_T(t)) - p_T(u) [u != t]) / tau, for one sample
    student, teacher = normal(1, 4).requires_grad_(), normal(1, 4, seed=1)
    (gradient,) = torch.autograd.grad(
        non_target_distillation_loss(student, teacher, torch.tensor([2]), 3.0), student
    )
    p, q = softmax(teacher[0].numpy(), 3.0), softmax(student.detach()[0].numpy(), 3.0)
    expected = (q * (1 - p[2]) - np.where(np.arange(4) == 2, 0, p)) / 3.0
    np.testing.assert_allclose(gradient[0].numpy(), expected, rtol=1e-12)


def test_large_temperature_limit() -> None:
    # tau^2 KL -> sum of squared differences of centred logits / (2 C)
    student, teacher = normal(1, 5), normal(1, 5, seed=1)
    difference = (student - student.mean()) - (teacher - teacher.mean())
    assert scaled_distillation_loss(student, teacher, 1e4).item() == pytest.approx(
        difference.square().sum().item() / 10, rel=1e-3
    )


def test_saturated_logits_and_empty_batches_are_finite() -> None:
    student = torch.tensor([[1e4, -1e4, 0.0]], dtype=torch.float64, requires_grad=True)
    loss = distillation_loss(student, -student)
    loss = loss + non_target_distillation_loss(student, -student, torch.tensor([0]), 1.0)
    loss.backward()
    assert loss.item() == pytest.approx(4e4, rel=1e-12) and torch.isfinite(student.grad).all()  # type: ignore[arg-type]
    empty = torch.empty(0, 3, requires_grad=True)
    assert non_target_distillation_loss(empty, empty, torch.empty(0).long()).item() == 0.0


def test_digest_is_the_mean_absolute_difference() -> None:
    scores = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    loss = digest_loss(scores, torch.tensor([[0.0, 2.0], [5.0, 4.5]]))
    assert loss.item() == pytest.approx((1 + 0 + 2 + 0.5) / 4)
    assert torch.autograd.grad(digest_loss(scores, scores), scores)[0].tolist() == [
        [0.0, 0.0],
        [0.0, 0.0],
    ]
