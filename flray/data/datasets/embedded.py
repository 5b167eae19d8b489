"""Data sets that are always there: scikit-learn's digits, crops of photos, random numbers, rendered characters.

Rendered are digits in colour (after Ganin et al. 2015), and a few-shot set of printed characters, with
the fonts that matplotlib carries alone: system fonts differ between machines, and so would the
samples.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from pydantic import Field

from flray.data.sources import images
from flray.data.types import Array, Arrays, DataSet, Domain, Floats, Images, Ints, Origin, Singles
from flray.errors import ConfigError, nearest
from flray.registry import register_dataset
from flray.rng import numpy_generator

PARTS = ("train_x", "train_y", "test_x", "test_y")
DIGITS = tuple(str(digit) for digit in range(10))
Seed = Annotated[int, Field(ge=0, description="seed of the choice and composition of samples")]
ChosenDomains = Annotated[list[str] | None, Field(description="domains to take, default all")]
SampleCap = Annotated[
    int | None,
    Field(ge=1, description="at most this many training samples per domain, default all"),
]
SKLEARN_DOMAINS = ("plain", "inverted", "rotated", "photo")


@register_dataset("digits-sklearn")
def digits_sklearn(
    root: Path, *, seed: Seed = 0, domains: ChosenDomains = None, samples: SampleCap = None
) -> DataSet:
    """Return the 1,797 digits that scikit-learn carries, split into four domains of different digits, 3x32x32.

    ``plain`` has the original digits (8x8 enlarged; origin real). The others are composed: ``inverted``
    is black on white, ``rotated`` by a quarter turn, ``photo`` the absolute difference to a photo crop.
    Each domain has about 360 training and 90 test samples.

    Parameters
    ----------
    root : Path
        Data cache; not used, the digits come with scikit-learn.
    seed : int
        Decides the domain and part of each digit.
    domains : list of str, optional
        Subset of the four names.
    samples : int, optional
        At most this many training samples per domain.
    """
    pixels, labels = images.bundled_digits()
    order = numpy_generator(seed, "data", extra="digits-sklearn").permutation(len(labels))
    crops = numpy_generator(seed, "data", extra="digits-sklearn/photo")
    parts = []
    for name, rows in zip(
        SKLEARN_DOMAINS, np.array_split(order, len(SKLEARN_DOMAINS)), strict=True
    ):
        digits = images.resize(pixels[rows] * (255 / 16), 32)
        origin: Origin = "real" if name == "plain" else "composed"
        if name == "inverted":
            digits = 255 - digits
        elif name == "rotated":
            digits = np.ascontiguousarray(np.rot90(digits, axes=(1, 2)))
        x = images.to_colour(digits)
        if name == "photo":
            x = images.over_photos(digits, images.photo_crops(len(rows), 32, crops))
        y, cut = labels[rows], round(0.8 * len(rows))
        parts.append(Domain(name, origin, x[:cut], y[:cut], x[cut:], y[cut:]))
    public = images.photo_crops(
        1000, 32, numpy_generator(seed, "data", extra="digits-sklearn/public")
    )
    return assemble("digits-sklearn", parts, DIGITS, seed, samples, domains, public=public)


@register_dataset("random")
def random(
    root: Path,
    *,
    samples: Annotated[
        int, Field(ge=1, description="training samples; a fifth as many test samples")
    ] = 10_000,
    shape: Annotated[
        tuple[Annotated[int, Field(ge=1)], ...],
        Field(min_length=1, description="shape of one sample"),
    ] = (3, 32, 32),
    classes: Annotated[int, Field(ge=2)] = 10,
    seed: Seed = 0,
) -> DataSet:
    """Return standard normal samples with labels that mean nothing, for benchmarks.

    Parameters
    ----------
    root : Path
        Data cache; not used.
    samples : int
        Training samples; there are a fifth as many test samples, at least one per class.
    shape : tuple of int
        Shape of one float32 sample.
    classes : int
        Classes take turns, so that all are equally frequent.
    seed : int
        Seed of the samples.
    """
    generator = numpy_generator(seed, "data", extra="random")
    arrays: list[Array] = []
    for n in (samples, max(samples // 5, classes)):
        arrays += [
            generator.standard_normal((n, *shape), dtype=np.float32),
            np.arange(n, dtype=np.int64) % classes,
        ]
    domain = Domain("random", "random", *arrays)
    names, channels = tuple(map(str, range(classes))), shape[0]
    return DataSet("random", (domain,), names, (0.0,) * channels, (1.0,) * channels)


def select_domains(name: str, have: Sequence[str], wanted: Sequence[str] | None) -> tuple[str, ...]:
    """Return the wanted domains in the set's order, or all.

    Raises
    ------
    ConfigError
        If one is unknown or named twice, or none is wanted.
    """
    if wanted is None:
        return tuple(have)
    setting = f"dataset.{name}.domains"
    if not wanted:
        raise ConfigError(setting, "an empty list", f"some of {', '.join(have)}")
    for domain in wanted:
        if domain not in have or list(wanted).count(domain) > 1:
            near = nearest(domain, set(have) - {domain})
            raise ConfigError(
                setting, repr(domain), f"each of {', '.join(have)} at most once{near}"
            )
    return tuple(domain for domain in have if domain in wanted)


def assemble(
    name: str,
    domains: Sequence[Domain],
    classes: tuple[str, ...],
    seed: int = 0,
    samples: int | None = None,
    chosen: Sequence[str] | None = None,
    **more: Any,
) -> DataSet:
    """Return a data set of some domains.

    Parameters
    ----------
    name : str
        The data set's.
    domains : sequence of Domain
        Those that it may have.
    classes : tuple of str
        As in `DataSet`.
    seed, samples : int, int or None
        As for `cap_samples`.
    chosen : sequence of str, optional
        As for `select_domains`.
    **more : Any
        Further arguments of `DataSet`.
    """
    names = select_domains(name, [domain.name for domain in domains], chosen)
    taken = tuple(cap_samples(d, samples, seed) for d in domains if d.name in names)
    return DataSet(
        name, taken, classes, *images.channel_statistics([d.train_x for d in taken]), **more
    )


def one_domain(
    name: str, arrays: Arrays, classes: tuple[str, ...], seed: int, samples: int | None, **more: Any
) -> DataSet:
    """Return a data set of a single domain from the arrays of its two parts."""
    domain = Domain(name, "real", *(arrays[part] for part in PARTS))
    return assemble(name, [domain], classes, seed, samples, **more)


def cap_samples(domain: Domain, samples: int | None, seed: int) -> Domain:
    """Return the domain with at most `samples` training samples, a subset chosen by the seed.

    Parameters
    ----------
    domain : Domain
        The domain; its test part does not change.
    samples : int or None
        The limit; None keeps the whole training part.
    seed : int
        The data set's seed; a larger subset contains every smaller one.
    """
    if samples is None or samples >= len(domain.train_y):
        return domain
    rows = images.cap_rows(domain.name, np.arange(len(domain.train_y)), samples, seed)
    return replace(domain, train_x=domain.train_x[rows], train_y=domain.train_y[rows])


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
        Decides the crops.
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
            images.photo_crops(count, size, generator, max_scale=max(1, min(8, 400 // size))),
            np.zeros(count, dtype=np.int64),
        ]
    return assemble("photos", [Domain("photos", "real", *parts)], ("photo",))


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


def render_digits(labels: Ints, generator: np.random.Generator) -> Images:
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
        ink = _ink(labels[start : start + _CHUNK], generator)
        images[start : start + _CHUNK] = _paint(ink, generator)
    return images


@cache
def _atlas() -> tuple[Singles, Singles]:
    """Return glyph masks [fonts, 10, tile, tile] in [0, 1] and the glyphs' widths [fonts, 10] in atlas pixels."""
    import matplotlib

    folder = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    tiles = np.zeros((len(FONTS), 10, _TILE, _TILE), dtype=np.float32)
    widths = np.zeros((len(FONTS), 10), dtype=np.float32)
    for f, name in enumerate(FONTS):
        _, top, _, bottom = ImageFont.truetype(folder / f"{name}.ttf", 100).getbbox("8")
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


def _ink(labels: Ints, generator: np.random.Generator) -> Singles:
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


def _sample(tiles: Singles, u: Floats, v: Floats) -> Singles:
    """Return the tiles' values at positions measured from their centres, bilinearly, 0 outside."""
    column = np.clip(u + _TILE / 2 - 0.5, 0, _TILE - 1.001)
    row = np.clip(v + _TILE / 2 - 0.5, 0, _TILE - 1.001)
    left, top = column.astype(np.int64), row.astype(np.int64)
    right, down = (column - left).astype(np.float32), (row - top).astype(np.float32)
    flat = tiles.reshape(-1)
    at = np.arange(len(tiles))[:, None, None] * _TILE * _TILE + top * _TILE + left
    upper = flat[at] * (1 - right) + flat[at + 1] * right
    lower = flat[at + _TILE] * (1 - right) + flat[at + _TILE + 1] * right
    values: Singles = upper * (1 - down) + lower * down
    return values


def _paint(ink: Singles, generator: np.random.Generator) -> Images:
    """Return images [n, 3, 32, 32] of the ink in one colour over a gradient of two others."""
    n = len(ink)
    paper = generator.uniform(0, 255, (n, 3))
    far = np.clip(paper + generator.uniform(-80, 80, (n, 3)), 0, 255)
    colour = generator.uniform(0, 255, (n, 3))
    # Legible: too close to the paper in brightness, the colour moves away from it.
    weights = np.array([0.299, 0.587, 0.114])
    difference = (colour - (paper + far) / 2) @ weights
    away = np.where((paper + far) @ weights / 2 < 128, 1, -1) * 90 - difference
    push = np.where(np.abs(difference) < 70, away, 0)
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
    return np.clip(np.rint(images), 0, 255).astype(np.uint8)


def _blur(images: Singles, sigma: Floats) -> Singles:
    """Blur each image [n, C, H, W] with a Gaussian of its `sigma` [n] (radius 3 pixels, edges repeated)."""
    kernel = np.exp(-0.5 * (np.arange(-3, 4) / sigma[:, None]) ** 2)
    kernel = (kernel / kernel.sum(1, keepdims=True)).astype(np.float32)
    for axis in (2, 3):
        widths = [(3, 3) if a == axis else (0, 0) for a in range(4)]
        padded = np.pad(images, widths, mode="edge")
        shifted: list[Singles] = [np.take(padded, range(k, k + SIZE), axis=axis) for k in range(7)]
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


def render(character: str, size: int, generator: np.random.Generator) -> Images:
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
    middle = np.array([left + right, top + bottom]) / 2
    corner = size / 2 - middle + size * generator.uniform(-0.08, 0.08, 2)
    ImageDraw.Draw(canvas).text(
        (float(corner[0]), float(corner[1])), character, fill=255, font=font
    )
    canvas = canvas.rotate(generator.uniform(-20, 20), resample=Image.Resampling.BILINEAR)
    ink = gaussian_filter(
        np.asarray(canvas, dtype=np.float64), generator.uniform(0, 0.8) * size / 32
    )
    image = ink * generator.uniform(0.5, 1.0) + 20 * generator.standard_normal(ink.shape)
    return images.to_uint8(image + generator.uniform(0, 40))
