"""Values for the equations: normal numbers that a seed decides, and what an absent entry may hold without effect."""

from typing import Any

import numpy as np
import pytest
import torch

F64 = torch.float64
POISONS = [float("nan"), float("inf"), -float("inf"), 1e300]


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def f64(values: Any, **options: Any) -> torch.Tensor:
    """Return numbers with 53 bits."""
    return torch.tensor(values, dtype=F64, **options)


def near(found: Any, expected: Any, rel: float = 1e-12, abs: float | None = None) -> None:
    """Compare a number with the one that was worked out."""
    assert found.item() == pytest.approx(expected, rel=rel, abs=abs)


def flat(loss: torch.Tensor, *leaves: torch.Tensor) -> None:
    """Assert that a loss is zero and moves nothing."""
    assert loss.item() == 0.0
    assert not any(gradient.any() for gradient in torch.autograd.grad(loss, leaves))
