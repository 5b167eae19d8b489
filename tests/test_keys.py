"""Streams are looked up by key: the same wherever they are used, and apart from every other one."""

import random
from typing import Any

import numpy as np
import pytest
import torch

from flray import rng


def test_a_key_never_changes() -> None:
    assert rng.key(0, "batches", round=3, client=7) == 1030357466397252975


def test_every_part_of_a_key_counts() -> None:
    base: dict[str, Any] = {"round": 1, "client": 2, "extra": 3}
    numbers = {
        rng.key(0, "batches", **base),
        rng.key(1, "batches", **base),
        rng.key(0, "noise", **base),
        *(rng.key(0, "batches", **{**base, part: 9}) for part in base),
        rng.key(0, "batches", round=12, client=3),
        rng.key(0, "batches", round=1, client=23),
    }
    assert len(numbers) == 8
    assert all(0 <= number < 2**63 for number in numbers)


def test_a_misspelt_purpose_is_refused() -> None:
    with pytest.raises(ValueError, match="unknown purpose 'batch'"):
        rng.key(0, "batch")  # type: ignore[arg-type]


def test_generators_leave_the_global_states_alone() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # type: ignore[index]
    torch.randn(3, generator=rng.torch_generator(0, "noise"))
    rng.numpy_generator(0, "noise").normal(size=3)
    assert torch.equal(before[0], torch.get_rng_state())
    assert np.array_equal(before[1], np.random.get_state()[1])  # type: ignore[index]
    assert before[2] == random.getstate()


def test_the_same_key_gives_the_same_numbers() -> None:
    one, two = (
        torch.randn(5, generator=rng.torch_generator(3, "noise", round=2)) for _ in range(2)
    )
    assert torch.equal(one, two)
    assert rng.numpy_generator(3, "noise").integers(1 << 30) == rng.numpy_generator(
        3, "noise"
    ).integers(1 << 30)
