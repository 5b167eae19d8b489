"""Photos in a folder or a zip archive, decoded by a few threads. Nothing is unpacked or executed."""

from __future__ import annotations

import contextlib
import io
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from flray.data.sources.file_stores import Item, Store
from flray.errors import DataError
from flray.files.border import PIXELS
from flray.startup import usable_cpus

# Pillow is told what to expect: of its other formats some start programs (EPS is drawn by
# Ghostscript).
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP")
_ON_ITS_SIDE = (5, 6, 7, 8)  # orientations of EXIF
_AHEAD = 1024  # images that are in work or wait to be taken
_LARGE = 2**24  # bytes of a file, or pixels, from which on one is decoded at a time
_alone = threading.RLock()


def decode_images(
    store: Store, items: Sequence[Item], size: int, mode: str = "RGB"
) -> Iterator[NDArray[np.uint8]]:
    """Yield images in the order of `items`, decoded by a few threads.

    They are upright as their EXIF says, of 16 bits the upper eight, and without their transparency,
    as torchvision's folders give them.

    Parameters
    ----------
    store : Store
        Where they lie.
    items : sequence of Item
        Which.
    size : int
        Height and width to which each is resized, bilinearly, whatever its proportions.
    mode : str
        Pillow's: ``"RGB"`` gives [size, size, 3]; ``"L"`` [size, size], resized to the nearest
        pixel's value (masks, which must be grey).

    Raises
    ------
    DataError
        Naming the first file that is damaged, too large or no image, or a coloured mask.
    """

    def one(item: Item) -> NDArray[np.uint8]:
        with _one_at_a_time(item.size):
            return decode(lambda: store.read(item.path), store.where / item.path, size, mode)

    with ThreadPoolExecutor(min(8, usable_cpus())) as pool:
        for start in range(0, len(items), _AHEAD):
            yield from pool.map(one, items[start : start + _AHEAD])


def decode(
    read: Callable[[], bytes], where: Path | str, size: int, mode: str = "RGB"
) -> NDArray[np.uint8]:
    """Return one image; see `decode_images`.

    Parameters
    ----------
    read : callable
        Returns the bytes of its file.
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
        with _open_image(read(), where) as image, _one_at_a_time(image.width * image.height):
            pixels = _eight_bits(image)
            if mode == "L":
                red, *others = pixels.split()
                if any(other.tobytes() != red.tobytes() for other in others):
                    raise ValueError("it is coloured, and a mask must be grey")
                pixels = red
    except DataError:
        raise
    except Exception as error:  # Pillow raises nearly anything on damaged files
        why = (
            " ".join(str(error).split())
            if not isinstance(error, UnidentifiedImageError)
            else f"it is no {', '.join(_FORMATS[:-1])} or {_FORMATS[-1]} file"
        )
        raise DataError(
            f"{where}: cannot be decoded ({why}); fetch the file again, or take it away"
        ) from None
    if pixels.size != (size, size):
        how = Image.Resampling.BILINEAR if mode == "RGB" else Image.Resampling.NEAREST
        pixels = pixels.resize((size, size), how)
    return np.asarray(pixels)


def check_proportions(store: Store, images: Sequence[Item], masks: Sequence[Item]) -> None:
    """Refuse a mask that would not lie on its image: both are resized to one square.

    Parameters
    ----------
    store : Store
        Where they lie, decoded before.
    images, masks : sequence of Item
        In the same order.

    Raises
    ------
    DataError
        Naming the first mask whose height by width is more than one pixel off its image's.
    """
    for image, mask in zip(images, masks, strict=True):
        (width, height), (mask_width, mask_height) = (
            _extent(store, item) for item in (image, mask)
        )
        if abs(width * mask_height - height * mask_width) > max(
            width, height, mask_width, mask_height
        ):
            raise DataError(
                f"{store.where / mask.path}: the mask is {mask_width}x{mask_height} and its image "
                f"{width}x{height}, so it does not lie on it; fetch both again, or take them away"
            )


def _extent(store: Store, item: Item) -> tuple[int, int]:
    """Return an upright image's width and height."""
    with _open_image(store.read(item.path), store.where / item.path) as image:
        return (image.height, image.width) if _orientation(image) in _ON_ITS_SIDE else image.size


def _open_image(content: bytes, where: Path | str) -> Image.Image:
    """Return an image of which the head was read.

    Raises
    ------
    DataError
        If it has more pixels than are decoded.
    """
    # Pillow warns from 89 million pixels on; all of these are refused here, in one line.
    warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)
    try:
        image = Image.open(io.BytesIO(content), formats=_FORMATS)
    except Image.DecompressionBombError:
        what = f"more than {PIXELS:,} pixels"
    else:
        if image.width * image.height <= PIXELS:
            return image
        what = f"{image.width}x{image.height} pixels"
    raise DataError(
        f"{where}: it has {what}, and at most {PIXELS:,} are decoded of one "
        "image; make it smaller, or take it away"
    )


def _one_at_a_time(size: int) -> contextlib.AbstractContextManager[object]:
    """Return what keeps several large images from being in memory at once."""
    return _alone if size > _LARGE else contextlib.nullcontext()


def _eight_bits(image: Image.Image) -> Image.Image:
    """Return an image upright, in red, green and blue of 8 bits each."""
    if _orientation(image) != 1:
        image.info.pop("exif", None)  # or else all that is noted there would be written anew
        image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I"):  # Pillow would cut 16 bits of grey off at 255
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if "transparency" in image.info:
        image = image.convert("RGBA")  # Pillow warns on some of the direct ways
    return image.convert("RGB")


def _orientation(image: Image.Image) -> int:
    try:
        orientation: int = image.getexif().get(ExifTags.Base.Orientation, 1)
    except Exception:  # what is written beside the image may be damaged where the image is not
        return 1
    return orientation
