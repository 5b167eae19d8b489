"""Means of parameters, the server's steps and penalties against their formulas."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch.autograd import grad
from torch.testing import assert_close

import flray.functional as fn
from flray.functional.averaging import PIECE
from tests.functional.helpers import normal


def trees(number: int, dtype: torch.dtype = torch.float32) -> list[dict[str, torch.Tensor]]:
    rng = np.random.default_rng(0)
    return [
        {
            "w": torch.from_numpy(rng.normal(size=(3, 5))).to(dtype),
            "b": torch.tensor(rng.normal()).to(dtype),
            "seen": torch.tensor(int(rng.integers(100))),
        }
        for _ in range(number)
    ]


def test_equals_a_loop_in_float64() -> None:
    clients, weights = trees(4), [3.0, 1.0, 0.5, 7.0]
    mean = fn.weighted_mean(clients, weights)
    for name in ("w", "b"):
        total = (
            sum(w * c[name].double().numpy() for w, c in zip(weights, clients, strict=True)) / 11.5
        )
        np.testing.assert_array_equal(mean[name].numpy(), total.astype(np.float32))
    assert mean["seen"].item() == max(c["seen"].item() for c in clients)


def test_streaming_gives_the_same_bits_and_copies_its_inputs() -> None:
    clients, weights = trees(5), torch.tensor([0.1, 0.2, 0.3, 0.15, 0.25], dtype=torch.float64)
    mean = fn.WeightedMean()
    for client, weight in zip(clients, weights, strict=True):
        scratch = {name: value.clone() for name, value in client.items()}
        mean.add(scratch, weight.item())
        for value in scratch.values():
            value.fill_(99)
    expected = fn.weighted_mean(clients, weights)
    assert all(torch.equal(mean.result()[name], expected[name]) for name in expected)
    mean.add(clients[0], 1.0)
    expected = fn.weighted_mean([*clients, clients[0]], [*weights, 1.0])
    assert all(torch.equal(mean.result()[name], expected[name]) for name in expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_one_tree_gives_itself(dtype: torch.dtype) -> None:
    (client,) = trees(1, dtype)
    for weight in (49.0, 0.1, 1 / 3):
        mean = fn.weighted_mean([client], [weight])
        assert all(torch.equal(mean[n], v) and mean[n].dtype == v.dtype for n, v in client.items())
        assert mean["w"].data_ptr() != client["w"].data_ptr()


@pytest.mark.parametrize(
    "weights", [[1] * 100, [2**29 - 1] * 7, [3, 536870911, 12345, 1], list(range(1, 200))]
)
def test_identical_float32_trees_give_exactly_that_tree(weights: list[int]) -> None:
    (client,) = trees(1)
    client["extreme"] = torch.tensor([1e-42, 3.4e38, -0.1, 0.0, 1 / 3])
    mean = fn.weighted_mean([client] * len(weights), weights)
    assert all(torch.equal(mean[name], value) for name, value in client.items())


def test_weight_zero_has_no_influence() -> None:
    clients = trees(3)
    broken, huge = float("nan"), torch.tensor(10**6)
    bad = {"w": torch.full((3, 5), broken), "b": torch.tensor(broken), "seen": huge}
    with_bad = fn.weighted_mean([bad, *clients[:2], bad, clients[2]], [0, 1, 2, 0, 3])
    without = fn.weighted_mean(clients, [1, 2, 3])
    assert all(torch.equal(with_bad[name], without[name]) for name in without)


def test_counters_and_flags_take_the_maximum_exactly() -> None:
    big = 2**62 + 1  # would not survive a float
    one = {"n": torch.tensor([big, 1]), "f": torch.tensor([True, False])}
    other = {"n": torch.tensor([5, 2]), "f": torch.tensor([False, False])}
    mean = fn.weighted_mean([one, other], [1, 1000])
    assert mean["n"].tolist() == [big, 2] and mean["f"].tolist() == [True, False]


def test_it_is_detached() -> None:
    clients = trees(6)
    clients[0]["w"].requires_grad_()
    mean = fn.weighted_mean(clients, [1, 5, 2, 0.1, 9, 3])["w"]
    assert not mean.requires_grad
    assert fn.weighted_mean([{}, {}], [1, 1]) == {}


@pytest.mark.parametrize(
    "number, weights, message",
    [
        (0, [], "none given"),
        (2, [1.0], r"weights: shape \[1\], expected \[2\]"),
        (2, [1.0, -1.0], "weight: -1.0"),
        (2, [1.0, float("nan")], "weight: nan"),
        (2, [1.0, float("inf")], "weight: inf"),
        (2, [0.0, 0.0], "all zero"),
    ],
)
def test_unusable_weights_are_refused(number: int, weights: list[float], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        fn.weighted_mean(trees(number), weights)


def test_unequal_trees_are_refused() -> None:
    one = {"w": torch.zeros(2)}
    for other, message in (
        ({"v": torch.zeros(2)}, r"missing \['w'\], unexpected \['v'\]"),
        ({"w": torch.zeros(3)}, r"tree\['w'\]: shape \[3\], expected \[2\]"),
        ({"w": torch.zeros(2).double()}, "dtype torch.float64"),
    ):
        with pytest.raises(ValueError, match=message):
            fn.weighted_mean([one, other], [1, 1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_merged_blocks_are_the_sum_of_their_sums(dtype: torch.dtype, size: int) -> None:
    clients, weights = trees(7, dtype), [3.0, 1.0, 0.5, 7.0, 0.0, 1 / 3, 11.0]
    pairs, whole = list(zip(clients, weights, strict=True)), fn.WeightedMean()
    total: dict[str, Any] = dict.fromkeys(("w", "b", "weight"), 0.0)
    for start in range(0, 7, size):
        block, some = fn.WeightedMean(), pairs[start : start + size]
        for client, weight in some:
            block.add(client, weight)
        partial = block.partial()
        whole.merge(partial)
        for tensor in partial["sums"].values():
            tensor.fill_(99)  # it was copied
        total["weight"] += sum(weight for _, weight in some)
        for name in ("w", "b"):
            total[name] = total[name] + sum(w * c[name].double().numpy() for c, w in some)
    mean, plain = whole.result(), fn.weighted_mean(clients, weights)
    for name in ("w", "b"):
        expected = torch.as_tensor(total[name] / total["weight"]).to(dtype)
        assert torch.equal(mean[name], expected) and mean[name].dtype == dtype
        near = 1e-12 if dtype == torch.float64 else 1e-2
        assert_close(mean[name], plain[name], rtol=near, atol=1e-15)
    assert torch.equal(mean["seen"], plain["seen"])
    if size in (1, 7):
        assert all(torch.equal(mean[name], plain[name]) for name in plain)


def test_merging_blocks_without_weight_and_unequal_ones() -> None:
    clients, nothing, whole = trees(3), fn.WeightedMean(), fn.WeightedMean()
    nothing.add({name: torch.full_like(value, 5) for name, value in clients[0].items()}, 0.0)
    whole.merge(nothing.partial())
    with pytest.raises(ValueError, match="all zero"):
        whole.result()
    pair = fn.WeightedMean()
    for client in clients[:2]:
        pair.add(client, 2.0)
    for part in (pair, nothing):
        whole.merge(part.partial())
    expected = fn.weighted_mean(clients[:2], [2, 2])
    assert all(torch.equal(whole.result()[name], value) for name, value in expected.items())
    other = fn.WeightedMean()
    for client in trees(2, torch.float64):
        other.add(client, 1.0)
    said = r"partial\['w'\]: dtype torch.float64, expected torch.float32"
    with pytest.raises(ValueError, match=said):
        whole.merge(other.partial())


def test_large_tensors_get_the_same_bits_piece_by_piece() -> None:
    """Those of a network such as AlexNet are computed a part at a time."""
    shapes = {"long": (2 * PIECE + 5,), "kernels": (3, PIECE // 4, 2, 1), "one": (), "none": (0, 7)}
    generator = torch.Generator().manual_seed(0)
    made = [{n: torch.randn(s, generator=generator) for n, s in shapes.items()} for _ in range(3)]
    made[1]["kernels"] = made[1]["kernels"].to(memory_format=torch.channels_last)
    weights = [3.0, 0.1, 7.0]
    mean = fn.weighted_mean(made, weights)
    for name in shapes:
        total = made[0][name].double() * weights[0]
        for tree, weight in zip(made[1:], weights[1:], strict=True):
            total = total + tree[name].double() * weight
        assert torch.equal(mean[name], (total / sum(weights)).float())
        assert mean[name].is_contiguous()


def test_momentum_by_hand_and_as_fedavg() -> None:
    step, momentum = fn.momentum_step(
        torch.tensor([1.0, -2.0]), torch.tensor([10.0, 0.0]), lr=0.5, beta=0.9
    )
    assert momentum.tolist() == [10.0, -2.0] and step.tolist() == [5.0, -1.0]
    update = normal(5).float()
    assert torch.equal(fn.momentum_step(update, torch.zeros(5), lr=1.0, beta=0.0)[0], update)


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
        step, m, v = fn.adaptive_step(update, m, v, rule, 0.3, 0.8, 0.95, 1e-2)  # type: ignore[arg-type]
        assert_allclose(step, 0.3 * m_np / (np.sqrt(v_np) + 1e-2), rtol=1e-12)
    assert_allclose(v, v_np, rtol=1e-12)


def test_adaptive_identities() -> None:
    update, zero = normal(6), torch.zeros(6, dtype=torch.float64)
    first, _, _ = fn.adaptive_step(update, zero, zero, "adagrad", lr=0.1, beta1=0.9, tau=1e-12)
    assert_allclose(first.abs(), np.full(6, 0.01), rtol=1e-9)
    still, _, _ = fn.adaptive_step(zero, zero, zero, "adam")
    assert not still.any()
    _, _, adam = fn.adaptive_step(update, zero, zero, "adam")
    _, _, yogi = fn.adaptive_step(update, zero, zero, "yogi")
    assert torch.equal(adam, yogi)
    plain, _, _ = fn.adaptive_step(update, zero, zero, "adam", lr=1e6, beta1=0.0, tau=1e6)
    assert_allclose(plain, update, rtol=2e-6)


def test_trees_keep_counters() -> None:
    trees = [{"w": torch.ones(2), "n": torch.tensor(3)} for _ in range(3)]
    step, momentum, variance = fn.adaptive_step(*trees)
    assert all(
        tree["n"].item() == 3 and tree["w"].dtype == torch.float32
        for tree in (step, momentum, variance)
    )


def test_control_variate_is_the_mean_gradient_after_round_one() -> None:
    start, gradients = normal(3), [normal(3, seed=s) for s in (1, 2, 3)]
    end = start - 0.1 * sum(gradients)
    zero = torch.zeros_like(start)
    found = fn.control_variate(zero, zero, start, end, lr_sum=0.3)
    assert_allclose(found, (sum(gradients) / 3), rtol=1e-12)
    own, common = normal(3, seed=4), normal(3, seed=5)
    assert_allclose(
        fn.control_variate(own, common, start, end, 0.3), own - common + found, rtol=1e-12
    )


def test_meta_gradient_is_exact_for_a_quadratic() -> None:
    hessian = torch.tensor([[2.0, 0.5], [0.5, 1.0]], dtype=torch.float64)
    w, g = normal(2), normal(2, seed=1)
    found = fn.meta_gradient(g, hessian @ (w + 1e-3 * g), hessian @ (w - 1e-3 * g), 0.01, 1e-3)
    assert_allclose(found, g - 0.01 * hessian @ g, rtol=1e-9)
    assert torch.equal(fn.meta_gradient(g, w, -w, 0.0, 1e-3), g)


def tree(seed: int) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(seed)
    return {
        "w": torch.from_numpy(rng.normal(size=(2, 3))),
        "b": torch.from_numpy(rng.normal(size=2)),
    }


def test_proximal_value_and_gradient() -> None:
    parameters, reference = {k: v.requires_grad_() for k, v in tree(0).items()}, tree(1)
    loss = fn.proximal_penalty(parameters, reference, 0.3)
    squares = sum(((parameters[k] - reference[k]) ** 2).sum().item() for k in parameters)
    assert loss.item() == pytest.approx(0.15 * squares, rel=1e-13)
    gradients = grad(loss, list(parameters.values()))
    for name, gradient in zip(parameters, gradients, strict=True):
        assert_close(
            gradient, 0.3 * (parameters[name] - reference[name]).detach(), rtol=1e-13, atol=0
        )


def test_no_gradient_at_the_reference_and_none_into_it() -> None:
    parameters = {k: v.requires_grad_() for k, v in tree(0).items()}
    for loss in (
        fn.proximal_penalty(parameters, parameters, 5.0),
        fn.ewc_penalty(parameters, parameters, tree(1), 5.0),
    ):
        gradients = grad(loss, list(parameters.values()))
        assert loss.item() == 0.0 and not any(gradient.any() for gradient in gradients)


def test_ewc_value_gradient_and_reduction_to_proximal() -> None:
    parameters, anchor = {k: v.requires_grad_() for k, v in tree(0).items()}, tree(1)
    fisher = {k: v.square() for k, v in tree(2).items()}
    loss = fn.ewc_penalty(parameters, anchor, fisher, 0.7)
    expected = sum((fisher[k] * (parameters[k] - anchor[k]) ** 2).sum().item() for k in parameters)
    assert loss.item() == pytest.approx(0.35 * expected, rel=1e-13)
    (gradient,) = grad(loss, parameters["w"])
    assert_close(gradient, (0.7 * fisher["w"] * (parameters["w"] - anchor["w"])).detach())
    ones = {k: torch.ones_like(v) for k, v in anchor.items()}
    assert torch.equal(
        fn.ewc_penalty(parameters, anchor, ones, 0.7), fn.proximal_penalty(parameters, anchor, 0.7)
    )
