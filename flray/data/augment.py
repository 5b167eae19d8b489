"""Augmentation of whole batches on their device, from a generator of one (seed, round, client)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F


def random_crop(images: Tensor, generator: torch.Generator, padding: int = 4) -> Tensor:
    """Move every image by up to `padding` pixels in both directions, filling with zeros.

    Parameters
    ----------
    images : Tensor [B, C, H, W]
        Of any dtype, on any device; normalised images are filled with the channel mean.
    generator : torch.Generator
        Draws the offsets on its own device, so that a CPU generator gives the same crops on every device.
    padding : int
        Largest shift in pixels.

    Returns
    -------
    Tensor
        Same shape, dtype and device.
    """
    batch, channels, height, width = images.shape
    offsets = torch.randint(2 * padding + 1, (2, batch, 1), generator=generator, device=generator.device)
    down, across = offsets.to(images.device)
    rows = (down + torch.arange(height, device=images.device))[:, None, :, None]
    columns = (across + torch.arange(width, device=images.device))[:, None, None, :]
    sample = torch.arange(batch, device=images.device)[:, None, None, None]
    channel = torch.arange(channels, device=images.device)[None, :, None, None]
    return F.pad(images, (padding, padding, padding, padding))[sample, channel, rows, columns]


def random_flip(images: Tensor, generator: torch.Generator) -> Tensor:
    """Mirror every image left to right with probability one half (parameters as in `random_crop`; not for digits)."""
    mirrored = torch.rand((len(images), 1, 1, 1), generator=generator, device=generator.device) < 0.5
    return torch.where(mirrored.to(images.device), images.flip(-1), images)
