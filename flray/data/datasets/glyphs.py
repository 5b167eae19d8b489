"""Rendered characters: digits in colour (after Ganin et al. 2015), and a few-shot set of printed characters.

Only the fonts that matplotlib carries are used: system fonts differ between machines, and so would
the samples.
"""

from functools import cache
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont
from pydantic import Field

from flray.data.datasets.embedded import Seed, assemble
from flray.data.types import DataSet, Domain
from flray.registry import register_dataset
from flray.rng import numpy_generator

FONTS = tuple(
    """
DejaVuSans DejaVuSans-Bold DejaVuSans-Oblique DejaVuSans-BoldOblique
DejaVuSansMono DejaVuSansMono-Bold DejaVuSansMono-Oblique DejaVuSansMono-BoldOblique
DejaVuSerif DejaVuSerif-Bold DejaVuSerif-Italic DejaVuSerif-BoldItalic
STIXGeneral STIXGeneralBol STIXGeneralItalic STIXGeneralBolIta cmr10 cmb10 cmss10 cmtt10
""".split()  # noqa: SIM905
)
SIZE = 32
_TILE = 48  # side of a glyph's tile in the atlas; glyphs are 32 high in its middle
_CHUNK = 1024  # images worked on at a time: bounds the memory to about 100 MB

Floats = NDArray[np.float32]


def render_digits(labels: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.uint8]:
    """Render one image per label.

    Each has a random font, a height of 16 to 26 pixels, rotation within 18 degrees, shear within
    0.3, an offset within 3 pixels, a neighbouring digit on either side half of the time, two
    colours and a background gradient, Gaussian blur up to 1.1 pixels and Gaussian noise up to a
    standard deviation of 14.

    Parameters
    ----------
    labels : ndarray of int64 [n]
        Digits 0..9.
    generator : numpy.random.Generator
        Source of everything random.

    Returns
    -------
    ndarray of uint8 [n, 3, 32, 32]
    """
    images = np.empty((len(labels), 3, SIZE, SIZE), dtype=np.uint8)
    for start in range(0, len(labels), _CHUNK):
        part = labels[start : start + _CHUNK]
        ink = _ink(part, generator)
        images[start : start + _CHUNK] = _paint(ink, generator)
    return images


@cache
def _atlas() -> tuple[Floats, Floats]:
    """Return glyph masks [fonts, 10, tile, tile] in [0, 1] and the glyphs' widths [fonts, 10] in atlas pixels."""
    import matplotlib

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    tiles = np.zeros((len(FONTS), 10, _TILE, _TILE), dtype=np.float32)
    widths = np.zeros((len(FONTS), 10), dtype=np.float32)
    for f, name in enumerate(FONTS):
        probe = ImageFont.truetype(folder / f"{name}.ttf", 100)
        _, top, _, bottom = probe.getbbox("8")
        font = ImageFont.truetype(folder / f"{name}.ttf", round(100 * 32 / (bottom - top)))
        for digit in range(10):
            left, top, right, bottom = font.getbbox(str(digit))
            image = Image.new("L", (_TILE, _TILE))
            corner = (_TILE / 2 - (left + right) / 2, _TILE / 2 - (top + bottom) / 2)
            ImageDraw.Draw(image).text(corner, str(digit), fill=255, font=font)
            tiles[f, digit] = np.asarray(image, dtype=np.float32) / 255
            widths[f, digit] = right - left
    # An empty border, so that looking beyond a tile finds no ink.
    for side in (np.s_[..., 0, :], np.s_[..., -1, :], np.s_[..., :, 0], np.s_[..., :, -1]):
        tiles[side] = 0
    return tiles, widths


def _ink(labels: NDArray[np.int64], generator: np.random.Generator) -> Floats:
    """Return the coverage [n, 32, 32] in [0, 1] of the digits and their neighbours."""
    n = len(labels)
    tiles, widths = _atlas()
    font = generator.integers(len(FONTS), size=n)
    digits = np.stack([labels, *generator.integers(10, size=(2, n))])
    beside = generator.random((2, n)) < 0.5
    scale = 32 / generator.uniform(16, 26, n)
    angle, shear = np.deg2rad(generator.uniform(-18, 18, n)), generator.uniform(-0.3, 0.3, n)
    offset = generator.uniform(-3, 3, (2, n))
    gap = generator.uniform(1, 6, (2, n))

    across, down = np.meshgrid(np.arange(SIZE) - SIZE / 2 + 0.5, np.arange(SIZE) - SIZE / 2 + 0.5)
    x, y = across - offset[0, :, None, None], down - offset[1, :, None, None]
    cos, sin, size, lean = (
        value[:, None, None] for value in (np.cos(angle), np.sin(angle), scale, shear)
    )
    v = (cos * y - sin * x) * size
    u = (cos * x + sin * y) * size + lean * v
    ink = _sample(tiles[font, digits[0]], u, v)
    for side, sign in ((0, -1.0), (1, 1.0)):
        other = digits[side + 1]
        distance = sign * ((widths[font, labels] + widths[font, other]) / 2 + gap[side])
        neighbour = _sample(tiles[font, other], u - distance[:, None, None], v)
        ink = np.maximum(ink, neighbour * beside[side, :, None, None])
    return ink


def _sample(tiles: Floats, u: NDArray[np.float64], v: NDArray[np.float64]) -> Floats:
    """Return the tiles' values at positions measured from their centres, bilinearly, 0 outside."""
    column = np.clip(u + _TILE / 2 - 0.5, 0, _TILE - 1.001)
    row = np.clip(v + _TILE / 2 - 0.5, 0, _TILE - 1.001)
    left, top = column.astype(np.int64), row.astype(np.int64)
    right, down = (column - left).astype(np.float32), (row - top).astype(np.float32)
    flat = tiles.reshape(-1)
    at = np.arange(len(tiles))[:, None, None] * _TILE * _TILE + top * _TILE + left
    upper = flat[at] * (1 - right) + flat[at + 1] * right
    lower = flat[at + _TILE] * (1 - right) + flat[at + _TILE + 1] * right
    values: Floats = upper * (1 - down) + lower * down
    return values


def _paint(ink: Floats, generator: np.random.Generator) -> NDArray[np.uint8]:
    """Return images [n, 3, 32, 32] of the ink in one colour over a gradient of two others."""
    n = len(ink)
    paper = generator.uniform(0, 255, (n, 3))
    far = np.clip(paper + generator.uniform(-80, 80, (n, 3)), 0, 255)
    colour = generator.uniform(0, 255, (n, 3))
    # Legible: too close to the paper in brightness, the colour moves away from it.
    weights = np.array([0.299, 0.587, 0.114])
    difference = (colour - (paper + far) / 2) @ weights
    push = np.where(
        np.abs(difference) < 70,
        np.where((paper + far) @ weights / 2 < 128, 1, -1) * 90 - difference,
        0,
    )
    colour = np.clip(colour + push[:, None], 0, 255)

    direction = generator.uniform(0, 2 * np.pi, n)[:, None, None]
    across, down = np.meshgrid(np.linspace(-0.5, 0.5, SIZE), np.linspace(-0.5, 0.5, SIZE))
    slope = np.clip(0.5 + np.cos(direction) * across + np.sin(direction) * down, 0, 1)[:, None]
    papers = paper[..., None, None] * (1 - slope) + far[..., None, None] * slope
    images = (papers * (1 - ink[:, None]) + colour[..., None, None] * ink[:, None]).astype(
        np.float32
    )
    images = _blur(images, generator.uniform(0.1, 1.1, n))
    noise = generator.uniform(0, 14, n).astype(np.float32)[:, None, None, None]
    images += noise * generator.standard_normal(images.shape, dtype=np.float32)
    painted: NDArray[np.uint8] = np.clip(np.rint(images), 0, 255).astype(np.uint8)
    return painted


def _blur(images: Floats, sigma: NDArray[np.float64]) -> Floats:
    """Blur each image [n, C, H, W] with a Gaussian of its `sigma` [n] (radius 3 pixels, edges repeated)."""
    kernel = np.exp(-0.5 * (np.arange(-3, 4) / sigma[:, None]) ** 2)
    kernel = (kernel / kernel.sum(1, keepdims=True)).astype(np.float32)
    for axis in (2, 3):
        widths = [(3, 3) if a == axis else (0, 0) for a in range(4)]
        padded = np.pad(images, widths, mode="edge")
        shifted: list[Floats] = [np.take(padded, range(k, k + SIZE), axis=axis) for k in range(7)]
        images = np.einsum("nk,knchw->nchw", kernel, np.stack(shifted), optimize=False)
    return images


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
    return assemble("glyphs", [domain], names, task="few-shot")


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
