"""Photographs of one's own in folders of classes, with or without folders of domains or parts above them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from flray.data.datasets.domain_folders import select_domains
from flray.data.datasets.embedded import ChosenDomains, SampleCap, Seed
from flray.data.datasets.own_rows import Positive, TaskName, classes_of
from flray.data.sources.file_stores import Item, Store, find_store
from flray.data.sources.image_sets import (
    ImageSet,
    Mapped,
    Size,
    Table,
    TestShare,
    image_dataset,
    split,
)
from flray.data.types import DataSet
from flray.errors import DataError
from flray.registry import register_dataset

LAYOUT = "CLASS/*.jpg, DOMAIN/CLASS/*.jpg, or train/CLASS/*.jpg and test/CLASS/*.jpg"
_PARTS = {"train": False, "training": False, "test": True, "testing": True, "val": True}


@register_dataset("folder")
def folder(
    root: Path,
    *,
    path: Annotated[str, Field(description=f"folder or zip archive with {LAYOUT}")],
    size: Size = 32,
    seed: Seed = 0,
    domains: ChosenDomains = None,
    samples: SampleCap = None,
    test: TestShare = 0.2,
    mapped: Mapped = None,
    task: TaskName = "classification",
    positive: Positive = None,
) -> DataSet:
    """Photographs in a folder per class; a folder above these is a domain, so a client, or train and test.

    Raises
    ------
    DataError
        If the images do not all lie equally deep, a class or domain has too few, or it is not clear
        which class of a binary task is positive.
    """
    store = find_store(root, "folder", path, "your own files", LAYOUT)
    images = [item for item in store.items() if item.is_image]
    table, names, classes = _table(store, images, task, positive)
    chosen = select_domains("folder", names, domains)
    kept = np.flatnonzero(np.isin(table.domains, [names.index(name) for name in chosen]))
    table = table.rows(kept)
    numbers = np.array([chosen.index(names[d]) for d in table.domains.tolist()], dtype=np.int64)
    table = Table(table.items, table.labels, numbers, table.test)
    spec = ImageSet("folder", chosen, classes, size, seed, samples, mapped, task)
    if table.test is None:
        table = split(table, test, spec, store)
    return image_dataset(spec, table, store, root)


def _table(
    store: Store, images: Sequence[Item], task: str, positive: str | float | None
) -> tuple[Table, tuple[str, ...], tuple[str, ...]]:
    """Return every image with its class, domain and part; the names of the domains and of the classes."""
    depths = Counter(item.path.count("/") for item in images)
    if set(depths) - {1, 2} or len(depths) != 1:
        odd = min(images, key=lambda item: depths[item.path.count("/")]).path if images else ""
        raise DataError(
            f"data set folder: {store.where} has "
            + (f"images at several depths, such as {odd}" if images else "no images")
            + f"; lay them out as {LAYOUT}"
        )
    steps = [item.path.split("/") for item in images]
    named = [step[-2] for step in steps]
    classes = tuple(classes_of("folder", named, str(store.where), task, positive))
    labels = np.array([classes.index(name) for name in named], dtype=np.int64)
    above = [step[0] if len(step) == 3 else "photos" for step in steps]
    if len(steps[0]) == 3 and {name.lower() for name in above} <= _PARTS.keys():
        test = np.array([_PARTS[name.lower()] for name in above])
        return (
            Table(list(images), labels, np.zeros(len(images), dtype=np.int64), test),
            ("photos",),
            classes,
        )
    names = tuple(sorted(set(above)))
    numbers = np.array([names.index(name) for name in above], dtype=np.int64)
    return Table(list(images), labels, numbers), names, classes
