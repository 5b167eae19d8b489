"""Uniform sampling without replacement, as in FedAvg (McMahan et al. 2017, Algorithm 1)."""

from __future__ import annotations

from collections.abc import Sequence

from flray.registry import register_sampler
from flray.samplers.sampling import Sampling


@register_sampler("uniform")
def uniform(sampling: Sampling) -> Sequence[int]:
    """Every client with the same chance."""
    order: Sequence[int] = sampling.generator.permutation(len(sampling.clients)).tolist()
    return order[: sampling.size]
