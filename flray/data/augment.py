"""Augmentation of whole batches on their device, from a generator of one (seed, round, client, step).

A registered augmentation takes a batch [B, C, H, W], ``images`` as the network sees them
(normalised) or ``pixels`` (scaled to [0, 1], for colours; it is given what it asks for by this
name), and a generator. Its keyword-only parameters are its options in the YAML file. It draws the
same numbers whatever the images hold, those of image i at place i, so that an image's fate depends
on its place in the stream alone.

The noise that belongs to a sample is the same in every batch, round and process, without being stored.
"""

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any

import numpy as np
import torch
from pydantic import Field
from torch import Tensor
from torch.nn import functional as F

from flray import devices
from flray.config.components import AugmentChoice
from flray.errors import ConfigError
from flray.registry import augmentations, register_augmentation

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
    """Scale each pixel's distance from its grey value by a factor [B], cut to [0, 1]; 0 is black and white."""
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
    """Change brightness, contrast, saturation and hue by random factors, in a random order for each image.

    Parameters
    ----------
    pixels : Tensor [B, C, H, W]
        In [0, 1], of one or three channels.
    generator : torch.Generator
        Draws on the device of the generator.
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
                result[chosen] = change(result[chosen], factors[i][chosen].to(pixels.dtype))
    return result


def _changed(
    pixels: Tensor, changed: Tensor, orders: Tensor, factors: Tensor, spreads: Sequence[float]
) -> Tensor:
    """Return the same as the loop over chosen images, with all images in each operation.

    So a device is sent what was drawn in one copy, and asked for nothing.
    """
    idle = torch.tensor([not spread for spread in spreads])[orders] | ~changed
    drawn = torch.cat([orders.masked_fill(idle, 4), factors.gather(0, orders)])
    kinds, values = devices.to_device(drawn, pixels.device).to(pixels.dtype).split(4)
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
    return torch.where(devices.to_device(chosen, pixels.device), gray(pixels), pixels)


_CHANGES = (brightness, contrast, saturation, hue)


def _blend(pixels: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    factor = factor.view(-1, 1, 1, 1)
    return (factor * pixels + (1 - factor) * other).clamp(0, 1)


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
        Draws the offsets on the device of the generator, so that a CPU generator gives the same crops on every
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
    down, across = devices.to_device(offsets, images.device)
    rows = (down + torch.arange(height, device=images.device))[:, :, None]
    columns = (across + torch.arange(width, device=images.device))[:, None, :]
    sample = torch.arange(batch, device=images.device)[:, None, None]
    # Whole pixels are picked, with all channels: several times faster than picking numbers.
    places = ((sample * (height + 2 * padding) + rows) * (width + 2 * padding) + columns).flatten()
    padded = F.pad(images, (padding, padding, padding, padding)).permute(0, 2, 3, 1)
    chosen = padded.reshape(-1, channels).index_select(0, places)
    return chosen.view(batch, height, width, channels).permute(0, 3, 1, 2).contiguous()


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
    return torch.where(devices.to_device(mirrored, images.device), images.flip(-1), images)


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
        Draws on the device of the generator.
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
    return _resample(images, [[width, zero, middle_x], [zero, height, middle_y]], "border")


def _resample(images: Tensor, rows: Sequence[Sequence[Tensor]], outside: str) -> Tensor:
    """Return images [B, C, H, W] at the places of affine maps, two rows of three entries [B], bilinearly."""
    theta = torch.stack([torch.stack(list(row), 1) for row in rows], 1)
    theta = devices.to_device(theta.to(images.dtype), images.device)
    grid = F.affine_grid(theta, list(images.shape), align_corners=False)
    return F.grid_sample(images, grid, mode="bilinear", padding_mode=outside, align_corners=False)


def rotate(images: Tensor, angles: Tensor) -> Tensor:
    """Return images [B, C, H, W] turned counter-clockwise about their middles by angles [B] in degrees, bilinearly.

    Pixels from outside the image are zero, the channel mean of normalised images.
    """
    height, width = images.shape[-2:]
    radians = torch.deg2rad(angles.to(torch.float64))
    cos, sin, zero = radians.cos(), radians.sin(), torch.zeros_like(radians)
    rows = [[cos, -sin * height / width, zero], [sin * width / height, cos, zero]]
    return _resample(images, rows, "zeros")


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


PRESETS: Mapping[str, tuple[str, ...]] = {
    "none": (),
    "flip": ("flip",),
    "crop": ("crop", "flip"),
    "resized": ("resized", "flip"),
    "weak": ("resized", "flip"),
    "strong": ("resized", "flip", "jitter", "grayscale"),
}
"""Names that stand for several steps with their defaults; weak and strong are FCCL+'s (section 4.1)."""


def augment_batch(
    images: Tensor,
    how: str | Sequence[AugmentChoice],
    generator: torch.Generator,
    normalisation: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Return a batch augmented as ``local.augment`` says; samples that are not images [B, C, H, W] stay as they are.

    Parameters
    ----------
    images : Tensor
        Normalised batch.
    how : str or sequence of AugmentChoice
        A preset or steps, which draw from the generator one after another.
    generator : torch.Generator
        The generator of this batch.
    normalisation : two Tensors that broadcast to [C, 1, 1], optional
        Mean and standard deviation that the pixels in [0, 1] were normalised with, for colours;
        none: they were not.
    """
    if images.dim() != 4:
        return images
    mean, std = normalisation if normalisation is not None else (0.0, 1.0)
    scaled = False
    for name, options in _steps(how):
        function = augmentations.get(name)
        if _wants_pixels(function) != scaled:
            scaled = not scaled
            images = (images * std + mean).clamp(0, 1) if scaled else (images - mean) / std
        images = function(images, generator, **options)
    return (images - mean) / std if scaled else images


def augment_pair(
    images: Tensor,
    targets: Tensor,
    how: str | Sequence[AugmentChoice],
    generator: torch.Generator,
    normalisation: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return a batch augmented as in `augment_batch`, and its targets: masks go where their pixels go, labels stay.

    Parameters
    ----------
    images : Tensor [B, C, H, W]
        Floating.
    targets : Tensor [B] or [B, K, H, W]
        Labels, or masks, 1 inside. Pixels from beyond the image are outside; a resampled pixel is
        inside from one half on.
    how : str or sequence of AugmentChoice
        As in `augment_batch`; the images' bits do not depend on the targets.
    generator : torch.Generator
        The generator of this batch.
    normalisation : two Tensors that broadcast to [C, 1, 1], optional
        As in `augment_batch`.

    Raises
    ------
    ConfigError
        If there are masks and the augmentation does more than move pixels.
    """
    if targets.dim() != 4:
        return augment_batch(images, how, generator, normalisation), targets
    coloured = [name for name, _ in _steps(how) if _wants_pixels(augmentations.get(name))]
    if coloured:
        why = "with masks only steps that move pixels: crop, flip, resized, rotation"
        raise ConfigError("experiment.local.augment", ", ".join(coloured), why)
    together = augment_batch(torch.cat([images, targets.to(images.dtype)], 1), how, generator)
    moved, masks = together.split([images.shape[1], targets.shape[1]], 1)
    return moved, (masks >= 0.5).to(targets.dtype)


def check(
    how: str | Sequence[AugmentChoice], path: str, shape: Sequence[int], dtype: np.dtype[Any]
) -> None:
    """Refuse steps for samples other than images, and colours for images that have none.

    Parameters
    ----------
    how : str or sequence of AugmentChoice
        As in `augment_batch`.
    path : str
        The setting that the message names.
    shape : tuple of int
        The shape of a sample.
    dtype : numpy.dtype
        The type of a sample.

    Raises
    ------
    ConfigError
        If there are steps and no images, or a step works on pixels and the images are of other than 8 bits
        or other than 1 or 3 channels.
    """
    for name, _ in _steps(how):
        if len(shape) != 3:
            raise ConfigError(
                path,
                name,
                f"none: it changes images, and these samples have the shape {tuple(shape)}",
            )
        if _wants_pixels(augmentations.get(name)) and (dtype != np.uint8 or shape[0] not in (1, 3)):
            raise ConfigError(
                path,
                name,
                "it changes colours, for which 8-bit images of 1 or 3 channels are needed; these "
                f"samples are {dtype} of {shape[0]}",
            )


def _steps(how: str | Sequence[AugmentChoice]) -> list[tuple[str, Mapping[str, Any]]]:
    if isinstance(how, str):
        return [(name, {}) for name in PRESETS[how]]
    return [(s.name, s.options) for s in how]


@functools.cache
def _wants_pixels(function: Callable[..., Tensor]) -> bool:
    return next(iter(inspect.signature(function).parameters)) == "pixels"


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
