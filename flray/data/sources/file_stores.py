"""Files in a folder or a zip archive: listed, read, compared, decoded as images. Nothing is unpacked or executed."""

from __future__ import annotations

import contextlib
import hashlib
import io
import os
import stat
import struct
import threading
import warnings
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps, UnidentifiedImageError

from flray.errors import DataError
from flray.files.border import (
    ARCHIVE_BYTES,
    FILE_BYTES,
    FILES,
    PIXELS,
    amount,
    check_kind,
    check_size,
    open_file,
    read_at_most,
)
from flray.startup import usable_cpus

IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".webp")
_DAMAGED = (
    *(KeyError, OSError, EOFError, RuntimeError, ValueError),
    *(struct.error, zlib.error, zipfile.BadZipFile),
)
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


class Store(Protocol):
    """Files by their path."""

    where: Path

    def items(self) -> list[Item]:
        """Return all files in the order of their paths, without hidden files and files of operating systems."""

    def read(self, path: str, length: int = -1) -> bytes:
        """Return a file's content, or its first `length` bytes.

        Raises
        ------
        DataError
            Naming the file, if it is not there, damaged, no regular file or larger than is read of
            one.
        """


class Folder:
    """Files in a folder; symbolic links are followed.

    Parameters
    ----------
    where : Path
        The folder.
    """

    def __init__(self, where: Path) -> None:
        self.where = where

    def items(self) -> list[Item]:
        """Return all files (see `Store`)."""
        found: list[Item] = []
        self._walk(self.where, "", found, ())
        return sorted(found)

    def read(self, path: str, length: int = -1) -> bytes:
        """Return a file's content (see `Store`)."""
        try:
            with open_file(self.where / path, FILE_BYTES) as file:
                return file.read(length)
        except OSError as error:
            raise DataError(f"{self.where / path}: cannot be read ({error.strerror})") from None

    def _walk(
        self, folder: Path, prefix: str, found: list[Item], above: tuple[tuple[int, int], ...]
    ) -> None:
        try:
            facts = folder.stat()
            if (facts.st_dev, facts.st_ino) in above:
                raise DataError(f"{folder}: a link to a folder that it lies in; remove it")
            with os.scandir(folder) as entries:
                for entry in entries:
                    if _is_litter(entry.name):
                        continue
                    if entry.is_dir():
                        self._walk(
                            Path(entry.path),
                            f"{prefix}{entry.name}/",
                            found,
                            (*above, (facts.st_dev, facts.st_ino)),
                        )
                    else:
                        facts_of = entry.stat()
                        check_kind(entry.path, facts_of.st_mode)
                        found.append(
                            Item(prefix + entry.name, facts_of.st_size, str(facts_of.st_mtime_ns))
                        )
        except OSError as error:
            raise DataError(
                f"{error.filename or folder}: cannot be read ({error.strerror})"
            ) from None


class Zip:
    """Files in a zip archive, which stays packed: no file is written, and only files named as images are read.

    Parameters
    ----------
    where : Path
        The archive.

    Raises
    ------
    DataError
        If it is not a zip archive, truncated, or declares more than is read.
    """

    def __init__(self, where: Path) -> None:
        self.where = where
        try:
            self._archive = zipfile.ZipFile(where)
        except _DAMAGED as error:
            raise DataError(
                f"{where}: not a readable zip archive ({error}); fetch it again, or unpack it "
                "into a folder if it is of another kind"
            ) from None
        self._lock = threading.Lock()
        entries = self._archive.infolist()
        declared = sum(entry.file_size for entry in entries)
        if len(entries) > FILES or declared > ARCHIVE_BYTES:
            raise DataError(
                f"{where}: it declares {len(entries):,} files of {amount(declared)} together, and "
                f"at most {FILES:,} of {amount(ARCHIVE_BYTES)} are read; take what is needed out "
                "of it"
            )

    def items(self) -> list[Item]:
        """Return all files (see `Store`)."""
        found = [
            entry
            for entry in self._archive.infolist()
            if not entry.is_dir() and not any(map(_is_litter, entry.filename.split("/")))
        ]
        for entry in found:
            mode = entry.external_attr >> 16  # of Unix; elsewhere 0
            if stat.S_IFMT(mode):
                check_kind(self.where / entry.filename, mode)
        return sorted(Item(entry.filename, entry.file_size, f"{entry.CRC:08x}") for entry in found)

    def read(self, path: str, length: int = -1) -> bytes:
        """Return a file's content (see `Store`)."""
        try:
            entry = self._archive.getinfo(path)
            check_size(self.where / path, entry.file_size, FILE_BYTES)
            if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                # zipfile unpacks all of bzip2 and LZMA that it has read, however much that is.
                raise NotImplementedError(
                    "it is neither stored nor deflated; pack the archive again"
                )
            with self._lock, self._archive.open(entry) as file:
                content = read_at_most(file, self.where / path, FILE_BYTES)
            if len(content) != entry.file_size:
                raise EOFError(
                    f"{len(content)} bytes instead of the {entry.file_size} that it declares"
                )
            return content[:length] if length >= 0 else content
        except _DAMAGED as error:
            raise DataError(
                f"{self.where}: {path} cannot be read ({error}); fetch the archive again"
            ) from None


def open_store(path: Path) -> Store | None:
    """Return the files of a folder or zip archive, of the only archive in a folder without anything else, or None."""
    if path.is_dir():
        inside = [entry for entry in path.iterdir() if not _is_litter(entry.name)]
        if len(inside) == 1 and inside[0].is_file() and inside[0].suffix.lower() == ".zip":
            return Zip(inside[0])
        return Folder(path) if inside else None
    if path.exists():
        check_kind(path, path.stat().st_mode)
    return Zip(path) if path.is_file() else None


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
    groups: dict[Hashable, list[int]] = defaultdict(list)
    for row, item in enumerate(items):
        groups[item.size, item.stamp if isinstance(store, Zip) else ""].append(row)
    numbers = np.arange(len(items))
    for alike in groups.values():
        first: dict[Hashable, int] = {}
        for row in alike if len(alike) > 1 else ():
            same = (
                not isinstance(store, Zip) and hashlib.sha256(store.read(items[row].path)).digest()
            )
            numbers[row] = first.setdefault(same, row)
    return numbers


def _is_litter(name: str) -> bool:
    return name.startswith(".") or name.lower() in _LITTER


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
        The store of the files, which were decoded before.
    images, masks : sequence of Item
        The images and their masks, in the same order.

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
    """Open an image and read its header only.

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
    """Return a context that keeps several large images from being in memory at once."""
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
