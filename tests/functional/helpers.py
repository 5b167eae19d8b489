"""Values for the equations: normal numbers that a seed decides, and what an absent entry may hold without effect."""

from __future__ import annotations

import numpy as np
import torch

F64 = torch.float64
POISONS = [float("nan"), float("inf"), -float("inf"), 1e300]


def normal(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))
