"""Tiny-ImageNet: 200 classes at 64x64, with its validation part for test, as it comes or sorted into folders."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from flray.data.datasets.embedded import SampleCap, Seed
from flray.data.sources.archives import Source, register_source
from flray.data.sources.file_stores import Item, Store
from flray.data.sources.image_sets import (
    ImageSet,
    Mapped,
    Place,
    Size,
    Table,
    find_store,
    image_dataset,
)
from flray.data.types import DataSet
from flray.errors import DataError
from flray.registry import register_dataset

NUM_CLASSES = 200
ANNOTATIONS = "val_annotations.txt"
LAYOUT = f"train/WNID/images/*.JPEG and val/images/*.JPEG with val/{ANNOTATIONS} (val/WNID/*.JPEG is taken too)"


TINY_IMAGENET = register_source(
    Source("tiny-imagenet", "http://cs231n.stanford.edu/tiny-imagenet-200.zip")
)


@register_dataset("tiny-imagenet")
def tiny_imagenet(
    root: Path,
    *,
    path: Place = None,
    seed: Seed = 0,
    samples: SampleCap = None,
    size: Size = 64,
    mapped: Mapped = None,
) -> DataSet:
    """Return Tiny-ImageNet: 100,000 photos 3x64x64 of 200 classes (sorted WordNet ids); 10,000 of val for test."""
    store = find_store(root, TINY_IMAGENET, path, LAYOUT)
    table, classes = _table(store)
    spec = ImageSet("tiny-imagenet", ("tiny-imagenet",), classes, size, seed, samples, mapped)
    return image_dataset(spec, table, store, root)


def _table(store: Store) -> tuple[Table, tuple[str, ...]]:
    items = store.items()
    below = {item.path: _below(item.path) for item in items}
    train = {
        path: parts[1]
        for path, parts in below.items()
        if parts[:1] == ("train",) and len(parts) > 2
    }
    classes = tuple(sorted(set(train.values())))
    if not classes:
        raise DataError(
            f"data set tiny-imagenet: no folder train/WNID in {store.where}; it must be laid out "
            f"as {LAYOUT}"
        )
    if len(classes) != NUM_CLASSES:
        raise DataError(
            f"data set tiny-imagenet: {len(classes)} folders of classes in "
            f"{store.where}/**/train, expected {NUM_CLASSES}; fetch it again"
        )
    annotated = _annotations(store, items, classes)
    label_of = {name: label for label, name in enumerate(classes)}
    kept: list[Item] = []
    labels, test = [], []
    for item in items:
        parts = below[item.path]
        if not item.is_image or parts[:1] not in (("train",), ("val",)):
            continue  # boxes, words, the unlabelled test part
        is_val = parts[0] == "val"
        name = (
            annotated.get(item.path)
            if is_val and len(parts) == 3 and parts[1] == "images"
            else parts[1]
            if len(parts) == 3 or (len(parts) == 4 and parts[2] == "images")
            else None
        )
        label = label_of.get(name or "")
        if label is None:
            raise DataError(
                f"data set tiny-imagenet: {store.where / item.path} belongs to none of the "
                "classes of "
                + (f"train/ (it is not in {ANNOTATIONS})" if is_val else "train/")
                + "; take it away or fetch it again"
            )
        kept.append(item)
        labels.append(label)
        test.append(is_val)
    table = Table(
        kept,
        np.array(labels, dtype=np.int64),
        np.zeros(len(kept), dtype=np.int64),
        np.array(test, dtype=bool),
    )
    for is_val, part in ((False, "train"), (True, "val")):
        counts = np.bincount(table.labels[np.array(test) == is_val], minlength=len(classes))
        if not counts.all():
            raise DataError(
                f"data set tiny-imagenet: the class {classes[int(counts.argmin())]} has no images "
                f"in the {part} folder of {store.where}; fetch it again"
            )
    return table, classes


def _below(path: str) -> tuple[str, ...]:
    """Return a path's names from ``train`` or ``val`` on; both may lie in one folder more."""
    parts = path.split("/")
    for depth in range(min(2, len(parts))):
        if parts[depth] in ("train", "val"):
            return tuple(parts[depth:])
    return ()


def _annotations(store: Store, items: Sequence[Item], classes: Sequence[str]) -> dict[str, str]:
    """Return the class of each image of ``val/images``; nothing where there is no such list.

    Raises
    ------
    DataError
        Naming the line, if it names an unknown class or an absent image.
    """
    path = next((item.path for item in items if item.path.rsplit("/", 1)[-1] == ANNOTATIONS), None)
    if path is None:
        return {}
    folder = path.removesuffix(ANNOTATIONS) + "images/"
    files = {item.path for item in items}
    if not any(file.startswith(folder) for file in files):
        return {}  # sorted into folders, the list left behind
    found: dict[str, str] = {}
    for number, line in enumerate(store.read(path).decode("utf-8", "replace").splitlines(), 1):
        fields = line.split("\t") if "\t" in line else line.split()
        if not fields:
            continue
        where = f"{store.where / path}, line {number}"
        if len(fields) < 2 or fields[1] not in classes:
            raise DataError(
                f"{where}: found {line[:60]!r}; expected FILE, a class of train/ and a box; fetch "
                "it again"
            )
        if folder + fields[0] not in files:
            raise DataError(
                f"{where}: {store.where / (folder + fields[0])} is not there; fetch it again"
            )
        found[folder + fields[0]] = fields[1]
    return found
