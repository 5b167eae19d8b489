"""Crops of the few photos that installed packages carry: public data for private images of any kind."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from flray.data.arrays import Array
from flray.data.datasets.embedded import Seed
from flray.data.sources.images import channel_statistics, photo_crops
from flray.data.types import DataSet, Domain
from flray.registry import register_dataset
from flray.rng import numpy_generator


@register_dataset("photos")
def photos(
    root: Path,
    *,
    seed: Seed = 0,
    crops: Annotated[int, Field(ge=1, description="training images")] = 5000,
    size: Annotated[int, Field(ge=8, le=128, description="side of a crop in pixels")] = 32,
) -> DataSet:
    """Return crops of the photos that scikit-learn and matplotlib carry, 3 x size x size, of one class: public data.

    Parameters
    ----------
    root : Path
        Data cache; not used.
    seed : int
        Which crops.
    crops : int
        Training images; there are a fifth as many test images.
    size : int
        Side of a crop in pixels.
    """
    parts: list[Array] = []
    for part, count in (("train", crops), ("test", max(1, crops // 5))):
        generator = numpy_generator(seed, "data", extra=f"photos/{part}")
        # Few pixels averaged to one where a crop is large: the smallest photo has some 400 rows.
        parts += [
            photo_crops(count, size, generator, max_scale=max(1, min(8, 400 // size))),
            np.zeros(count, dtype=np.int64),
        ]
    mean, std = channel_statistics([parts[0]])
    return DataSet("photos", (Domain("photos", "real", *parts),), ("photo",), mean, std)
