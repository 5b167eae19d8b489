from typing import Any

import numpy as np
import pytest
import torch

from flray.functional import WeightedMean, weighted_mean
from flray.functional.averaging import PIECE


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
    mean = weighted_mean(clients, weights)
    for name in ("w", "b"):
        total = (
            sum(w * c[name].double().numpy() for w, c in zip(weights, clients, strict=True)) / 11.5
        )
        np.testing.assert_array_equal(mean[name].numpy(), total.astype(np.float32))
    assert mean["seen"].item() == max(c["seen"].item() for c in clients)


def test_streaming_gives_the_same_bits_and_copies_its_inputs() -> None:
    clients, weights = trees(5), torch.tensor([0.1, 0.2, 0.3, 0.15, 0.25], dtype=torch.float64)
    mean = WeightedMean()
    for client, weight in zip(clients, weights, strict=True):
        scratch = {name: value.clone() for name, value in client.items()}
        mean.add(scratch, weight.item())
        for value in scratch.values():
            value.fill_(99)
    expected = weighted_mean(clients, weights)
    assert all(torch.equal(mean.result()[name], expected[name]) for name in expected)
    mean.add(clients[0], 1.0)
    expected = weighted_mean([*clients, clients[0]], [*weights, 1.0])
    assert all(torch.equal(mean.result()[name], expected[name]) for name in expected)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_one_tree_gives_itself(dtype: torch.dtype) -> None:
    (client,) = trees(1, dtype)
    for weight in (49.0, 0.1, 1 / 3):
        mean = weighted_mean([client], [weight])
        assert all(torch.equal(mean[n], v) and mean[n].dtype == v.dtype for n, v in client.items())
        assert mean["w"].data_ptr() != client["w"].data_ptr()


@pytest.mark.parametrize(
    "weights", [[1] * 100, [2**29 - 1] * 7, [3, 536870911, 12345, 1], list(range(1, 200))]
)
def test_identical_float32_trees_give_exactly_that_tree(weights: list[int]) -> None:
    (client,) = trees(1)
    client["extreme"] = torch.tensor([1e-42, 3.4e38, -0.1, 0.0, 1 / 3])
    mean = weighted_mean([client] * len(weights), weights)
    assert all(torch.equal(mean[name], value) for name, value in client.items())


def test_weight_zero_has_no_influence() -> None:
    clients = trees(3)
    broken, huge = float("nan"), torch.tensor(10**6)
    bad = {"w": torch.full((3, 5), broken), "b": torch.tensor(broken), "seen": huge}
    with_bad = weighted_mean([bad, *clients[:2], bad, clients[2]], [0, 1, 2, 0, 3])
    without = weighted_mean(clients, [1, 2, 3])
    assert all(torch.equal(with_bad[name], without[name]) for name in without)


def test_counters_and_flags_take_the_maximum_exactly() -> None:
    big = 2**62 + 1  # would not survive a float
    one = {"n": torch.tensor([big, 1]), "f": torch.tensor([True, False])}
    other = {"n": torch.tensor([5, 2]), "f": torch.tensor([False, False])}
    mean = weighted_mean([one, other], [1, 1000])
    assert mean["n"].tolist() == [big, 2] and mean["f"].tolist() == [True, False]


def test_it_is_detached() -> None:
    clients = trees(6)
    clients[0]["w"].requires_grad_()
    mean = weighted_mean(clients, [1, 5, 2, 0.1, 9, 3])["w"]
    assert not mean.requires_grad
    assert weighted_mean([{}, {}], [1, 1]) == {}


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
        weighted_mean(trees(number), weights)


def test_unequal_trees_are_refused() -> None:
    one = {"w": torch.zeros(2)}
    for other, message in (
        ({"v": torch.zeros(2)}, r"missing \['w'\], unexpected \['v'\]"),
        ({"w": torch.zeros(3)}, r"tree\['w'\]: shape \[3\], expected \[2\]"),
        ({"w": torch.zeros(2).double()}, "dtype torch.float64"),
    ):
        with pytest.raises(ValueError, match=message):
            weighted_mean([one, other], [1, 1])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_merged_blocks_are_the_sum_of_their_sums(dtype: torch.dtype, size: int) -> None:
    clients, weights = trees(7, dtype), [3.0, 1.0, 0.5, 7.0, 0.0, 1 / 3, 11.0]
    whole = WeightedMean()
    total: dict[str, Any] = dict.fromkeys(("w", "b", "weight"), 0.0)
    for start in range(0, 7, size):
        block = WeightedMean()
        for client, weight in zip(
            clients[start : start + size], weights[start : start + size], strict=True
        ):
            block.add(client, weight)
        partial = block.partial()
        whole.merge(partial)
        for tensor in partial["sums"].values():
            tensor.fill_(99)  # it was copied
        total["weight"] += sum(weights[start : start + size])
        for name in ("w", "b"):
            terms = [w * c[name].double().numpy() for w, c in zip(weights, clients, strict=True)][
                start : start + size
            ]
            total[name] = total[name] + sum(terms)
    mean, plain = whole.result(), weighted_mean(clients, weights)
    for name in ("w", "b"):
        expected = torch.as_tensor(total[name] / total["weight"]).to(dtype)
        assert torch.equal(mean[name], expected) and mean[name].dtype == dtype
        torch.testing.assert_close(
            mean[name], plain[name], rtol=1e-12 if dtype == torch.float64 else 1e-2, atol=1e-15
        )
    assert torch.equal(mean["seen"], plain["seen"])
    if size in (1, 7):
        assert all(torch.equal(mean[name], plain[name]) for name in plain)


def test_merging_blocks_without_weight_and_unequal_ones() -> None:
    clients, nothing, whole = trees(3), WeightedMean(), WeightedMean()
    nothing.add({name: torch.full_like(value, 5) for name, value in clients[0].items()}, 0.0)
    whole.merge(nothing.partial())
    with pytest.raises(ValueError, match="all zero"):
        whole.result()
    pair = WeightedMean()
    for client in clients[:2]:
        pair.add(client, 2.0)
    for part in (pair, nothing):
        whole.merge(part.partial())
    assert all(
        torch.equal(whole.result()[n], v) for n, v in weighted_mean(clients[:2], [2, 2]).items()
    )
    other = WeightedMean()
    for client in trees(2, torch.float64):
        other.add(client, 1.0)
    with pytest.raises(
        ValueError, match=r"partial\['w'\]: dtype torch.float64, expected torch.float32"
    ):
        whole.merge(other.partial())


def test_large_tensors_get_the_same_bits_piece_by_piece() -> None:
    """Those of a network such as AlexNet are computed a part at a time."""
    shapes = {"long": (2 * PIECE + 5,), "kernels": (3, PIECE // 4, 2, 1), "one": (), "none": (0, 7)}
    generator = torch.Generator().manual_seed(0)
    made = [
        {name: torch.randn(shape, generator=generator) for name, shape in shapes.items()}
        for _ in range(3)
    ]
    made[1]["kernels"] = made[1]["kernels"].to(memory_format=torch.channels_last)
    weights = [3.0, 0.1, 7.0]
    mean = weighted_mean(made, weights)
    for name in shapes:
        total = made[0][name].double() * weights[0]
        for tree, weight in zip(made[1:], weights[1:], strict=True):
            total = total + tree[name].double() * weight
        assert torch.equal(mean[name], (total / sum(weights)).float())
        assert mean[name].is_contiguous()
