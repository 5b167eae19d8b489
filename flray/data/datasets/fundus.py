"""Retinal photographs of six sources with masks of optic disc and cup, and a drawn stand-in for them."""

import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from PIL import Image, ImageDraw
from pydantic import Field

from flray.data.datasets.embedded import ChosenDomains, SampleCap, Seed, assemble, select_domains
from flray.data.sources import image_sets, images
from flray.data.sources.archives import Place, Source, facts, register_source
from flray.data.types import DataSet, Domain, Floats, Images
from flray.errors import DataError
from flray.registry import register_dataset
from flray.rng import numpy_generator

STRUCTURES = ("disc", "cup")


SOURCES = facts(__file__)


@register_dataset("fundus-synthetic")
def fundus_synthetic(
    root: Path,
    *,
    seed: Seed = 0,
    domains: ChosenDomains = None,
    samples: Annotated[
        int, Field(ge=5, description="images of each source; a fifth of them for test")
    ] = 60,
    size: Annotated[
        int, Field(ge=16, description="height and width; unet needs a multiple of 16")
    ] = 64,
) -> DataSet:
    """Return drawn retinas of six sources A to F with masks of disc and cup (segmentation, 3 channels).

    Shapes, colours, blur, noise and shading differ between sources; the cup lies within the disc.
    Origin: rendered.

    Parameters
    ----------
    root : Path
        Data cache; not used.
    seed : int
        The seed of all images.
    domains : list of str, optional
        Some of the sources.
    samples : int
        Images of each source.
    size : int
        Height and width.
    """
    parts = []
    for name, look in SOURCES.items():
        generator = numpy_generator(seed, "data", extra=f"fundus-synthetic/{name}")
        drawn = [draw(look, size, generator) for _ in range(samples)]
        x, y = (np.stack(arrays) for arrays in zip(*drawn, strict=True))
        cut = samples - samples // 5
        parts.append(Domain(name, "rendered", x[:cut], y[:cut], x[cut:], y[cut:]))
    return assemble("fundus-synthetic", parts, STRUCTURES, chosen=domains, task="segmentation")


def draw(
    look: Mapping[str, Any], size: int, generator: np.random.Generator
) -> tuple[Images, Images]:
    """Return one image [3, size, size] of a source's look and its masks of disc and cup [2, size, size]."""
    from scipy.ndimage import gaussian_filter

    across, down = np.meshgrid(np.arange(size) + 0.5, np.arange(size) + 0.5)
    middle = size * generator.uniform(0.4, 0.6, 2)
    radius = size * generator.uniform(*look["radius"])
    inner = radius * generator.uniform(*look["ratio"])
    # The cup's middle moves by so little that the cup stays within the disc, whatever the ellipses'
    # axes.
    shift = np.zeros(2)
    if inner < 0.8 * radius:
        shift = 0.4 * (0.8 * radius - inner) * generator.uniform(-1, 1, 2)
    turn = generator.uniform(0, np.pi)
    disc = _ellipse(across, down, middle, radius, generator.uniform(0.85, 1.0), turn)
    cup = _ellipse(across, down, middle + shift, inner, generator.uniform(0.85, 1.0), turn)
    masks = np.stack([disc <= 1, (cup <= 1) & (disc <= 1)])

    image = np.empty((3, size, size))
    image[:] = np.array(look["retina"])[:, None, None]
    soft = size / 24  # the rims fade over some pixels
    for distance, scale, colour in ((disc, radius, look["disc"]), (cup, inner, look["cup"])):
        coverage = 1 / (1 + np.exp(np.clip((distance - 1) * scale / soft * 4, -50, 50)))
        image += coverage * (np.array(colour)[:, None, None] - image)
    image *= 1 - look["vessels"] * _vessels(size, middle, generator)
    reach = np.hypot(across - size / 2, down - size / 2) / (size / np.sqrt(2))
    image *= (1 - look["shade"] * reach**2) * generator.uniform(0.85, 1.15)
    image = gaussian_filter(image, (0, look["blur"] * size / 64, look["blur"] * size / 64))
    image += look["noise"] * generator.standard_normal(image.shape)
    return images.to_uint8(255 * image), masks.astype(np.uint8)


def _ellipse(
    across: Floats, down: Floats, middle: Floats, radius: float, flat: float, turn: float
) -> Floats:
    """Return the distance from the middle in units of the ellipse, 1 on its rim."""
    x, y = across - middle[0], down - middle[1]
    along, beside = x * np.cos(turn) + y * np.sin(turn), y * np.cos(turn) - x * np.sin(turn)
    distance: Floats = np.hypot(along / radius, beside / (radius * flat))
    return distance


def _vessels(size: int, middle: Floats, generator: np.random.Generator) -> Floats:
    """Return the coverage of some curved lines that leave the disc's middle, [size, size] in [0, 1]."""
    canvas = Image.new("L", (size, size))
    pen = ImageDraw.Draw(canvas)
    steps = np.linspace(0, 1, 12)
    for start in generator.uniform(0, 2 * np.pi, 6):
        angle = start + generator.uniform(-1.5, 1.5) * steps
        x, y = middle[0] + size * steps * np.cos(angle), middle[1] + size * steps * np.sin(angle)
        width = max(1, round(size / 64 * generator.uniform(1, 2.5)))
        pen.line(list(zip(x.tolist(), y.tolist(), strict=True)), fill=255, width=width)
    return np.asarray(canvas, dtype=np.float64) / 255


DOMAINS = tuple(f"domain{number}" for number in range(1, 7))
LAYOUT = "Domain1 to Domain6/{train,test}/ROIs/{image,mask}/*.png, image and mask of the same name"


FUNDUS = register_source(
    Source(
        "fundus",
        "the six-source optic disc and cup set of DoFE (https://github.com/emma-sjwang/Dofe) and its extension",
    )
)


@register_dataset("fundus")
def fundus(
    root: Path,
    *,
    path: Place = None,
    seed: Seed = 0,
    domains: ChosenDomains = None,
    samples: SampleCap = None,
    size: image_sets.Size = 256,
    mapped: image_sets.Mapped = None,
) -> DataSet:
    """Return retinal photographs of six sources with masks of disc and cup (segmentation); own test parts."""
    store = image_sets.find_store(root, FUNDUS, path, LAYOUT)
    chosen = select_domains("fundus", DOMAINS, domains)
    spec = image_sets.ImageSet(
        "fundus", chosen, STRUCTURES, size, seed, samples, mapped, "segmentation", disc_and_cup
    )
    return image_sets.image_dataset(spec, _table(store, chosen), store, root)


def disc_and_cup(mask: Images, path: Path) -> Images:
    """Return the masks of disc (which includes the cup) and cup from one of three grey values.

    Parameters
    ----------
    mask : ndarray of uint8 [H, W]
        White outside, grey in the disc's rim, black in the cup; or black outside and white in the
        cup; or 0, 1, 2.
    path : Path
        For the message.

    Returns
    -------
    ndarray of uint8 [2, H, W]
        1 inside.

    Raises
    ------
    DataError
        If it is not such a mask, or shows no disc.
    """
    corners = np.array([mask[0, 0], mask[0, -1], mask[-1, 0], mask[-1, -1]])
    outside = int(np.median(corners))
    if int(mask.max()) <= 2:
        disc, cup = mask >= 1, mask == 2
    elif outside > 200:
        disc, cup = mask <= 200, mask <= 50
    elif outside < 50:
        disc, cup = mask >= 50, mask > 200
    else:
        raise DataError(
            f"{path}: grey value {outside} in the corners; expected white or black outside the "
            "disc; fetch the mask again"
        )
    if not disc.any():
        raise DataError(
            f"{path}: the mask shows no disc; fetch it again, or take it and its image away"
        )
    return np.stack([disc, cup]).astype(np.uint8)


def _table(store: image_sets.Store, chosen: Sequence[str]) -> image_sets.Table:
    found: dict[tuple[int, bool, str], dict[str, image_sets.Item]] = defaultdict(dict)
    for item in store.items():
        path = item.path.lower()
        place = re.fullmatch(
            "(?:.*/)?(domain[1-6])/(train|test)/rois/(image|mask)/([^/]+)[.][^/.]+", path
        )
        if item.is_image and not place and not set(path.split("/")).isdisjoint(DOMAINS):
            raise DataError(
                f"data set fundus: {store.where / item.path} is out of place; expected {LAYOUT}; take it away"
            )
        if item.is_image and place and place[1] in chosen:
            found[chosen.index(place[1]), place[2] == "test", place[4]][place[3]] = item
    for pair in found.values():
        for have, lacks in (("image", "mask"), ("mask", "image")):
            if lacks not in pair:
                raise DataError(
                    f"data set fundus: {store.where / pair[have].path} has no {lacks} of the same "
                    "name; fetch it again or take the file away"
                )
    keys = sorted(found)
    return image_sets.Table(
        [found[key]["image"] for key in keys],
        np.zeros(len(keys), dtype=np.int64),
        np.array([key[0] for key in keys], dtype=np.int64),
        np.array([key[1] for key in keys], dtype=bool),
        [found[key]["mask"] for key in keys],
    )
