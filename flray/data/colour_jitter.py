"""Colours of whole batches: one factor per image, as torchvision's transforms change one image."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor

from flray.devices import transfers
from flray.registry import register_augmentation

Spread = Annotated[
    float, Field(ge=0, description="the factor is uniform in 1 - this to 1 + this, not below 0")
]
Chance = Annotated[float, Field(ge=0, le=1, description="probability for each image")]
_LUMA = (0.2989, 0.587, 0.114)
"""Weights of red, green and blue (ITU-R BT.601), rounded as in torchvision."""


def gray(pixels: Tensor) -> Tensor:
    """Return the brightness [B, 1, H, W] of images [B, C, H, W]; of one channel, the channel itself."""
    if pixels.shape[1] == 1:
        return pixels
    red, green, blue = pixels.split(1, 1)
    weighted: Tensor = _LUMA[0] * red + _LUMA[1] * green + _LUMA[2] * blue
    return weighted


def brightness(pixels: Tensor, factor: Tensor) -> Tensor:
    """Multiply pixels [B, C, H, W] in [0, 1] by a factor [B], cut to [0, 1]."""
    return (pixels * factor.view(-1, 1, 1, 1)).clamp(0, 1)


def contrast(pixels: Tensor, factor: Tensor) -> Tensor:
    """Move pixels away from their image's mean brightness by a factor [B], cut to [0, 1]."""
    return _blend(pixels, gray(pixels).mean((1, 2, 3), keepdim=True), factor)


def saturation(pixels: Tensor, factor: Tensor) -> Tensor:
    """Move pixels away from their own brightness by a factor [B], cut to [0, 1]; 0 is black and white."""
    return _blend(pixels, gray(pixels), factor)


def hue(pixels: Tensor, turn: Tensor) -> Tensor:
    """Turn the hue by a share [B] of the full circle, at constant saturation and value; one channel stays as it is."""
    if pixels.shape[1] == 1:
        return pixels
    value, smallest = pixels.amax(1, keepdim=True), pixels.amin(1, keepdim=True)
    chroma = value - smallest
    red, green, blue = pixels.split(1, 1)
    step = torch.where(chroma == 0, 1, chroma)
    sector = torch.where(
        value == red,
        (green - blue) / step,
        torch.where(value == green, 2 + (blue - red) / step, 4 + (red - green) / step),
    )
    sector = sector + 6 * turn.view(-1, 1, 1, 1)
    # A channel of a colour of hue h, in sixths of the circle: V - chroma * clamp(min(k, 4 - k), 0,
    # 1), k = n + h mod 6.
    first = torch.arange(5, 0, -2, device=pixels.device, dtype=pixels.dtype)  # 5, 3, 1
    k = (first.view(1, 3, 1, 1) + sector) % 6
    return value - chroma * torch.minimum(k, 4 - k).clamp(0, 1)


@register_augmentation("jitter")
def random_jitter(
    pixels: Tensor,
    generator: torch.Generator,
    *,
    brightness: Spread = 0.4,
    contrast: Spread = 0.4,
    saturation: Spread = 0.4,
    hue: Annotated[
        float, Field(ge=0, le=0.5, description="the hue turns by up to this share of the circle")
    ] = 0.1,
    p: Chance = 0.8,
) -> Tensor:
    """Change brightness, contrast, saturation and hue by random factors, in an order of its own for each image.

    Parameters
    ----------
    pixels : Tensor [B, C, H, W]
        In [0, 1], of one or three channels.
    generator : torch.Generator
        Draws on its own device.
    brightness, contrast, saturation, hue : float
        Spreads; defaults are those of FCCL+'s strong augmentation.
    p : float
        Probability that an image is changed at all.

    Returns
    -------
    Tensor
        Same shape, dtype and device, in [0, 1].
    """
    draws = torch.rand((9, len(pixels)), generator=generator, device=generator.device)
    changed, orders = draws[0] < p, draws[5:].argsort(0)
    spreads = (brightness, contrast, saturation, hue)
    factors = [
        spread * (2 * draws[1 + i] - 1)
        if i == 3
        else max(0.0, 1 - spread) + (1 + spread - max(0.0, 1 - spread)) * draws[1 + i]
        for i, spread in enumerate(spreads)
    ]
    if pixels.device.type != "cpu":
        return _changed(pixels, changed, orders, torch.stack(factors), spreads)
    result = pixels.clone()
    for place in range(4):
        for i, change in enumerate(_CHANGES):
            chosen = (changed & (orders[place] == i)).nonzero().flatten()
            if spreads[i] and len(chosen):
                factor = factors[i][chosen].to(pixels.dtype)
                result[chosen] = change(result[chosen], factor)
    return result


def _changed(
    pixels: Tensor, changed: Tensor, orders: Tensor, factors: Tensor, spreads: Sequence[float]
) -> Tensor:
    """Return the same as the loop over chosen images, with all images in each operation.

    So a device is sent what was drawn in one copy, and asked for nothing.
    """
    idle = torch.tensor([not spread for spread in spreads])[orders] | ~changed
    drawn = torch.cat([orders.masked_fill(idle, 4), factors.gather(0, orders)])
    kinds, values = transfers.to_device(drawn, pixels.device).to(pixels.dtype).split(4)
    for kind, factor in zip(kinds.view(4, -1, 1, 1, 1), values, strict=True):
        luma = gray(pixels)
        other = torch.where(kind == 1, luma.mean((1, 2, 3), keepdim=True), luma)
        blended = _blend(pixels, torch.where(kind == 0, 0, other), factor)
        result = torch.where(kind < 3, blended, pixels)
        if spreads[3]:
            result = torch.where(kind == 3, hue(pixels, factor), result)
        pixels = result
    return pixels


@register_augmentation("grayscale")
def random_grayscale(pixels: Tensor, generator: torch.Generator, *, p: Chance = 0.2) -> Tensor:
    """Turn images to black and white.

    Parameters
    ----------
    pixels : floating Tensor [B, C, H, W]
        As in `random_jitter`.
    generator : torch.Generator
        As in `random_jitter`.
    p : float
        Probability for each image.
    """
    chosen = torch.rand((len(pixels), 1, 1, 1), generator=generator, device=generator.device) < p
    return torch.where(transfers.to_device(chosen, pixels.device), gray(pixels), pixels)


_CHANGES = (brightness, contrast, saturation, hue)


def _blend(pixels: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    factor = factor.view(-1, 1, 1, 1)
    return (factor * pixels + (1 - factor) * other).clamp(0, 1)
