"""How personal models are mixed from their own and from common parameters."""

import numpy as np
import torch
from numpy.testing import assert_allclose
from pytest import approx
from torch.autograd import grad, gradcheck
from torch.testing import assert_close

import flray.functional as fn
from tests.functional.helpers import near, normal


def test_mixture_and_its_ends() -> None:
    v = {"a": torch.tensor([1.0, 3.0]), "n": torch.tensor(4)}
    w = {"a": torch.tensor([2.0, -1.0]), "n": torch.tensor(9)}
    mixed = fn.apfl_mix(v, w, 0.25)
    assert mixed["a"].tolist() == [1.75, 0.0] and mixed["n"].item() == 4
    x, broken = normal(100).float(), torch.full((100,), float("nan"))
    assert torch.equal(fn.apfl_mix(x, broken, 1.0), x) and torch.equal(
        fn.apfl_mix(broken, x, 0.0), x
    )
    assert torch.equal(fn.pull_to_mean(x, broken, 0.0), x)
    assert torch.equal(fn.pull_to_mean(broken, x, 1.0), x)
    assert fn.apfl_mix(x, x, 1.0).data_ptr() != x.data_ptr()


def test_alpha_gradient_equals_finite_differences() -> None:
    v, w, data, target = normal(3), normal(3, seed=1), normal(5, 3, seed=2), normal(5, seed=3)

    def loss(alpha: float) -> float:
        return float(((data @ (alpha * v + (1 - alpha) * w) - target) ** 2).mean())

    mixture = fn.apfl_mix(v, w, 0.4).requires_grad_()
    (gradient,) = grad(((data @ mixture - target) ** 2).mean(), mixture)
    found = fn.apfl_alpha_gradient({"x": v}, {"x": w}, {"x": gradient})
    assert found == approx((loss(0.4 + 1e-5) - loss(0.4 - 1e-5)) / 2e-5, rel=1e-7)
    assert fn.apfl_alpha_gradient(v, w, gradient) == found
    assert [fn.apfl_alpha_step(0.5, g, 0.1) for g in (1.0, 100.0, -100.0)] == [0.4, 0.0, 1.0]


def test_pull_leaves_the_mean_of_all_clients() -> None:
    clients = [normal(4, seed=s) for s in range(3)]
    mean = torch.stack(clients).mean(0)
    pulled = [fn.pull_to_mean(x, mean, 0.3) for x in clients]
    assert_close(torch.stack(pulled).mean(0), mean, rtol=1e-12, atol=1e-15)
    assert_close(pulled[0], 0.7 * clients[0] + 0.3 * mean)


def test_fomo_weights_by_hand() -> None:
    losses = torch.tensor([1.0, 3.0, 1.5], dtype=torch.float64)
    affinities = fn.fomo_affinities(2.0, losses, torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64))
    assert_allclose(affinities, [2.0, -1.0, 0.25], rtol=1e-10)
    assert_allclose(fn.fomo_weights(affinities), [2 / 2.25, 0.0, 0.25 / 2.25], rtol=1e-10)
    assert fn.fomo_weights(torch.tensor([-1.0, 0.0])).tolist() == [0.0, 0.0]
    assert fn.fomo_weights(torch.empty(0)).shape == (0,)


def test_broken_and_identical_candidates_get_no_weight() -> None:
    inf, nan = float("inf"), float("nan")
    affinities = fn.fomo_affinities(
        2.0, torch.tensor([2.0, inf, nan, 1e30, 1.0]), torch.tensor([0.0, 1.0, 1.0, 1.0, nan])
    )
    assert torch.isfinite(affinities).all() and fn.fomo_weights(affinities).tolist() == [0.0] * 5


def test_fomo_mix_equals_the_convex_form_when_weights_sum_to_one() -> None:
    reference = {"w": normal(3), "n": torch.tensor(2)}
    candidates = [{"w": normal(3, seed=s), "n": torch.tensor(s)} for s in (1, 2)]
    bad = {"w": torch.full((3,), float("nan"), dtype=torch.float64), "n": torch.tensor(5)}
    mixed = fn.fomo_mix(reference, [*candidates, bad], torch.tensor([0.25, 0.75, 0.0]))
    assert_allclose(mixed["w"], 0.25 * candidates[0]["w"] + 0.75 * candidates[1]["w"], rtol=1e-12)
    assert mixed["n"].item() == 2
    kept = fn.fomo_mix(reference, candidates, torch.zeros(2))
    assert torch.equal(kept["w"], reference["w"])
    assert kept["w"].data_ptr() != reference["w"].data_ptr()


def test_trace_equals_both_matrices() -> None:
    h = normal(6, 4)
    gram = sum(float(h[i] @ h[i]) for i in range(6)) / 4  # tr of H[i, j] = h_i . h_j / m
    sigma = np.trace(sum(np.outer(row, row) for row in h.numpy())) / 4
    assert fn.gram_trace(h).item() == approx(gram, rel=1e-13) == approx(sigma, rel=1e-13)
    centred = h.numpy() - h.numpy().mean(0)
    near(fn.gram_trace(h, centred=True), (centred**2).sum() / 4, rel=1e-13)
    eigenvalues = np.linalg.eigvalsh(centred.T @ centred)
    near(fn.gram_trace(h, True, drop_smallest=True), eigenvalues[1:].sum() / 4)
    near(fn.gram_trace(h[:3], drop_smallest=True), fn.gram_trace(h[:3]).item())
    assert gradcheck(fn.gram_trace, h.clone().requires_grad_())


def test_trace_adds_up_over_batches_and_ends() -> None:
    h = normal(6, 4)
    near(fn.gram_trace(h[:2]) + fn.gram_trace(h[2:]), fn.gram_trace(h).item(), rel=1e-13)
    assert fn.gram_trace(h[:1], centred=True).item() == 0.0 and fn.gram_trace(h[:0]).item() == 0.0
    assert fn.gram_trace(h.float()).dtype == torch.float32


def test_ratio() -> None:
    local, other = normal(5, 3), normal(5, 3, seed=1)
    a, b = (local.numpy() ** 2).sum(), (other.numpy() ** 2).sum()
    near(fn.mixing_ratio(local, other), a / (a + b), rel=1e-13)
    assert fn.mixing_ratio(local, local).item() == 0.5
    assert fn.mixing_ratio(torch.zeros(2, 3), torch.zeros(2, 3)).item() == 0.5
    assert fn.mixing_ratio(torch.zeros(2, 3), torch.ones(2, 3)).item() == 0.0
    assert fn.mixing_ratio(local[:1], other[:1], centred=True).item() == 0.5
    # Squares exceed float32.
    assert fn.mixing_ratio(torch.full((2, 3), 1e25), torch.full((2, 3), 1e25)).item() == 0.5
    assert fn.trace_ratio(3.0, 1.0).item() == 0.75


def test_history_is_the_mean_of_earlier_rounds() -> None:
    assert fn.stabilised_ratio([], 0.3) == 0.3
    assert fn.stabilised_ratio([0.2, 0.4], 0.9) == approx(0.3)
    assert fn.stabilised_ratio([0.2, 0.4], 0.9, include_current=True) == approx(0.5)


def test_mixing_by_hand_leaves_counters_and_inputs() -> None:
    start, local, common = (
        {"w": torch.tensor(w, dtype=torch.float64), "n": torch.tensor(n)}
        for w, n in (([1.0, 2.0], 3), ([1.0, -1.0], 9), ([0.0, 4.0], 9))
    )
    mixed = fn.mix_updates(start, local, common, 0.25)
    assert mixed["w"].tolist() == [1.25, 4.75] and mixed["n"].item() == 3
    assert start["w"].tolist() == [1.0, 2.0]
    half = fn.mix_updates(start["w"], local["w"], common["w"], torch.tensor(0.5))
    assert half.tolist() == [1.5, 3.5]


def test_ratio_zero_is_fedavg_and_one_is_local_bit_for_bit() -> None:
    start, new, common = (normal(1000, seed=s).float() for s in range(3))
    broken = torch.full_like(start, float("nan"))
    assert torch.equal(fn.mix_updates(start, broken, common, 0.0), start + common)
    assert torch.equal(
        fn.mix_updates(start, new.double() - start.double(), broken.double(), 1.0), new
    )
