import numpy as np
import pytest
import torch
import torch.nn.functional as F

from flray.functional.numerics import (
    batch_mean,
    cross_entropy,
    keep_rows,
    masked_cross_entropy,
    masked_mean,
    unit,
)
from tests.functional.helpers import normal


@pytest.mark.parametrize("scale", [1.0, 1e-200, 1e200, 1e-320])
def test_unit_vectors_of_any_size(scale: float) -> None:
    directions = unit(torch.tensor([[3.0, -4.0], [0.0, 0.0]], dtype=torch.float64) * scale)
    np.testing.assert_allclose(
        directions, [[0.6, -0.8], [0.0, 0.0]], rtol=1e-3 if scale < 1e-300 else 1e-14
    )


def test_unit_gradient_along_any_dimension() -> None:
    vectors = normal(4, 3).requires_grad_()
    for dim in (0, 1, -1):
        assert torch.autograd.gradcheck(lambda x, d=dim: unit(x, d), vectors)
    zero = torch.zeros(2, 3, requires_grad=True)
    (gradient,) = torch.autograd.grad(unit(zero).sum(), zero)
    assert not gradient.any()
    # A diverged model must not look like a zero vector.
    assert unit(torch.tensor([[float("nan"), 1.0]])).isnan().all()


def test_means_of_nothing_are_zero_with_a_gradient() -> None:
    values = torch.zeros(0, requires_grad=True)
    assert batch_mean(values).item() == 0.0 and batch_mean(values).requires_grad
    spoilt = torch.tensor([float("nan"), 2.0, 4.0, float("inf")], requires_grad=True)
    mean = masked_mean(spoilt, torch.tensor([False, True, True, False]))
    assert mean.item() == 3.0 and torch.autograd.grad(mean, spoilt)[0].tolist() == [
        0.0,
        0.5,
        0.5,
        0.0,
    ]
    assert masked_mean(spoilt, torch.zeros(4).bool()).item() == 0.0


def test_rows_that_are_not_kept_leave_no_trace() -> None:
    rows = torch.tensor([[1.0, 2.0], [float("nan"), float("inf")]], requires_grad=True)
    kept = keep_rows(rows, torch.tensor([True, False]))
    assert kept.tolist() == [[1.0, 2.0], [0.0, 0.0]]
    assert torch.autograd.grad(kept.square().sum(), rows)[0].tolist() == [[2.0, 4.0], [0.0, 0.0]]


def test_cross_entropies() -> None:
    scores, labels = normal(5, 3).requires_grad_(), torch.tensor([0, 1, 2, 0, 1])
    assert torch.equal(cross_entropy(scores, labels), F.cross_entropy(scores, labels))
    assert cross_entropy(scores[:0], labels[:0]).item() == 0.0
    everything = masked_cross_entropy(scores, labels, torch.ones(3).bool())
    assert everything.item() == pytest.approx(F.cross_entropy(scores, labels).item(), rel=1e-14)
    some = masked_cross_entropy(scores, labels, torch.tensor([True, False, True]))
    kept = F.cross_entropy(scores[[0, 2, 3]][:, [0, 2]], torch.tensor([0, 1, 0]))
    assert some.item() == pytest.approx(kept.item(), rel=1e-14)
    assert not torch.autograd.grad(some, scores)[0][:, 1].any()
