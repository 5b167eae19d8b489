"""Files of images in a folder or a zip archive: listed, decoded, split, kept as arrays of one size.

Nothing is unpacked or executed. Decoded images lie in the data cache and are memory-mapped if they
are large.
"""

import hashlib
import itertools
import math
import os
import threading
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Annotated, NamedTuple

import numpy as np
from pydantic import Field

from flray.data.sources.archives import Source, announce
from flray.data.sources.cache import decoded
from flray.data.sources.images import (
    cap_rows,
    channel_counts,
    choose_test,
    decode,
    statistics_of,
    upright_size,
)
from flray.data.types import Array, Arrays, DataSet, Domain, Flags, Images, Ints, Rows
from flray.errors import DataError, explained
from flray.files import FILE_BYTES, read, read_at_most
from flray.process import usable_cpus

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
            with explained(
                (OSError, ValueError, zipfile.BadZipFile),
                f"{where}: not a readable zip archive",
                "fetch it again, or unpack it into a folder if it is of another kind",
            ):
                self.archive = zipfile.ZipFile(where)

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
                        # A tool may set the time of the content, such as that of the file it has copied.
                        stamp = f"{facts.st_mtime_ns} {facts.st_ctime_ns}"
                        found.append(Item(below, facts.st_size, stamp))
            except OSError as error:
                raise DataError(f"{error.filename}: cannot be read ({error.strerror})") from None
        return sorted(one for one in found if not any(map(_is_litter, one.path.split("/"))))

    def read(self, path: str) -> bytes:
        """Return a file's content.

        Raises
        ------
        DataError
            Naming the file, if it is not there, damaged, no regular file or too large.
        """
        where = self.where / path
        try:
            if self.archive is None:
                return read(where, FILE_BYTES)
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


def content_groups(store: Store, items: Sequence[Item]) -> Ints:
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


_AHEAD = 1024  # images that are in work or wait to be taken


def decode_images(
    store: Store, items: Sequence[Item], size: int, mode: str = "RGB"
) -> Iterator[Images]:
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
        sizes = [upright_size(store.read(item.path)) for item in pair]
        (width, height), (mask_width, mask_height) = sizes
        if abs(width * mask_height - height * mask_width) > max(*sizes[0], *sizes[1]):
            raise DataError(
                f"{store.where / pair[1].path}: the mask is {mask_width}x{mask_height} and its image {width}x{height}, "
                "so it does not lie on it; fetch both again, or take them away"
            )


Size = Annotated[
    int, Field(ge=8, le=1024, description="height and width in pixels to which images are resized")
]
TestShare = Annotated[
    float,
    Field(
        gt=0,
        lt=1,
        description="share of each class of each domain that is set apart for test, as the seed decides",
    ),
]
Mapped = Annotated[
    bool | None,
    Field(
        description="leave the decoded images on disk and read them where they are used; "
        "default: if they are larger than a quarter of the free memory"
    ),
]

# Part of every cache folder's name: raised whenever decoding changes.
_RECIPE = 2


@dataclass(frozen=True)
class Table:
    """The images of a set before they are decoded.

    Attributes
    ----------
    items : list of Item
        The files.
    labels, domains : ndarray of int64 [n]
        Class and domain of each.
    test : ndarray of bool [n] or None
        Which are for test, where the set says so itself.
    masks : list of Item
        Each image's mask, where the set has masks; labels then mean nothing.
    """

    items: list[Item]
    labels: Rows
    domains: Rows
    test: Flags | None = None
    masks: list[Item] = field(default_factory=list)

    def rows(self, chosen: Rows) -> "Table":
        """Return some of the images."""
        return Table(
            [self.items[i] for i in chosen],
            self.labels[chosen],
            self.domains[chosen],
            None if self.test is None else self.test[chosen],
            [self.masks[i] for i in chosen] if self.masks else [],
        )


@dataclass(frozen=True)
class ImageSet:
    """The data set that is made of the files.

    Attributes
    ----------
    name : str
        The name of the data set.
    domains, classes : tuple of str
        Their names, in the order of their numbers in the table.
    size : int
        Height and width of an image in pixels.
    seed : int
        The seed of the split and of the choice of samples.
    samples : int or None
        The limit of training images per domain.
    mapped : bool or None
        See `Mapped`.
    task : str
        The data set's.
    read_mask : callable
        From a decoded mask [H, W] and its path to uint8 [K, H, W].
    """

    name: str
    domains: tuple[str, ...]
    classes: tuple[str, ...]
    size: int
    seed: int
    samples: int | None = None
    mapped: bool | None = None
    task: str = "classification"
    read_mask: Callable[[Images, Path], Images] | None = None


def find_store(root: Path, source: Source, path: str | None, layout: str) -> Store:
    """Return the files of a set: a folder or zip archive, or the only archive in a folder without anything else.

    Raises
    ------
    DataError
        If they are missing; the message names the set, its origin, the place for it and its layout.
    """
    place = source.place(root, path)
    inside = [place]
    if place.is_dir():
        inside = [entry for entry in place.iterdir() if not _is_litter(entry.name)]
    if not inside or not place.exists():
        found = "empty" if place.exists() else "missing"
        raise DataError(
            f"data set {source.name} is not there: {place} is {found}. It comes from {source.where}; put the "
            f"folder or zip archive there (or give its place as data.path), laid out as {layout}"
        )
    packed = len(inside) == 1 and inside[0].is_file() and inside[0].suffix.lower() == ".zip"
    return Store(inside[0] if packed else place)


def split(table: Table, share: float, spec: ImageSet, store: Store | None = None) -> Table:
    """Return the table with a share of each class of each domain for test.

    Parameters
    ----------
    table : Table
        The table.
    share : float
        In (0, 1). A class of two or more images of a domain has at least one in each part.
    spec : ImageSet
        Its seed decides the images; those of a domain do not depend on the other chosen domains.
    store : Store, optional
        To compare files: those of the same bytes count as one and go to the same part, so that no
        image is in both. Not compared without.
    """
    units = np.arange(len(table.items)) if store is None else content_groups(store, table.items)
    test = choose_test(
        spec.name, spec.domains, table.domains, table.labels, share, spec.seed, units
    )
    # Files of the same bytes may lie in several classes or domains.
    _, same = np.unique(units, return_inverse=True)
    return replace(table, test=(np.bincount(same, test) > np.bincount(same) / 2)[same])


def image_dataset(spec: ImageSet, table: Table, store: Store, root: Path) -> DataSet:
    """Return a data set of decoded images, decoding the files at the first use and whenever they have changed.

    Parameters
    ----------
    spec : ImageSet
        The data set to make.
    table : Table
        The images, split.
    store : Store
        The store of the files.
    root : Path
        Data cache; the arrays go to ``ROOT/NAME/FINGERPRINT``, channels last, training parts before
        test parts.

    Raises
    ------
    DataError
        If a file is damaged, or a domain lacks training or test images.
    """
    assert table.test is not None
    parts: list[Rows] = []
    for part, (domain, name) in itertools.product(("train", "test"), enumerate(spec.domains)):
        rows = np.flatnonzero((table.domains == domain) & (table.test == (part == "test")))
        if not len(rows):
            raise DataError(
                f"data set {spec.name}: the domain {name} has no {part} images in {store.where}; put some there"
                + ", or choose other domains with data.domains" * (len(spec.domains) > 1)
            )
        most = spec.samples if part == "train" else None
        parts.append(np.sort(cap_rows(name, rows, most, spec.seed)))
    table = table.rows(np.concatenate(parts))
    arrays = keep_images(
        root / spec.name / _key(spec, table, store),
        spec.name,
        store.where,
        spec.mapped,
        (len(table.items), spec.size, spec.size, 3),
        lambda x: _decode(spec, table, store, x),
    )
    sizes = [len(rows) for rows in parts]
    domains = tuple(domains_of(spec.domains, arrays["x"], arrays["y"], sizes))
    return DataSet(spec.name, domains, spec.classes, *statistics_of(arrays["counts"]), spec.task)


def domains_of(names: Sequence[str], x: Array, y: Array, sizes: Sequence[int]) -> list[Domain]:
    """Return domains whose training parts, then whose test parts, lie one after another in two arrays.

    Parameters
    ----------
    names : sequence of str
        Their names.
    x : ndarray of uint8 [n, H, W, C]
        The images.
    y : ndarray [n, ...]
        Their labels or masks.
    sizes : sequence of int
        The samples of each training part, then of each test part.
    """
    ends = np.cumsum(sizes)[:-1]
    images = [np.moveaxis(part, -1, 1) for part in np.split(np.asarray(x), ends)]
    pairs = list(zip(images, np.split(y, ends), strict=True))
    both = zip(names, pairs, pairs[len(names) :], strict=False)
    return [Domain(name, "real", *train, *test) for name, train, test in both]


def _key(spec: ImageSet, table: Table, store: Store) -> str:
    digest = hashlib.sha256(
        os.fsencode(f"{_RECIPE}|{spec.size}|{store.where.resolve()}|{len(table.items)}")
    )
    for item in (*table.items, *table.masks):
        # Names may be of any bytes.
        digest.update(os.fsencode(f"{item.path}|{item.size}|{item.stamp}\n"))
    for array in (table.labels, table.domains, table.test):
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()[:16]


def keep_images(
    folder: Path,
    name: str,
    where: Path | str,
    mapped: bool | None,
    shape: tuple[int, ...],
    fill: Callable[[Images], Arrays],
) -> Arrays:
    """Return decoded images ``x`` and the arrays beside them; the first use decodes them onto the disk, image by image.

    Parameters
    ----------
    folder : Path
        Their folder in the data cache; it differs for other files or settings.
    name, where, mapped : str, Path or str, bool or None
        The data set's name, the place of its files, and `Mapped`.
    shape : tuple of int
        The shape of ``x``: samples, height, width, channels.
    fill : callable
        Fills ``x`` and returns the other arrays.
    """
    if mapped is None:
        import psutil

        mapped = math.prod(shape) > psutil.virtual_memory().available / 4

    def decode_into(place: Path) -> Arrays:
        announce.get()(f"{name}: decoding {shape[0]} images of {where}")
        x = np.lib.format.open_memmap(place / "x.npy", "w+", np.uint8, shape)
        others = fill(x)
        x.flush()
        return others

    return decoded(folder, decode_into, ("x",) if mapped else ())


def _decode(spec: ImageSet, table: Table, store: Store, x: Images) -> Arrays:
    assert table.test is not None
    for row, pixels in enumerate(decode_images(store, table.items, spec.size)):
        x[row] = pixels
    counts = channel_counts(np.moveaxis(x[: np.count_nonzero(~table.test)], -1, 1))
    y = table.labels
    if spec.read_mask is not None:
        check_proportions(store, table.items, table.masks)
        pairs = zip(decode_images(store, table.masks, spec.size, "L"), table.masks, strict=True)
        y = np.stack([spec.read_mask(mask, store.where / item.path) for mask, item in pairs])
    return {"y": y, "counts": counts}
