"""Build a registered model from its name and options, with initial values that depend on nothing else."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from flray import registry, rng
from flray.errors import FlrayError


def build(
    name: str,
    shape: tuple[int, ...],
    num_classes: int,
    options: Mapping[str, Any],
    seed: int,
    dtype: torch.dtype = torch.float32,
) -> nn.Module:
    """Return a registered model, on the CPU, initialised from the seed.

    The same (name, shape, num_classes, options, seed) give the same bits; no global random state
    changes. Another `dtype` casts the float32 values, so that a float64 run starts at the same
    point.

    Parameters
    ----------
    name : str
        A registered model.
    shape : tuple of int
        Shape of one sample, without the batch.
    num_classes : int
        Number of logits.
    options : mapping
        The model's options, checked against its signature.
    seed : int
        The experiment's seed.
    dtype : torch.dtype
        Type of the parameters and floating buffers.

    Raises
    ------
    FlrayError
        If the model or an option is unknown, a value is not allowed, or the samples do not fit the
        network.
    """
    checked = registry.models.checked(name, options)
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        # Not torch.manual_seed, which would also seed the accelerators, whose state is not restored
        # here.
        torch.default_generator.manual_seed(rng.key(seed, "init", extra=name))
        model = registry.models.call(name, tuple(shape), num_classes, **checked)
    if not isinstance(model, nn.Module):
        raise FlrayError(
            f"model {name!r}: its builder returned {type(model).__name__}, not a torch.nn.Module"
        )
    return model.to(dtype=dtype)
