import numpy as np
import pytest
import torch

from flray.functional import adaptive_step, control_variate, meta_gradient, momentum_step
from tests.functional.helpers import normal


def test_momentum_by_hand_and_as_fedavg() -> None:
    step, momentum = momentum_step(
        torch.tensor([1.0, -2.0]), torch.tensor([10.0, 0.0]), lr=0.5, beta=0.9
    )
    assert momentum.tolist() == [10.0, -2.0] and step.tolist() == [5.0, -1.0]
    update = normal(5).float()
    assert torch.equal(momentum_step(update, torch.zeros(5), lr=1.0, beta=0.0)[0], update)


@pytest.mark.parametrize("rule", ["adagrad", "adam", "yogi"])
def test_adaptive_rules_equal_the_formulas_over_steps(rule: str) -> None:
    m, v = torch.zeros(4, dtype=torch.float64), torch.full((4,), 1e-6, dtype=torch.float64)
    m_np, v_np = m.numpy().copy(), v.numpy().copy()
    for seed in range(4):
        update = normal(4, seed=seed)
        d = update.numpy()
        m_np = 0.8 * m_np + (1 - 0.8) * d
        if rule == "adagrad":
            v_np = v_np + d**2
        elif rule == "adam":
            v_np = 0.95 * v_np + (1 - 0.95) * d**2
        else:
            v_np = v_np - (1 - 0.95) * d**2 * np.sign(v_np - d**2)
        step, m, v = adaptive_step(update, m, v, rule, 0.3, 0.8, 0.95, 1e-2)  # type: ignore[arg-type]
        np.testing.assert_allclose(step, 0.3 * m_np / (np.sqrt(v_np) + 1e-2), rtol=1e-12)
    np.testing.assert_allclose(v, v_np, rtol=1e-12)


def test_adaptive_identities() -> None:
    update, zero = normal(6), torch.zeros(6, dtype=torch.float64)
    first, _, _ = adaptive_step(update, zero, zero, "adagrad", lr=0.1, beta1=0.9, tau=1e-12)
    np.testing.assert_allclose(first.abs(), np.full(6, 0.01), rtol=1e-9)
    still, _, _ = adaptive_step(zero, zero, zero, "adam")
    assert not still.any()
    _, _, adam = adaptive_step(update, zero, zero, "adam")
    _, _, yogi = adaptive_step(update, zero, zero, "yogi")
    assert torch.equal(adam, yogi)
    plain, _, _ = adaptive_step(update, zero, zero, "adam", lr=1e6, beta1=0.0, tau=1e6)
    np.testing.assert_allclose(plain, update, rtol=2e-6)


def test_trees_keep_counters() -> None:
    trees = [{"w": torch.ones(2), "n": torch.tensor(3)} for _ in range(3)]
    step, momentum, variance = adaptive_step(*trees)
    assert all(
        tree["n"].item() == 3 and tree["w"].dtype == torch.float32
        for tree in (step, momentum, variance)
    )


def test_control_variate_is_the_mean_gradient_after_round_one() -> None:
    start, gradients = normal(3), [normal(3, seed=s) for s in (1, 2, 3)]
    end = start - 0.1 * sum(gradients)
    zero = torch.zeros_like(start)
    found = control_variate(zero, zero, start, end, lr_sum=0.3)
    np.testing.assert_allclose(found, (sum(gradients) / 3), rtol=1e-12)
    own, common = normal(3, seed=4), normal(3, seed=5)
    np.testing.assert_allclose(
        control_variate(own, common, start, end, 0.3), own - common + found, rtol=1e-12
    )


def test_meta_gradient_is_exact_for_a_quadratic() -> None:
    hessian = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    w, g = normal(2), normal(2, seed=1)
    found = meta_gradient(g, hessian @ (w + 1e-3 * g), hessian @ (w - 1e-3 * g), 0.01, 1e-3)
    np.testing.assert_allclose(found, g - 0.01 * hessian @ g, rtol=1e-9)
    assert torch.equal(meta_gradient(g, w, -w, 0.0, 1e-3), g)
