"""Augmentations that move pixels: crop, flip, resized crop and rotation; see `flray.data.augment`."""

from __future__ import annotations

import math
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from flray.data.colour_jitter import Chance
from flray.devices import transfers
from flray.registry import register_augmentation


@register_augmentation("crop")
def random_crop(
    images: Tensor,
    generator: torch.Generator,
    *,
    padding: Annotated[int, Field(ge=0, description="largest shift in pixels")] = 4,
) -> Tensor:
    """Move every image by up to `padding` pixels in both directions, filling with zeros.

    Parameters
    ----------
    images : Tensor [B, C, H, W]
        Of any dtype, on any device; normalised images are filled with the channel mean.
    generator : torch.Generator
        Draws the offsets on its own device, so that a CPU generator gives the same crops on every
        device.
    padding : int
        Largest shift in pixels.

    Returns
    -------
    Tensor
        Same shape, dtype and device.
    """
    batch, channels, height, width = images.shape
    offsets = torch.randint(
        2 * padding + 1, (2, batch, 1), generator=generator, device=generator.device
    )
    down, across = transfers.to_device(offsets, images.device)
    rows = (down + torch.arange(height, device=images.device))[:, :, None]
    columns = (across + torch.arange(width, device=images.device))[:, None, :]
    sample = torch.arange(batch, device=images.device)[:, None, None]
    # Whole pixels are picked, with all channels: several times faster than picking numbers.
    places = ((sample * (height + 2 * padding) + rows) * (width + 2 * padding) + columns).flatten()
    pixels = (
        F.pad(images, (padding, padding, padding, padding))
        .permute(0, 2, 3, 1)
        .reshape(-1, channels)
    )
    return (
        pixels.index_select(0, places)
        .view(batch, height, width, channels)
        .permute(0, 3, 1, 2)
        .contiguous()
    )


@register_augmentation("flip")
def random_flip(images: Tensor, generator: torch.Generator, *, p: Chance = 0.5) -> Tensor:
    """Mirror images left to right, not for digits.

    Parameters
    ----------
    images : Tensor [n, C, H, W]
        As in `random_crop`.
    generator : torch.Generator
        As in `random_crop`.
    p : float
        Probability for each image.
    """
    mirrored = torch.rand((len(images), 1, 1, 1), generator=generator, device=generator.device) < p
    return torch.where(transfers.to_device(mirrored, images.device), images.flip(-1), images)


@register_augmentation("resized")
def random_resized_crop(
    images: Tensor,
    generator: torch.Generator,
    *,
    smallest: Annotated[
        float, Field(gt=0, le=1, description="least share of the area that is shown")
    ] = 0.2,
) -> Tensor:
    """Cut a random part out of every image and resize it to the image's size, bilinearly.

    Parameters
    ----------
    images : Tensor [B, C, H, W]
        Floating.
    generator : torch.Generator
        Draws on its own device.
    smallest : float
        Least share of the area; the share is uniform from it to 1, the side ratio log-uniform from
        3/4 to 4/3. A side that would be longer than the image is cut to it.

    Returns
    -------
    Tensor
        Same shape, dtype and device.
    """
    draws = torch.rand(
        (4, len(images)), generator=generator, device=generator.device, dtype=torch.float64
    )
    area = smallest + (1 - smallest) * draws[0]
    ratio = torch.exp((2 * draws[1] - 1) * math.log(4 / 3))
    width, height = ((area * r).sqrt().clamp(max=1) for r in (ratio, 1 / ratio))
    # in the coordinates of affine_grid, -1 to 1: how much is seen, and where its middle lies
    middle_x, middle_y = (1 - width) * (2 * draws[2] - 1), (1 - height) * (2 * draws[3] - 1)
    zero = torch.zeros_like(width)
    theta = torch.stack(
        [torch.stack([width, zero, middle_x], 1), torch.stack([zero, height, middle_y], 1)], 1
    )
    grid = F.affine_grid(
        transfers.to_device(theta.to(images.dtype), images.device),
        list(images.shape),
        align_corners=False,
    )
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


def rotate(images: Tensor, angles: Tensor) -> Tensor:
    """Return images [B, C, H, W] turned counter-clockwise about their middles by angles [B] in degrees, bilinearly.

    What comes from outside is zero, which for normalised images is the channel mean.
    """
    height, width = images.shape[-2:]
    radians = torch.deg2rad(angles.to(torch.float64))
    cos, sin, zero = radians.cos(), radians.sin(), torch.zeros_like(radians)
    theta = torch.stack(
        [
            torch.stack([cos, -sin * height / width, zero], 1),
            torch.stack([sin * width / height, cos, zero], 1),
        ],
        1,
    )
    grid = F.affine_grid(
        transfers.to_device(theta.to(images.dtype), images.device),
        list(images.shape),
        align_corners=False,
    )
    return F.grid_sample(images, grid, mode="bilinear", padding_mode="zeros", align_corners=False)


@register_augmentation("rotation")
def random_rotation(
    images: Tensor,
    generator: torch.Generator,
    *,
    degrees: Annotated[
        float, Field(ge=0, le=180, description="largest angle to either side")
    ] = 15.0,
) -> Tensor:
    """Turn every image by a random angle, uniform to both sides.

    Parameters
    ----------
    images : floating Tensor [n, C, H, W]
        As in `random_crop`.
    generator : torch.Generator
        As in `random_crop`.
    degrees : float
        Largest angle.
    """
    draws = torch.rand(
        len(images), generator=generator, device=generator.device, dtype=torch.float64
    )
    return rotate(images, degrees * (2 * draws - 1))
