"""Files in a folder or a zip archive: listed, read, compared, decoded as images. Nothing is unpacked or executed."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import threading
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from flray.errors import DataError, one_line
from flray.files.border import FILE_BYTES, read_at_most
from flray.startup import usable_cpus

IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp")
_LITTER = ("thumbs.db", "desktop.ini", "__macosx")


class Item(NamedTuple):
    """A file: its path from the top with ``/`` between names, its size, and a mark that changes with its content."""

    path: str
    size: int
    stamp: str

    @property
    def is_image(self) -> bool:
        """Whether its name is that of an image."""
        return PurePosixPath(self.path).suffix.lower() in IMAGES


class Store:
    """Files in a folder, whose symbolic links are followed, or in a zip archive, which stays packed.

    Parameters
    ----------
    where : Path
        The folder or archive.

    Raises
    ------
    DataError
        If it is a file, but not a zip archive.
    """

    def __init__(self, where: Path) -> None:
        self.where, self._lock = where, threading.Lock()
        self.archive: zipfile.ZipFile | None = None
        if where.is_file():
            try:
                self.archive = zipfile.ZipFile(where)
            except (OSError, ValueError, zipfile.BadZipFile) as error:
                raise DataError(
                    f"{where}: not a readable zip archive ({error}); fetch it again, or unpack it "
                    "into a folder if it is of another kind"
                ) from None

    def items(self) -> list[Item]:
        """Return all files in the order of their paths, without hidden files and files of operating systems."""
        if self.archive is not None:
            entries = (entry for entry in self.archive.infolist() if not entry.is_dir())
            found = [Item(e.filename, e.file_size, f"{e.CRC:08x}") for e in entries]
        else:
            found = []
            try:
                for folder, _, names in os.walk(self.where, onerror=_raise, followlinks=True):
                    for path in (Path(folder, name) for name in names):
                        facts, below = path.stat(), path.relative_to(self.where).as_posix()
                        found.append(Item(below, facts.st_size, str(facts.st_mtime_ns)))
            except OSError as error:
                raise DataError(f"{error.filename}: cannot be read ({error.strerror})") from None
        return sorted(one for one in found if not any(map(_is_litter, one.path.split("/"))))

    def read(self, path: str) -> bytes:
        """Return a file's content.

        Raises
        ------
        DataError
            Naming the file, if it is not there or damaged, or too large in an archive.
        """
        where = self.where / path
        try:
            if self.archive is None:
                return where.read_bytes()
            entry = self.archive.getinfo(path)
            if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                # zipfile unpacks all of bzip2 and LZMA that it has read, however much that is.
                raise NotImplementedError("it is neither stored nor deflated; pack it again")
            with self._lock, self.archive.open(entry) as file:
                return read_at_most(file, where, FILE_BYTES)
        except (
            *(KeyError, OSError, EOFError, RuntimeError, ValueError),
            *(zlib.error, zipfile.BadZipFile),
        ) as error:
            raise DataError(f"{where}: cannot be read ({error}); fetch it again") from None


def _raise(error: OSError) -> None:
    raise error


def open_store(path: Path) -> Store | None:
    """Return the files of a folder or zip archive, of the only archive in a folder without anything else, or None."""
    if not path.is_dir():
        return Store(path) if path.exists() else None
    inside = [entry for entry in path.iterdir() if not _is_litter(entry.name)]
    if len(inside) == 1 and inside[0].is_file() and inside[0].suffix.lower() == ".zip":
        return Store(inside[0])
    return Store(path) if inside else None


def content_groups(store: Store, items: Sequence[Item]) -> NDArray[np.int64]:
    """Return a number for each file, which is the same for all files with the same bytes.

    Parameters
    ----------
    store : Store
        The store of the files. In a folder, this reads the files of equal size; in an archive, none.
    items : sequence of Item
        The files.

    Returns
    -------
    ndarray of int64 [n]
        The position of the first file with these bytes.
    """
    sizes = Counter(item.size for item in items)
    first: dict[tuple[int, object], int] = {}

    def content(item: Item) -> object:
        if store.archive is not None:
            return item.stamp
        return sizes[item.size] > 1 and hashlib.sha256(store.read(item.path)).digest()

    return np.array(
        [first.setdefault((item.size, content(item)), row) for row, item in enumerate(items)],
        dtype=np.int64,
    )


def _is_litter(name: str) -> bool:
    return name.startswith(".") or name.lower() in _LITTER


# Pillow is told what to expect: of its other formats some start programs (EPS is drawn by
# Ghostscript).
_FORMATS = ("JPEG", "PNG", "BMP", "GIF", "WEBP")
_AHEAD = 1024  # images that are in work or wait to be taken


def decode_images(
    store: Store, items: Sequence[Item], size: int, mode: str = "RGB"
) -> Iterator[NDArray[np.uint8]]:
    """Yield images in the order of `items`, decoded by a few threads.

    Images are turned upright by their EXIF data, lose their transparency, and keep the upper eight of
    16 bits, as in torchvision's folders.

    Parameters
    ----------
    store : Store
        The store of the files.
    items : sequence of Item
        The files.
    size : int
        The height and width of the result; images are resized bilinearly, whatever their proportions.
    mode : str
        Pillow's mode: ``"RGB"`` gives [size, size, 3]; ``"L"`` [size, size], resized to the nearest
        pixel's value (masks, which must be grey).

    Raises
    ------
    DataError
        Naming the first file that is damaged, too large, not an image, or a coloured mask.
    """
    with ThreadPoolExecutor(min(8, usable_cpus())) as pool:
        for start in range(0, len(items), _AHEAD):
            yield from pool.map(
                lambda item: decode(store.read(item.path), store.where / item.path, size, mode),
                items[start : start + _AHEAD],
            )


def decode(content: bytes, where: Path | str, size: int, mode: str = "RGB") -> NDArray[np.uint8]:
    """Return one image; see `decode_images`.

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
        with Image.open(io.BytesIO(content), formats=_FORMATS) as image:
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
    _stand_upright(image)
    if image.mode.startswith("I"):  # Pillow would cut 16 bits of grey off at 255
        image = Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if "transparency" in image.info:
        image = image.convert("RGBA")  # Pillow warns on some of the direct ways
    return image.convert("RGB")


def _stand_upright(image: Image.Image) -> None:
    # What is noted beside an image may be damaged where the image is not.
    with contextlib.suppress(Exception):
        image.getexif()
        image.info.pop("exif", None)  # or else all that is noted there would be written anew
        ImageOps.exif_transpose(image, in_place=True)


def check_proportions(store: Store, images: Sequence[Item], masks: Sequence[Item]) -> None:
    """Refuse a mask that would not lie on its image: both are resized to one square.

    Parameters
    ----------
    store : Store
        The store of the files, which were decoded before.
    images, masks : sequence of Item
        The images and their masks, in the same order.

    Raises
    ------
    DataError
        Naming the first mask whose height by width is more than one pixel off its image's.
    """
    for pair in zip(images, masks, strict=True):
        sizes = []
        for item in pair:
            with Image.open(io.BytesIO(store.read(item.path)), formats=_FORMATS) as image:
                _stand_upright(image)
                sizes.append(image.size)
        (width, height), (mask_width, mask_height) = sizes
        if abs(width * mask_height - height * mask_width) > max(*sizes[0], *sizes[1]):
            raise DataError(
                f"{store.where / pair[1].path}: the mask is {mask_width}x{mask_height} and its "
                f"image {width}x{height}, so it does not lie on it; fetch both again, or take them "
                "away"
            )
