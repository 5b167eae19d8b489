import numpy as np
import pytest
import torch

from flray.functional import (
    apfl_alpha_gradient,
    apfl_alpha_step,
    apfl_mix,
    fomo_affinities,
    fomo_mix,
    fomo_weights,
    pull_to_mean,
)
from tests.functional.helpers import normal


def test_mixture_and_its_ends() -> None:
    v, w = (
        {"a": torch.tensor([1.0, 3.0]), "n": torch.tensor(4)},
        {"a": torch.tensor([2.0, -1.0]), "n": torch.tensor(9)},
    )
    mixed = apfl_mix(v, w, 0.25)
    assert mixed["a"].tolist() == [1.75, 0.0] and mixed["n"].item() == 4
    x, broken = normal(100).float(), torch.full((100,), float("nan"))
    assert torch.equal(apfl_mix(x, broken, 1.0), x) and torch.equal(apfl_mix(broken, x, 0.0), x)
    assert torch.equal(pull_to_mean(x, broken, 0.0), x) and torch.equal(
        pull_to_mean(broken, x, 1.0), x
    )
    assert apfl_mix(x, x, 1.0).data_ptr() != x.data_ptr()


def test_alpha_gradient_equals_finite_differences() -> None:
    v, w, data, target = normal(3), normal(3, seed=1), normal(5, 3, seed=2), normal(5, seed=3)

    def loss(alpha: float) -> float:
        return float(((data @ (alpha * v + (1 - alpha) * w) - target) ** 2).mean())

    mixture = apfl_mix(v, w, 0.4).requires_grad_()
    (gradient,) = torch.autograd.grad(((data @ mixture - target) ** 2).mean(), mixture)
    found = apfl_alpha_gradient({"x": v}, {"x": w}, {"x": gradient})
    assert found == pytest.approx((loss(0.4 + 1e-5) - loss(0.4 - 1e-5)) / 2e-5, rel=1e-7)
    assert apfl_alpha_gradient(v, w, gradient) == found
    assert [apfl_alpha_step(0.5, g, 0.1) for g in (1.0, 100.0, -100.0)] == [0.4, 0.0, 1.0]


def test_pull_leaves_the_mean_of_all_clients() -> None:
    clients = [normal(4, seed=s) for s in range(3)]
    mean = torch.stack(clients).mean(0)
    pulled = [pull_to_mean(x, mean, 0.3) for x in clients]
    torch.testing.assert_close(torch.stack(pulled).mean(0), mean, rtol=1e-12, atol=1e-15)
    torch.testing.assert_close(pulled[0], 0.7 * clients[0] + 0.3 * mean)


def test_fomo_weights_by_hand() -> None:
    losses = torch.tensor([1.0, 3.0, 1.5], dtype=torch.float64)
    affinities = fomo_affinities(2.0, losses, torch.tensor([0.5, 1.0, 2.0], dtype=torch.float64))
    np.testing.assert_allclose(affinities, [2.0, -1.0, 0.25], rtol=1e-10)
    np.testing.assert_allclose(fomo_weights(affinities), [2 / 2.25, 0.0, 0.25 / 2.25], rtol=1e-10)
    assert fomo_weights(torch.tensor([-1.0, 0.0])).tolist() == [0.0, 0.0] and fomo_weights(
        torch.empty(0)
    ).shape == (0,)


def test_broken_and_identical_candidates_get_no_weight() -> None:
    inf, nan = float("inf"), float("nan")
    affinities = fomo_affinities(
        2.0, torch.tensor([2.0, inf, nan, 1e30, 1.0]), torch.tensor([0.0, 1.0, 1.0, 1.0, nan])
    )
    assert torch.isfinite(affinities).all() and fomo_weights(affinities).tolist() == [0.0] * 5


def test_fomo_mix_equals_the_convex_form_when_weights_sum_to_one() -> None:
    reference = {"w": normal(3), "n": torch.tensor(2)}
    candidates = [{"w": normal(3, seed=s), "n": torch.tensor(s)} for s in (1, 2)]
    bad = {"w": torch.full((3,), float("nan"), dtype=torch.float64), "n": torch.tensor(5)}
    mixed = fomo_mix(reference, [*candidates, bad], torch.tensor([0.25, 0.75, 0.0]))
    np.testing.assert_allclose(
        mixed["w"], 0.25 * candidates[0]["w"] + 0.75 * candidates[1]["w"], rtol=1e-12
    )
    assert mixed["n"].item() == 2
    kept = fomo_mix(reference, candidates, torch.zeros(2))
    assert (
        torch.equal(kept["w"], reference["w"]) and kept["w"].data_ptr() != reference["w"].data_ptr()
    )
