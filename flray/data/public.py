"""Public data taken from any image data set: its training images in the private ones' shape, without labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flray.config.components import PublicChoice
from flray.data.arrays import Images
from flray.data.loading import load_dataset, take_subset
from flray.data.types import DataSet
from flray.errors import ConfigError
from flray.rng import numpy_generator

LUMA = (0.299, 0.587, 0.114)
"""Weights of red, green and blue in a grey image (ITU-R BT.601), as Pillow and torchvision have them."""
_loaded: dict[str, DataSet] = {}


def load_once(
    name: str,
    options: Mapping[str, Any],
    public: PublicChoice | None = None,
    subset: int | None = None,
) -> DataSet:
    """Return a data set with its public samples; a process keeps the one that it has loaded last.

    Parameters
    ----------
    name : str
        Registered name.
    options : mapping
        Its options.
    public : PublicChoice, optional
        Where its public samples come from, if not from the set itself.
    subset : int, optional
        At most so many training and test samples of each domain.
    """
    key = f"{name} {sorted(options.items())} {public} {subset} {_place(options.get('path'))}"
    if key not in _loaded:
        _loaded.clear()
        dataset = load_dataset(name, options)
        if subset is not None:
            dataset = take_subset(dataset, subset)
        if public is not None:
            dataset = with_public(dataset, public.name, public.options)
        _loaded[key] = dataset
    return _loaded[key]


def _place(path: object) -> str:
    """Return where a set of one's own lies and when it was changed: another folder or file is another set."""
    place = Path(str(path)).expanduser() if path is not None else None
    return f"{place.resolve()} {place.stat().st_mtime_ns}" if place and place.exists() else ""


def with_public(dataset: DataSet, name: str, options: Mapping[str, Any]) -> DataSet:
    """Return a data set with public samples from another one; its fingerprint covers them.

    Parameters
    ----------
    dataset : DataSet
        The private one.
    name : str
        Registered name of the other one.
    options : mapping
        Its options, and in place of its own ``samples`` the number of public samples.

    Raises
    ------
    FlrayError
        If the other set has not been fetched, or cannot serve.
    """
    others = {option: value for option, value in options.items() if option != "samples"}
    private = dataset.domains[0].train_x
    shape = private.shape[1:] if private.dtype == np.uint8 else ()
    source = load_dataset(name, others)
    return replace(
        dataset, public=public_images(source, shape, options["samples"], others.get("seed", 0))
    )


def public_images(source: DataSet, shape: tuple[int, ...], samples: int, seed: int) -> Images:
    """Return some of a data set's training images, of all domains and without labels, in another set's shape.

    Parameters
    ----------
    source : DataSet
        Of uint8 images.
    shape : tuple of int
        Channels, height and width that are wanted.
    samples : int
        How many; a keyed choice, of which a larger one contains every smaller one.
    seed : int
        Of the choice.

    Raises
    ------
    ConfigError
        If either side is not made of images, or the source has too few.
    """
    parts = [domain.train_x for domain in source.domains]
    if parts[0].dtype != np.uint8 or parts[0].ndim != 4:
        raise ConfigError(
            "experiment.public",
            source.name,
            "public data are taken from images; this set has others",
        )
    if len(shape) != 3:
        raise ConfigError(
            "experiment.public",
            source.name,
            "public images go with private images only; these private samples are numbers of "
            "their own",
        )
    total = sum(map(len, parts))
    if samples > total:
        raise ConfigError(
            "experiment.public.samples", str(samples), f"{source.name} has {total} training images"
        )
    rows = np.sort(
        numpy_generator(seed, "public", extra=f"source/{source.name}").permutation(total)[:samples]
    )
    starts = np.cumsum([0, *map(len, parts)])
    chosen = [
        part[rows[(rows >= low) & (rows < low + len(part))] - low]
        for part, low in zip(parts, starts, strict=False)
    ]
    return fit_to_shape(np.concatenate(chosen), shape)


def fit_to_shape(images: Images, shape: tuple[int, ...]) -> Images:
    """Return images in another shape: grey ones three times or colours as their luma, and resampled.

    Parameters
    ----------
    images : ndarray of uint8 [n, C, H, W]
        Grey (C = 1) or colour (C = 3).
    shape : tuple of int
        Channels, height and width wanted. A triangle as wide as a new pixel weighs the old ones, so
        that shrinking averages and enlarging interpolates bilinearly.

    Raises
    ------
    ConfigError
        If channels other than one or three would have to change.
    """
    channels, height, width = shape
    if images.shape[1] == channels and images.shape[2:] == (height, width):
        return np.ascontiguousarray(images)
    if {images.shape[1], channels} - {1, 3} and images.shape[1] != channels:
        raise ConfigError(
            "experiment.public",
            f"images of {images.shape[1]} channels",
            f"only grey and colour change into each other; the private images have {channels} "
            "channels",
        )
    down, across = _triangles(images.shape[2], height), _triangles(images.shape[3], width)
    result = np.empty((len(images), *shape), dtype=np.uint8)
    # A bounded float64 copy, however many images there are.
    for first in range(0, len(images), 1000):
        block = images[first : first + 1000].astype(np.float64)
        if channels == 1 and block.shape[1] == 3:
            block = np.tensordot(block, LUMA, axes=(1, 0))[:, None]
        if block.shape[2:] != (height, width):
            block = down @ block @ across.T
        result[first : first + 1000] = np.clip(np.rint(block), 0, 255)
    return result


def _triangles(old: int, new: int) -> NDArray[np.float64]:
    """Return the weights [new, old] of a resampling; multiples of 2^-12, so that sums do not depend on the BLAS."""
    scale = max(1.0, old / new)
    centres = (np.arange(new) + 0.5) * old / new - 0.5
    weights = np.maximum(
        0.0, 1.0 - np.abs(np.clip(centres, 0, old - 1)[:, None] - np.arange(old)) / scale
    )
    weights = np.rint(weights / weights.sum(1, keepdims=True) * 4096)
    weights[np.arange(new), weights.argmax(1)] += 4096 - weights.sum(1)
    triangles: NDArray[np.float64] = weights / 4096
    return triangles
