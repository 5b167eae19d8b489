"""Augmentation of whole batches on their device, from a generator of one (seed, round, client)."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from flray.errors import ConfigError

GEOMETRIC = ("none", "flip", "crop", "resized")
"""What only moves pixels, so that masks can follow."""


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


def random_resized_crop(images: Tensor, generator: torch.Generator, smallest: float = 0.2) -> Tensor:
    """Cut a random part out of every image and resize it to the image's size, bilinearly.

    Parameters
    ----------
    images : Tensor [B, C, H, W]
        Floating.
    generator : torch.Generator
        Draws on its own device.
    smallest : float
        Least share of the area; the share is uniform from it to 1, the side ratio log-uniform from 3/4 to 4/3. A side
        that would be longer than the image is cut to it.

    Returns
    -------
    Tensor
        Same shape, dtype and device.
    """
    draws = torch.rand((4, len(images)), generator=generator, device=generator.device, dtype=torch.float64)
    area = smallest + (1 - smallest) * draws[0]
    ratio = torch.exp((2 * draws[1] - 1) * math.log(4 / 3))
    width, height = ((area * r).sqrt().clamp(max=1) for r in (ratio, 1 / ratio))
    # in the coordinates of affine_grid, -1 to 1: how much is seen, and where its middle lies
    middle_x, middle_y = (1 - width) * (2 * draws[2] - 1), (1 - height) * (2 * draws[3] - 1)
    zero = torch.zeros_like(width)
    theta = torch.stack([torch.stack([width, zero, middle_x], 1), torch.stack([zero, height, middle_y], 1)], 1)
    grid = F.affine_grid(theta.to(images.device, images.dtype), list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


def augmented(images: Tensor, how: Literal["none", "flip", "crop", "resized"], generator: torch.Generator) -> Tensor:
    """Return a batch augmented as ``local.augment`` says; samples that are not images [B, C, H, W] stay as they are."""
    if how == "none" or images.dim() != 4:
        return images
    if how == "crop":
        images = random_crop(images, generator)
    elif how == "resized":
        images = random_resized_crop(images, generator)
    return random_flip(images, generator)


def augmented_with(images: Tensor, targets: Tensor, how: Literal["none", "flip", "crop", "resized"],
                   generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Return a batch augmented as in `augmented`, and its targets: masks go where their pixels go, labels stay.

    Parameters
    ----------
    images : Tensor [B, C, H, W]
        Floating.
    targets : Tensor [B] or [B, K, H, W]
        Labels, or masks, 1 inside. What comes in from beyond the image is outside; resized, inside from one half on.
    how, generator
        As in `augmented`; the images' bits do not depend on what the targets are.

    Raises
    ------
    ConfigError
        If there are masks and the augmentation does more than move pixels.
    """
    if targets.dim() != 4:
        return augmented(images, how, generator), targets
    if how not in GEOMETRIC:
        raise ConfigError("experiment.local.augment", how,
                          f"with masks only what moves pixels: {', '.join(GEOMETRIC)}")
    together = augmented(torch.cat([images, targets.to(images.dtype)], 1), how, generator)
    moved, masks = together.split([images.shape[1], targets.shape[1]], 1)
    return moved, (masks >= 0.5).to(targets.dtype)
