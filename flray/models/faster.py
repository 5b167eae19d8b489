"""The same network run faster: in bfloat16. What is changed is ``forward``; names and values stay."""

from __future__ import annotations

from types import MethodType

import torch
from torch import Tensor, nn


def in_bfloat16(model: nn.Module) -> None:
    """Have a network compute in bfloat16 from now on, wherever torch's autocast deems it safe, and return float32.

    Parameters stay float32. The border is the network's, or each part's of a split one, since methods call these
    alone: what comes out is float32 again, so that losses, distances, similarities and correlations are formed with 24
    bits instead of 8. Copies of the model compute likewise.

    Parameters
    ----------
    model : nn.Module
        Its parameters are float32; changed in place.
    """
    for part in {model, *parts(model)}:
        part.forward = MethodType(_lowered, part)


def parts(model: nn.Module) -> list[nn.Module]:
    """Return what methods call: features and classifier of a split network, else the network itself."""
    split = isinstance(getattr(model, "features", None), nn.Module)
    return [model.features, model.classifier] if split else [model]  # type: ignore[list-item]


def _lowered(self: nn.Module, x: Tensor) -> Tensor:
    # Each weight is used once per pass, so that autocast's cache of cast weights would gain nothing.
    with torch.autocast(x.device.type, torch.bfloat16, cache_enabled=False):
        outputs: Tensor = type(self).forward(self, x)
    return outputs.float()
