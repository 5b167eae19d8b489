"""Means of parameters to the bit, and how personal models are mixed."""

import builtins
import math
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch.testing import assert_close

import flray.functional as fn
from flray import bits
from flray.functional.averaging import PIECE
from tests.functional.helpers import near, normal
from tests.messages import refused


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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("weight", [50.0, 2.0**29 - 1, 2.0**40 + 1, 0.3])
def test_each_product_and_each_sum_is_rounded_once(weight: float, dtype: str) -> None:
    rng = np.random.default_rng(1)
    values = (rng.normal(size=(3, 4000)) * 10.0 ** rng.integers(-44, 30, (3, 4000))).astype(dtype)
    mean, total = fn.WeightedMean(), np.zeros(4000)
    for one in values:
        mean.add({"w": torch.from_numpy(one)}, weight)
        total = total + one.astype(np.float64) * weight
    assert np.array_equal(mean.partial()["sums"]["w"].numpy(), total)


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
    ("number", "weights"),
    [
        (0, []),
        (2, [1.0]),
        (2, [1.0, -1.0]),
        (2, [1.0, float("nan")]),
        (2, [1.0, float("inf")]),
        (2, [0.0, 0.0]),
    ],
)
def test_unusable_weights_are_refused(number: int, weights: list[float]) -> None:
    refused(fn.weighted_mean, trees(number), weights)


def test_unequal_trees_are_refused() -> None:
    zero = torch.zeros(2)
    for other in ({"v": zero}, {"w": torch.zeros(3)}, {"w": zero.double()}):
        refused(fn.weighted_mean, [{"w": zero}, other], [1, 1])


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
        total["weight"] += bits.total(weight for _, weight in some)
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
    refused(whole.result)
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
    refused(whole.merge, other.partial())


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


def test_trees_keep_counters() -> None:
    trees = [{"w": torch.ones(2), "n": torch.tensor(3)} for _ in range(3)]
    step, momentum, variance = fn.adaptive_step(*trees)
    assert all(
        tree["n"].item() == 3 and tree["w"].dtype == torch.float32
        for tree in (step, momentum, variance)
    )


def test_mixture_and_its_ends() -> None:
    v = {"a": torch.tensor([1.0, 3.0]), "n": torch.tensor(4)}
    w = {"a": torch.tensor([2.0, -1.0]), "n": torch.tensor(9)}
    mixed = fn.apfl_mix(v, w, 0.25)
    assert mixed["a"].tolist() == [1.75, 0.0] and mixed["n"].item() == 4
    x, broken = normal(100).float(), torch.full((100,), float("nan"))
    assert torch.equal(fn.apfl_mix(x, broken, 1.0), x)
    assert torch.equal(fn.apfl_mix(broken, x, 0.0), x)
    assert torch.equal(fn.pull_to_mean(x, broken, 0.0), x)
    assert torch.equal(fn.pull_to_mean(broken, x, 1.0), x)
    assert fn.apfl_mix(x, x, 1.0).data_ptr() != x.data_ptr()


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


def test_ratio_zero_is_fedavg_and_one_is_local_bit_for_bit() -> None:
    start, new, common = (normal(1000, seed=s).float() for s in range(3))
    broken = torch.full_like(start, float("nan"))
    assert torch.equal(fn.mix_updates(start, broken, common, 0.0), start + common)
    assert torch.equal(
        fn.mix_updates(start, new.double() - start.double(), broken.double(), 1.0), new
    )


def test_no_bit_depends_on_the_version_of_python(monkeypatch: pytest.MonkeyPatch) -> None:
    """From 3.12 on Python's sum of floats compensates for rounding, much as fsum does: ten tenths are 1."""
    monkeypatch.setattr(builtins, "sum", math.fsum)
    tenths = [0.1] * 10
    assert fn.stabilised_ratio(tenths, 0.0) == 0.09999999999999999
    tree = {str(i): torch.tensor([x], dtype=torch.float64) for i, x in enumerate(tenths)}
    zero, one = ({name: torch.full_like(w, x) for name, w in tree.items()} for x in (0.0, 1.0))
    assert fn.apfl_alpha_gradient(tree, zero, one) == 0.9999999999999999
