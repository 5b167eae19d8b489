"""Trees of tensors are packed and hashed to the bit; keys of random numbers never change."""

import math
import pickle
import random
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from flray import rng, trees
from tests.messages import refused

NAMES = st.text(alphabet="abcxyz._-", min_size=1, max_size=6)
DTYPES = [np.float64, np.float32, np.float16, np.int64, np.int32, np.uint8, np.bool_]
SHAPES = array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)
TENSORS = (
    st.sampled_from(DTYPES)
    .flatmap(lambda dtype: arrays(dtype, SHAPES))
    .map(lambda array: torch.from_numpy(np.array(array)))
)
INTEGERS = st.integers(-(2**60), 2**60)
LEAVES = st.one_of(TENSORS, INTEGERS, st.floats(), st.booleans(), st.none(), st.text(max_size=5))
INNER = st.recursive(LEAVES, lambda inner: st.dictionaries(NAMES, inner, max_size=3))
TREES = st.dictionaries(NAMES, INNER, max_size=5)


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[k], other[k]) for k in one)
    if isinstance(one, torch.Tensor):
        bits = [(x.dtype, x.shape, x.contiguous().numpy().tobytes()) for x in (one, other)]
        return bits[0] == bits[1]
    return type(one) is type(other) and (one == other or (one != one and other != other))


def ordered(tree: dict[str, Any]) -> dict[str, Any]:
    return {k: ordered(v) if isinstance(v, dict) else v for k, v in sorted(tree.items())}


@settings(max_examples=100, deadline=None)
@given(TREES)
def test_packing_and_unpacking_changes_nothing(tree: dict[str, Any]) -> None:
    packed = pickle.loads(pickle.dumps(trees.pack(tree), protocol=5))
    assert same(ordered(trees.unpack(packed)), ordered(tree))
    assert trees.sha256(trees.unpack(packed)) == trees.sha256(tree)
    assert packed.nbytes == trees.tensor_bytes(tree)
    assert same(trees.from_bytes(trees.to_bytes(tree)), tree)  # files keep the order too


def test_packed_tensors_are_aligned_and_apart_from_their_source() -> None:
    source = {"a": torch.arange(3.0), "b": {"c": torch.ones(2, 2)}}
    packed = trees.pack(source)
    assert all(leaf.offset % 64 == 0 for leaf in packed.leaves)
    source["a"].zero_()  # type: ignore[union-attr]
    assert trees.unpack(packed)["a"].tolist() == [0.0, 1.0, 2.0]


def test_no_byte_of_the_memory_before_leaves_with_a_buffer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(np, "empty", lambda size, dtype: np.full(size, 0xAB, dtype))
    sizes = {"a": (3,), "none": (0, 2), "b": (16,), "c": (1,)}
    tree = {name: torch.zeros(size) for name, size in sizes.items()}
    assert len(packed := trees.pack(tree).data) == 192 and not packed.any()


def test_numbers_and_texts_of_other_kinds_are_plain_ones() -> None:
    tree: dict[str, Any] = {"a": np.float64(0.1), "b": np.str_("x"), "c": OrderedDict()}
    tree["d"] = {"e": np.float64("nan")}
    plain = trees.from_bytes(trees.to_bytes(tree))
    assert trees.sha256(tree) == trees.sha256(plain)
    assert {type(value) for value in trees.unpack(trees.pack(tree)).values()} == {float, str, dict}


def test_channels_last_and_contiguous_have_one_digest() -> None:
    x = torch.randn(2, 3, 4, 5, generator=torch.Generator().manual_seed(0))
    y = x.to(memory_format=torch.channels_last)
    assert trees.sha256({"x": x}) == trees.sha256({"x": y})
    assert trees.sha256(trees.unpack(trees.pack({"x": y}))) == trees.sha256({"x": x})


ONE = torch.tensor([1.0, 0.0])
OTHERS = [{"x": torch.tensor([1.0, second])} for second in (-0.0, math.nan)]
OTHERS += [{"x": ONE.double()}, {"x": ONE[None]}, {"y": ONE}, {}]


@pytest.mark.parametrize("other", OTHERS)
def test_the_digest_sees_every_bit(other: dict[str, Any]) -> None:
    assert trees.sha256(other) != trees.sha256({"x": ONE})


def test_what_a_tree_cannot_hold_is_named() -> None:
    wrong: list[dict[Any, Any]] = [{"a/b": 1}, {1: 2}, {"a": {"b": [1]}}, {"a": np.ones(2)}]
    for tree in wrong:
        refused(trees.pack, tree)


def test_a_key_never_changes_and_every_part_of_it_counts() -> None:
    assert rng.key(0, "batches", round=3, client=7) == 1030357466397252975
    refused(rng.key, 0, "batch")  # type: ignore[arg-type]
    base: dict[str, Any] = {"round": 1, "client": 2, "extra": 3}
    numbers = {
        *(rng.key(0, "batches", **base), rng.key(1, "batches", **base)),
        *(rng.key(0, "batches", **{**base, part: 9}) for part in base),
        *(rng.key(0, "batches", round=12, client=3), rng.key(0, "batches", round=1, client=23)),
        rng.key(0, "noise", **base),
        rng.key(0, "batches", round=1, client=23),
    }
    assert len(numbers) == 8 and all(0 <= number < 2**63 for number in numbers)


def test_generators_leave_the_global_states_alone() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # type: ignore[index]
    torch.randn(3, generator=rng.torch_generator(0, "noise"))
    rng.numpy_generator(0, "noise").normal(size=3)
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])  # type: ignore[index]
    assert before[2] == random.getstate()
