"""Few-shot learning without data: printed characters, some for training and others for test."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from pydantic import Field

from flray.data.datasets.embedded import Seed
from flray.data.datasets.rendered_digits import FONTS
from flray.data.sources.images import channel_statistics
from flray.data.types import DataSet, Domain
from flray.registry import register_dataset
from flray.rng import numpy_generator

# Without those that a change of size makes another, such as c and C, or a turn, such as u and n.
CHARACTERS = "ABDEFGHJKLMNPQRTYabdefghijkmrty23456789&?@#%ΓΔΘΛΞΠΣΦΨΩαβγδεθλπστφψω"
_FONTS = tuple(name for name in FONTS if name.startswith("DejaVu"))  # the others have no Greek


@register_dataset("glyphs")
def glyphs(
    root: Path,
    *,
    seed: Seed = 0,
    classes: Annotated[int, Field(ge=4, le=len(CHARACTERS), description="characters")] = 60,
    unseen: Annotated[int, Field(ge=2, description="how many of them are for test alone")] = 20,
    samples: Annotated[int, Field(ge=2, description="images of each character")] = 60,
    size: Annotated[int, Field(ge=8, description="height and width")] = 32,
) -> DataSet:
    """Return printed characters, one channel; the characters of the test part do not occur in training (few-shot).

    Fonts are those that matplotlib carries; each image is turned by up to 20 degrees, moved, sized,
    blurred and noisy. Origin: rendered.

    Parameters
    ----------
    root : Path
        Data cache; not used.
    seed : int
        Which characters are for test, and of all images.
    classes : int
        Characters.
    unseen : int
        Characters for test; at least two must remain for training.
    samples : int
        Images of each character.
    size : int
        Height and width.
    """
    generator = numpy_generator(seed, "data", extra="glyphs")
    unseen = min(unseen, classes - 2)
    names = tuple(CHARACTERS[i] for i in np.sort(generator.permutation(len(CHARACTERS))[:classes]))
    hidden = np.zeros(classes, dtype=bool)
    hidden[generator.permutation(classes)[:unseen]] = True
    y = np.repeat(np.arange(classes), samples)
    x = np.stack([render(names[label], size, generator) for label in y])[:, None]
    test = hidden[y]
    domain = Domain("glyphs", "rendered", x[~test], y[~test], x[test], y[test])
    mean, std = channel_statistics([domain.train_x])
    return DataSet("glyphs", (domain,), names, mean, std, task="few-shot")


def render(character: str, size: int, generator: np.random.Generator) -> NDArray[np.uint8]:
    """Return one image [size, size] of a character, bright on dark."""
    import matplotlib
    from scipy.ndimage import gaussian_filter

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    font = ImageFont.truetype(
        folder / f"{_FONTS[generator.integers(len(_FONTS))]}.ttf",
        round(size * generator.uniform(0.6, 0.85)),
    )
    canvas = Image.new("L", (size, size))
    left, top, right, bottom = font.getbbox(character)
    corner = (
        size / 2
        - np.array([left + right, top + bottom]) / 2
        + size * generator.uniform(-0.08, 0.08, 2)
    )
    ImageDraw.Draw(canvas).text(
        (float(corner[0]), float(corner[1])), character, fill=255, font=font
    )
    canvas = canvas.rotate(generator.uniform(-20, 20), resample=Image.Resampling.BILINEAR)
    ink = gaussian_filter(
        np.asarray(canvas, dtype=np.float64), generator.uniform(0, 0.8) * size / 32
    )
    image = (
        ink * generator.uniform(0.5, 1.0)
        + 20 * generator.standard_normal(ink.shape)
        + generator.uniform(0, 40)
    )
    pixels: NDArray[np.uint8] = np.clip(np.rint(image), 0, 255).astype(np.uint8)
    return pixels
