"""Gaussian noise that belongs to a sample: the same in every batch, round and process, without being stored."""

import math

import torch
from torch import Tensor

_GOLDEN, _FIRST, _SECOND = (
    value - 2**64 for value in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
)


def sample_noise(rows: Tensor, size: int, seed: int) -> Tensor:
    """Return standard normal numbers that depend on nothing but row, position and seed.

    A counter-based generator: every pair of numbers is a hash (the finaliser of splitmix64, Steele et
    al. 2014) of the pair's index, turned into two normals by the Box-Muller transform. So samples
    need no generators.

    Parameters
    ----------
    rows : Tensor of int64 [B]
        The samples' rows.
    size : int
        Numbers per sample.
    seed : int
        63-bit key.

    Returns
    -------
    Tensor of float32 [B, size]
        On the device of `rows`.
    """
    pairs = -(-size // 2)
    index = rows[:, None] * pairs + torch.arange(pairs, device=rows.device)
    bits = index * _GOLDEN + seed
    bits = (bits ^ _shifted(bits, 30)) * _FIRST
    bits = (bits ^ _shifted(bits, 27)) * _SECOND
    bits = bits ^ _shifted(bits, 31)
    # 32 bits each: the first in (0, 1] so that its logarithm is finite, the second in [0, 1).
    radius = (-2 * ((_shifted(bits, 32) + 1).double() * 2.0**-32).log()).sqrt().float()
    angle = (bits & 0xFFFFFFFF).float() * (2 * math.pi * 2.0**-32)
    return torch.cat([radius * angle.cos(), radius * angle.sin()], 1)[:, :size]


def _shifted(bits: Tensor, by: int) -> Tensor:
    """Shift right without the sign."""
    return (bits >> by) & ((1 << (64 - by)) - 1)
