"""Augmentation of whole batches on their device, from a generator of one (seed, round, client, step).

A registered augmentation takes a batch [B, C, H, W], ``images`` as the network sees them
(normalised) or ``pixels`` (scaled to [0, 1], for colours; it is given what it asks for by this
name), and a generator. Its keyword-only parameters are its options in the YAML file. It draws the
same numbers whatever the images hold, those of image i at place i, so that an image's fate depends
on its place in the stream alone.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from flray.errors import ConfigError
from flray.registry import augmentations


class Step(Protocol):
    """A registered augmentation with its options."""

    @property
    def name(self) -> str:
        """Its registered name."""

    @property
    def options(self) -> Mapping[str, Any]:
        """Its keyword-only parameters."""


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
    how: str | Sequence[Step],
    generator: torch.Generator,
    normalisation: tuple[Tensor, Tensor] | None = None,
) -> Tensor:
    """Return a batch augmented as ``local.augment`` says; samples that are not images [B, C, H, W] stay as they are.

    Parameters
    ----------
    images : Tensor
        Normalised batch.
    how : str or sequence of Step
        A preset or steps, which draw from the generator one after another.
    generator : torch.Generator
        Of this batch.
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
    how: str | Sequence[Step],
    generator: torch.Generator,
    normalisation: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return a batch augmented as in `augmented`, and its targets: masks go where their pixels go, labels stay.

    Parameters
    ----------
    images : Tensor [B, C, H, W]
        Floating.
    targets : Tensor [B] or [B, K, H, W]
        Labels, or masks, 1 inside. What comes in from beyond the image is outside; resampled,
        inside from one half on.
    how : str or sequence of Step
        As in `augmented`; the images' bits do not depend on what the targets are.
    generator : torch.Generator
        Of this batch.
    normalisation : two Tensors that broadcast to [C, 1, 1], optional
        As in `augmented`.

    Raises
    ------
    ConfigError
        If there are masks and the augmentation does more than move pixels.
    """
    if targets.dim() != 4:
        return augment_batch(images, how, generator, normalisation), targets
    coloured = [name for name, _ in _steps(how) if _wants_pixels(augmentations.get(name))]
    if coloured:
        raise ConfigError(
            "experiment.local.augment",
            ", ".join(coloured),
            "with masks only steps that move pixels: crop, flip, resized, rotation",
        )
    together = augment_batch(torch.cat([images, targets.to(images.dtype)], 1), how, generator)
    moved, masks = together.split([images.shape[1], targets.shape[1]], 1)
    return moved, (masks >= 0.5).to(targets.dtype)


def check(how: str | Sequence[Step], path: str, shape: Sequence[int], dtype: np.dtype[Any]) -> None:
    """Refuse colours for samples that have none.

    Parameters
    ----------
    how : str or sequence of Step
        As in `augmented`.
    path : str
        The setting, for the message.
    shape : tuple of int
        Of a sample.
    dtype : numpy.dtype
        Of a sample.

    Raises
    ------
    ConfigError
        If a step works on pixels, and the samples are images of other than 8 bits or other than 1
        or 3 channels.
    """
    for name, _ in _steps(how):
        if (
            len(shape) == 3
            and _wants_pixels(augmentations.get(name))
            and (dtype != np.uint8 or shape[0] not in (1, 3))
        ):
            raise ConfigError(
                path,
                name,
                "it changes colours, for which 8-bit images of 1 or 3 channels are needed; these "
                f"samples are {dtype} of {shape[0]}",
            )


def _steps(how: str | Sequence[Step]) -> list[tuple[str, Mapping[str, Any]]]:
    return (
        [(name, {}) for name in PRESETS[how]]
        if isinstance(how, str)
        else [(s.name, s.options) for s in how]
    )


@functools.cache
def _wants_pixels(function: Callable[..., Tensor]) -> bool:
    return next(iter(inspect.signature(function).parameters)) == "pixels"
