import numpy as np
import pytest
import torch

from flray.functional import gram_trace, mix_updates, mixing_ratio, stabilised_ratio, trace_ratio
from tests.functional.helpers import normal


def test_trace_equals_both_matrices() -> None:
    h = normal(6, 4)
    gram = sum(float(h[i] @ h[i]) for i in range(6)) / 4  # tr of H[i, j] = h_i . h_j / m
    sigma = np.trace(sum(np.outer(row, row) for row in h.numpy())) / 4
    assert gram_trace(h).item() == pytest.approx(gram, rel=1e-13) == pytest.approx(sigma, rel=1e-13)
    centred = h.numpy() - h.numpy().mean(0)
    assert gram_trace(h, centred=True).item() == pytest.approx((centred**2).sum() / 4, rel=1e-13)
    eigenvalues = np.linalg.eigvalsh(centred.T @ centred)
    assert gram_trace(h, True, drop_smallest=True).item() == pytest.approx(
        eigenvalues[1:].sum() / 4, rel=1e-12
    )
    assert gram_trace(h[:3], drop_smallest=True).item() == pytest.approx(
        gram_trace(h[:3]).item(), rel=1e-12
    )
    assert torch.autograd.gradcheck(gram_trace, h.clone().requires_grad_())


def test_trace_adds_up_over_batches_and_ends() -> None:
    h = normal(6, 4)
    assert (gram_trace(h[:2]) + gram_trace(h[2:])).item() == pytest.approx(
        gram_trace(h).item(), rel=1e-13
    )
    assert gram_trace(h[:1], centred=True).item() == 0.0 and gram_trace(h[:0]).item() == 0.0
    assert gram_trace(h.float()).dtype == torch.float32


def test_ratio() -> None:
    local, other = normal(5, 3), normal(5, 3, seed=1)
    a, b = (local.numpy() ** 2).sum(), (other.numpy() ** 2).sum()
    assert mixing_ratio(local, other).item() == pytest.approx(a / (a + b), rel=1e-13)
    assert mixing_ratio(local, local).item() == 0.5
    assert mixing_ratio(torch.zeros(2, 3), torch.zeros(2, 3)).item() == 0.5
    assert mixing_ratio(torch.zeros(2, 3), torch.ones(2, 3)).item() == 0.0
    assert mixing_ratio(local[:1], other[:1], centred=True).item() == 0.5
    # Squares exceed float32.
    assert mixing_ratio(torch.full((2, 3), 1e25), torch.full((2, 3), 1e25)).item() == 0.5
    assert trace_ratio(3.0, 1.0).item() == 0.75


def test_history_is_the_mean_of_earlier_rounds() -> None:
    assert stabilised_ratio([], 0.3) == 0.3
    assert stabilised_ratio([0.2, 0.4], 0.9) == pytest.approx(0.3)
    assert stabilised_ratio([0.2, 0.4], 0.9, include_current=True) == pytest.approx(0.5)


def test_mixing_by_hand_leaves_counters_and_inputs() -> None:
    start, local, common = (
        {"w": torch.tensor(w, dtype=torch.float64), "n": torch.tensor(n)}
        for w, n in (([1.0, 2.0], 3), ([1.0, -1.0], 9), ([0.0, 4.0], 9))
    )
    mixed = mix_updates(start, local, common, 0.25)
    assert mixed["w"].tolist() == [1.25, 4.75] and mixed["n"].item() == 3
    assert start["w"].tolist() == [1.0, 2.0]
    half = mix_updates(start["w"], local["w"], common["w"], torch.tensor(0.5))
    assert half.tolist() == [1.5, 3.5]


def test_ratio_zero_is_fedavg_and_one_is_local_bit_for_bit() -> None:
    start, new, common = (normal(1000, seed=s).float() for s in range(3))
    broken = torch.full_like(start, float("nan"))
    assert torch.equal(mix_updates(start, broken, common, 0.0), start + common)
    assert torch.equal(mix_updates(start, new.double() - start.double(), broken.double(), 1.0), new)
