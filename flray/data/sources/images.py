"""Tools for sets of images: decoding, resizing, bundled photos, choice of samples. Arrays are uint8 unless noted."""

import contextlib
import gzip
import io
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps, UnidentifiedImageError

from flray.data.types import Array, Flags, Floats, Images, Ints, Rows, rows_by_number
from flray.errors import DataError, one_line
from flray.rng import numpy_generator

# Standard deviation within a crop below which it counts as one colour: half of the bundled photos
# is smooth background.
_MIN_CONTRAST = 20


# Pillow is told what to expect: of its other formats some start programs (EPS is drawn by
# Ghostscript).
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP")


def open_image(content: bytes) -> Image.Image:
    """Open an image without decoding it."""
    return Image.open(io.BytesIO(content), formats=_FORMATS)


def decode(content: bytes, where: Path | str, size: int, mode: str = "RGB") -> Images:
    """Return one image; see `flray.data.sources.image_sets.decode_images`.

    Parameters
    ----------
    content : bytes
        Its file.
    where : Path or str
        For messages.
    size, mode : int, str
        As for `decode_images`.

    Raises
    ------
    DataError
        As `decode_images` does.
    """
    try:
        with open_image(content) as image:
            pixels = _eight_bits(image)
        if mode == "L":
            red, *others = pixels.split()
            if any(other.tobytes() != red.tobytes() for other in others):
                raise ValueError("it is coloured, and a mask must be grey")
            pixels = red
    except Exception as error:  # Pillow raises nearly anything on damaged files
        why = f"it is no {', '.join(_FORMATS[:-1])} or {_FORMATS[-1]} file"
        if not isinstance(error, UnidentifiedImageError):
            why = one_line(" ".join(str(error).split()))
        raise DataError(
            f"{where}: cannot be decoded ({why}); fetch the file again, or take it away"
        ) from None
    if pixels.size != (size, size):
        how = Image.Resampling.BILINEAR if mode == "RGB" else Image.Resampling.NEAREST
        pixels = pixels.resize((size, size), how)
    return np.asarray(pixels)


def _eight_bits(image: Image.Image) -> Image.Image:
    """Return an image upright, in red, green and blue of 8 bits each."""
    stand_upright(image)
    if image.mode.startswith("I"):  # Pillow would cut 16 bits of grey off at 255
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if "transparency" in image.info:
        image = image.convert("RGBA")  # Pillow warns on some of the direct ways
    return image.convert("RGB")


def stand_upright(image: Image.Image) -> None:
    """Turn an image as its EXIF data say."""
    # What is noted beside an image may be damaged where the image is not.
    with contextlib.suppress(Exception):
        image.getexif()
        image.info.pop("exif", None)  # or else all that is noted there would be written anew
        ImageOps.exif_transpose(image, in_place=True)


def upright_size(content: bytes) -> tuple[int, int]:
    """Return width and height of an image that stands as its EXIF data say."""
    with open_image(content) as image:
        stand_upright(image)
        return image.size


def _carried(package: str, place: str) -> Path:
    """Return a file or folder that a library carries, without its import: scikit-learn's takes a second."""
    spec = find_spec(package)
    assert spec is not None and spec.origin is not None, f"flray requires {package}"
    return Path(spec.origin).parent / place


def bundled_digits() -> tuple[Array, Ints]:
    """Return the 1,797 digits that scikit-learn carries: [n, 8, 8] with values from 0 to 16, and their labels."""
    with gzip.open(_carried("sklearn", "datasets/data/digits.csv.gz"), "rt") as lines:
        table = np.loadtxt(lines, delimiter=",")
    return table[:, :-1].reshape(-1, 8, 8), table[:, -1].astype(np.int64)


@cache
def bundled_photos() -> tuple[Images, ...]:
    """Return the photos that scikit-learn (and matplotlib, where installed with its sample data) carry, [H, W, 3]."""
    files = sorted(_carried("sklearn", "datasets/images").glob("*.jpg"))
    hopper = _carried("matplotlib", "mpl-data/sample_data/grace_hopper.jpg")
    photos = []
    for file in (*files, *([hopper] if hopper.exists() else [])):
        with Image.open(file) as image:
            photos.append(np.asarray(image.convert("RGB"), dtype=np.uint8))
    return tuple(photos)


@cache  # some 4 MB, and most of the time that a few crops take
def _pyramid(max_scale: int) -> tuple[tuple[Images, ...], ...]:
    """Return each bundled photo averaged in blocks of 1, 2, ... `max_scale` pixels."""
    scales = range(1, max_scale + 1)
    return tuple(tuple(_block_mean(photo, n) for n in scales) for photo in bundled_photos())


def photo_crops(n: int, size: int, generator: np.random.Generator, max_scale: int = 8) -> Images:
    """Return random square crops of the bundled photos; a crop of nearly one colour is drawn again, up to 10 times.

    Parameters
    ----------
    n : int
        The number of crops.
    size : int
        Side of a crop in pixels.
    generator : numpy.random.Generator
        Chooses photo, scale, place and mirroring.
    max_scale : int
        A crop covers `size` times 1, 2, ... or `max_scale` pixels of its photo, averaged in blocks:
        more different textures out of few photos.

    Returns
    -------
    ndarray of uint8 [n, 3, size, size]
    """
    pyramid = _pyramid(max_scale)
    crops = np.empty((n, 3, size, size), dtype=np.uint8)
    for crop in crops:
        for _ in range(10):
            level = pyramid[generator.integers(len(pyramid))][generator.integers(max_scale)]
            top, left = (int(generator.integers(side - size + 1)) for side in level.shape[:2])
            patch = level[top : top + size, left : left + size]
            if patch.std(axis=(0, 1)).mean() >= _MIN_CONTRAST:
                break
        crop[:] = (patch[:, ::-1] if generator.integers(2) else patch).transpose(2, 0, 1)
    return crops


def choose_test(
    name: str,
    domains: Sequence[str],
    domain: Rows,
    labels: Rows,
    share: float,
    seed: int,
    units: Rows | None = None,
) -> Flags:
    """Return which samples are for test, a share of each class of each domain.

    Parameters
    ----------
    name : str
        The name of the data set, part of the keys.
    domains : sequence of str
        Their names, also part of the keys.
    domain, labels : ndarray of int64 [n]
        Domain and class of each sample.
    share : float
        In (0, 1). A class of two or more units in a domain has at least one in each part.
    seed : int
        Decides the samples.
    units : ndarray of int64 [n], optional
        Samples of one number go to the same part; by default no two share one.
    """
    test = np.zeros(len(labels), dtype=bool)
    units = np.arange(len(labels)) if units is None else units
    classes = labels.max(initial=-1) + 1
    for cell, rows in rows_by_number(domain * classes + labels):
        _, first = np.unique(units[rows], return_index=True)
        key = f"{name}/split/{domains[cell // classes]}/{cell % classes}"
        order = numpy_generator(seed, "data", extra=key).permutation(units[rows][np.sort(first)])
        count = min(max(round(share * len(order)), 1), len(order) - 1)
        test[rows] = np.isin(units[rows], order[:count])
    return test


def cap_rows(domain: str, rows: Rows, samples: int | None, seed: int) -> Rows:
    """Return at most `samples` of a domain's training rows in the order of choice, or all of them as they are.

    Parameters
    ----------
    domain : str
        Its name, part of the key.
    rows : ndarray of int64
        The rows.
    samples : int or None
        The limit; a larger choice contains every smaller one.
    seed : int
        The data set's seed.
    """
    if samples is None or samples >= len(rows):
        return rows
    order = numpy_generator(seed, "data", extra=f"samples/{domain}").permutation(len(rows))
    return rows[order[:samples]]


def resize(images: Array, size: int) -> Images:
    """Resize square images bilinearly (half-pixel centres, edges repeated).

    Parameters
    ----------
    images : ndarray [..., H, H]
        Values in 0..255.
    size : int
        New side in pixels.

    Returns
    -------
    ndarray of uint8 [..., size, size]
    """
    weights = triangles(images.shape[-1], size)
    return to_uint8(weights @ images.astype(np.float64) @ weights.T)


def triangles(old: int, new: int) -> Floats:
    """Return the weights [new, old] of a resampling; multiples of 2^-12, so that sums do not depend on the BLAS."""
    scale = max(1.0, old / new)
    centres = (np.arange(new) + 0.5) * old / new - 0.5
    weights = np.maximum(
        0.0, 1.0 - np.abs(np.clip(centres, 0, old - 1)[:, None] - np.arange(old)) / scale
    )
    weights = np.rint(weights / weights.sum(1, keepdims=True) * 4096)
    weights[np.arange(new), weights.argmax(1)] += 4096 - weights.sum(1)
    found: Floats = weights / 4096
    return found


def to_colour(grey: Images) -> Images:
    """Return grey images [n, H, W] with their channel three times, [n, 3, H, W]."""
    return np.repeat(grey[:, None], 3, axis=1)


def over_photos(digits: Images, crops: Images) -> Images:
    """Return ``|crop - digit|`` per channel, the composition of MNIST-M (Ganin and Lempitsky 2015).

    Parameters
    ----------
    digits : ndarray of uint8 [n, H, W]
        White on black.
    crops : ndarray of uint8 [n, 3, H, W]
        Backgrounds.
    """
    return to_uint8(np.abs(crops.astype(np.int16) - digits[:, None]))


def channel_statistics(images: list[Array]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation per channel, over all arrays together.

    Parameters
    ----------
    images : list of ndarray [n, C, ...]
        Training samples. Samples of uint8 are images; their statistics are those of pixels scaled to
        [0, 1]. Other samples (a table [n, columns], signals [n, channels, times]) are used as they
        are, and so are their statistics. To standardise a table, subtract the mean and divide by
        the deviation in the function of your data set.

    Returns
    -------
    (tuple of float, tuple of float)
        In the form of `DataSet`: the deviation of a constant channel of a table is 1.

    Raises
    ------
    DataError
        If the samples are not numbers, or have no channels.
    """
    for part in images:
        if (
            part.ndim < 2
            or part.dtype.kind not in "uif"
            or (part.dtype == np.uint8 and part.ndim != 4)
        ):
            raise DataError(
                f"channel_statistics: found {part.dtype} {list(part.shape)}; give uint8 images "
                "[n, channels, height, width] or numbers [n, columns, ...]"
            )
        if part.shape[1] != images[0].shape[1]:
            raise DataError(
                f"channel_statistics: found {images[0].shape[1]} and {part.shape[1]} channels; "
                "give arrays of one kind of samples"
            )
    if not sum(map(len, images)):
        raise DataError("channel_statistics: found no samples; give the training parts")
    if any(part.dtype != np.uint8 for part in images):
        return _statistics_of_numbers(images)
    return statistics_of(sum(map(channel_counts, images[1:]), channel_counts(images[0])))


def _statistics_of_numbers(tables: list[Array]) -> tuple[tuple[float, ...], tuple[float, ...]]:
    values = np.concatenate(
        [np.moveaxis(table, 1, -1).reshape(-1, table.shape[1]) for table in tables]
    )
    mean, deviation = values.mean(0, dtype=np.float64), values.std(0, dtype=np.float64)
    deviation = np.where(deviation > 0, deviation, 1.0)
    # Six digits: the last bits of sums differ between processors.
    return tuple(float(f"{m:.6g}") for m in mean), tuple(float(f"{s:.6g}") for s in deviation)


def channel_counts(images: Array) -> Ints:
    """Return how often each channel has each of the 256 values, int64 [C, 256], for uint8 images [n, C, H, W]."""
    counts = np.zeros((images.shape[1], 256), dtype=np.int64)
    step = max(1, 2**24 // max(1, images[:1].size))  # bincount makes its input eight times larger
    for start in range(0, len(images), step):
        counts += [
            np.bincount(images[start : start + step, c].ravel(), minlength=256)
            for c in range(len(counts))
        ]
    return counts


def statistics_of(counts: Ints) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Return mean and standard deviation per channel in [0, 1] from `channel_counts`.

    The counts are exact, so that no rounding depends on the order of summation.
    """
    values = np.arange(256) / 255
    total = counts.sum(1)
    mean = counts @ values / total
    variance = counts @ values**2 / total - mean**2
    return tuple(round(float(m), 6) for m in mean), tuple(
        round(float(s), 6) for s in np.sqrt(variance)
    )


def _block_mean(photo: Images, scale: int) -> Images:
    height, width = (side // scale * scale for side in photo.shape[:2])
    offsets = np.ndindex(scale, scale)  # numpy is slow at sums over many short axes
    parts = [photo[i:height:scale, j:width:scale] for i, j in offsets]
    return to_uint8(sum(parts, np.zeros(1)) / scale**2)


def to_uint8(values: Array) -> Images:
    """Return values rounded to pixels, and those beyond 0 to 255 as the nearer of these."""
    return np.clip(np.rint(values), 0, 255).astype(np.uint8)
