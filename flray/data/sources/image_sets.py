"""Sets of image files: split, decoded once to arrays of one size, cached, and memory-mapped if they are large."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from flray.data.sources.archives import Source, announce
from flray.data.sources.cache import decoded
from flray.data.sources.file_stores import (
    Item,
    Store,
    check_proportions,
    content_groups,
    decode_images,
    open_store,
)
from flray.data.sources.images import channel_counts, statistics_of
from flray.data.types import Arrays, DataSet, Domain, Rows
from flray.errors import DataError
from flray.rng import numpy_generator

Size = Annotated[
    int, Field(ge=8, le=1024, description="height and width in pixels to which images are resized")
]
TestShare = Annotated[
    float,
    Field(
        gt=0,
        lt=1,
        description="share of each class of each domain that is set apart for test, as the seed "
        "decides",
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
    groups : ndarray of int64 [n] or None
        Images that must not be divided between training and test part (of one slide) share a
        number.
    """

    items: list[Item]
    labels: Rows
    domains: Rows
    test: NDArray[np.bool_] | None = None
    masks: list[Item] = field(default_factory=list)
    groups: Rows | None = None

    def rows(self, chosen: Rows) -> Table:
        """Return some of the images."""
        return Table(
            [self.items[i] for i in chosen],
            self.labels[chosen],
            self.domains[chosen],
            None if self.test is None else self.test[chosen],
            [self.masks[i] for i in chosen] if self.masks else [],
            None if self.groups is None else self.groups[chosen],
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
    read_mask: Callable[[NDArray[np.uint8], Path], NDArray[np.uint8]] | None = None


def find_store(root: Path, source: Source, path: str | None, layout: str) -> Store:
    """Return the files of a set.

    Raises
    ------
    DataError
        If they are missing; the message names the set, its origin, the place for it and its layout.
    """
    place = Path(path).expanduser() if path else root / "archives" / source.name
    store = open_store(place)
    if store is None:
        found = "empty" if place.exists() else "missing"
        raise DataError(
            f"data set {source.name} is not there: {place} is {found}. It comes from {source.where}; put the "
            f"folder or zip archive there (or give its place as data.path), laid out as {layout}"
        )
    return store


def split(table: Table, share: float, spec: ImageSet, store: Store | None = None) -> Table:
    """Return the table with a share of each class of each domain for test.

    Parameters
    ----------
    table : Table
        The table. If it has groups, a share of each domain's groups is for test, whatever their
        classes.
    share : float
        In (0, 1). A class of two or more images of a domain has at least one in each part.
    spec : ImageSet
        Its seed decides the images; those of a domain do not depend on the other chosen domains.
    store : Store, optional
        To compare files: those of the same bytes count as one and go to the same part, so that no
        image is in both. Not compared without.
    """
    test = np.zeros(len(table.items), dtype=bool)
    grouped = table.groups is not None
    units = table.groups
    if units is None:
        units = np.arange(len(test)) if store is None else content_groups(store, table.items)
    for number, domain in enumerate(spec.domains):
        for label in range(1 if grouped else len(spec.classes)):
            rows = np.flatnonzero((table.domains == number) & (grouped | (table.labels == label)))
            extra = f"{spec.name}/split/{domain}/{'groups' if grouped else label}"
            _, first = np.unique(units[rows], return_index=True)
            order = numpy_generator(spec.seed, "data", extra=extra).permutation(
                units[rows][np.sort(first)]
            )
            count = min(max(round(share * len(order)), 1), max(len(order) - 1, 0))
            test[rows] = np.isin(units[rows], order[:count])
    # Of the same bytes in several classes or domains.
    _, same = np.unique(units, return_inverse=True)
    test = (np.bincount(same, test) > np.bincount(same) / 2)[same]
    return replace(table, test=test)


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
    parts = _parts(spec, table)
    for (part, domain), rows in parts.items():
        if not len(rows):
            raise DataError(
                f"data set {spec.name}: the domain {spec.domains[domain]} has no {part} images in "
                f"{store.where}; put some there, or choose other domains with data.domains"
            )
    table = table.rows(np.concatenate(list(parts.values())))
    bytes_of_images = len(table.items) * spec.size**2 * 3
    mapped = spec.mapped if spec.mapped is not None else bytes_of_images > _free_memory() / 4
    arrays = decoded(
        root / spec.name / _key(spec, table, store),
        spec.name,
        lambda folder: _decode(spec, table, store, folder),
        ("x",) if mapped else (),
    )
    ends = np.cumsum([len(rows) for rows in parts.values()])[:-1]
    x = [np.moveaxis(part, -1, 1) for part in np.split(np.asarray(arrays["x"]), ends)]
    y, count = np.split(arrays["y"], ends), len(spec.domains)
    domains = tuple(
        Domain(name, "real", x[number], y[number], x[count + number], y[count + number])
        for number, name in enumerate(spec.domains)
    )
    return DataSet(spec.name, domains, spec.classes, *statistics_of(arrays["counts"]), spec.task)


def _parts(spec: ImageSet, table: Table) -> dict[tuple[str, int], Rows]:
    """Return the rows of each domain's training part, then of each one's test part; training parts capped."""
    parts: dict[tuple[str, int], Rows] = {}
    for part, is_test in (("train", False), ("test", True)):
        for domain, name in enumerate(spec.domains):
            rows = np.flatnonzero((table.domains == domain) & (table.test == is_test))
            if not is_test and spec.samples is not None and spec.samples < len(rows):
                order = numpy_generator(spec.seed, "data", extra=f"samples/{name}").permutation(
                    len(rows)
                )
                rows = np.sort(rows[order[: spec.samples]])
            parts[part, domain] = rows
    return parts


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


def _decode(spec: ImageSet, table: Table, store: Store, folder: Path) -> Arrays:
    announce.get()(f"{spec.name}: decoding {len(table.items)} images of {store.where}")
    assert table.test is not None
    shape = (len(table.items), spec.size, spec.size, 3)
    x = np.lib.format.open_memmap(folder / "x.npy", "w+", np.uint8, shape)
    for row, pixels in enumerate(decode_images(store, table.items, spec.size)):
        x[row] = pixels
    x.flush()
    counts = channel_counts(np.moveaxis(x[: np.count_nonzero(~table.test)], -1, 1))
    if spec.read_mask is None:
        return {"y": table.labels, "counts": counts}
    check_proportions(store, table.items, table.masks)
    masks = decode_images(store, table.masks, spec.size, "L")
    return {
        "y": np.stack(
            [
                spec.read_mask(mask, store.where / item.path)
                for mask, item in zip(masks, table.masks, strict=True)
            ]
        ),
        "counts": counts,
    }


def _free_memory() -> int:
    import psutil

    return int(psutil.virtual_memory().available)
