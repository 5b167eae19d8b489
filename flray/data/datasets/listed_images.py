"""Image sets with a list of labels beside the images: Tiny-ImageNet, and Camelyon17 as WILDS has it."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from flray.data.datasets.embedded import ChosenDomains, SampleCap, Seed, select_domains
from flray.data.sources.archives import Place, Source, register_source
from flray.data.sources.file_stores import Folder, Item, Store
from flray.data.sources.image_sets import (
    ImageSet,
    Mapped,
    Size,
    Table,
    TestShare,
    find_store,
    image_dataset,
    split,
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
    """Return the class of each image of ``val/images``; empty if the set has no list of them.

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


CENTRES = tuple(f"centre{number}" for number in range(5))
METADATA = "metadata.csv"
PATCHES = f"{METADATA} and patches/patient_*_node_*/patch_*.png"
_COLUMNS = ("patient", "node", "x_coord", "y_coord", "tumor", "center")
CAMELYON17 = register_source(
    Source("camelyon17", "https://wilds.stanford.edu/datasets/#camelyon17 (camelyon17_v1.0)")
)


@register_dataset("camelyon17")
def camelyon17(
    root: Path,
    *,
    path: Place = None,
    seed: Seed = 0,
    domains: ChosenDomains = None,
    samples: SampleCap = None,
    size: Size = 96,
    test: TestShare = 0.2,
    mapped: Mapped = None,
    by: Annotated[
        Literal["image", "slide"],
        Field(
            description=(
                "what is divided between training and test: the images of each class, or whole "
                "slides, so that no patient is in both"
            )
        ),
    ] = "image",
) -> DataSet:
    """Return Camelyon17 (WILDS): 455,954 patches 3x96x96 from 5 centres, with and without tumour (binary).

    A patch that is not there is noticed when it is decoded; that it changed later, only with the
    table.
    """
    place = Path(path).expanduser() if path else root / "archives" / "camelyon17"
    homes = [home for home in (place, place / "camelyon17_v1.0") if (home / METADATA).is_file()]
    if not homes:
        raise DataError(
            f"data set camelyon17 is not there: {place} lacks {METADATA}. It comes from "
            f"{CAMELYON17.where}; unpack it there (or give its folder as data.path), laid out as "
            f"{PATCHES}"
        )
    chosen = select_domains("camelyon17", CENTRES, domains)
    spec = ImageSet(
        "camelyon17", chosen, ("normal", "tumour"), size, seed, samples, mapped, "binary"
    )
    table = split(_patches(homes[0], chosen, by == "slide"), test, spec)
    return image_dataset(spec, table, Folder(homes[0]), root)


def _rows(path: Path, reader: csv.DictReader[str]) -> Iterator[dict[str, str]]:
    try:
        yield from reader
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}; fetch it again") from None


def _patches(home: Path, chosen: Sequence[str], by_slide: bool) -> Table:
    """Read the table of patches.

    Raises
    ------
    DataError
        Naming the line that is wrong, or the centre that has no patches.
    """
    path = home / METADATA
    facts = path.stat()
    stamp = f"{facts.st_size}|{facts.st_mtime_ns}"
    items: list[Item] = []
    numbers: list[tuple[int, int, int]] = []
    seen: set[str] = set()
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        reader = csv.DictReader(file)
        wanted = (*_COLUMNS, "slide") if by_slide else _COLUMNS
        missing = [column for column in wanted if column not in (reader.fieldnames or ())]
        if missing:
            raise DataError(
                f"{path}: no column {', '.join(missing)}; found "
                f"{', '.join(reader.fieldnames or ())}"
            )
        for line, row in enumerate(_rows(path, reader), 2):
            tumour, centre = row["tumor"], row["center"]
            if tumour not in ("0", "1") or centre not in ("0", "1", "2", "3", "4"):
                raise DataError(
                    f"{path}, line {line}: tumor {tumour!r} and center {centre!r}; expected 0 or "
                    "1, and 0 to 4; fetch it again"
                )
            if not all((row[column] or "").isdecimal() for column in wanted):
                raise DataError(f"{path}, line {line}: something that is no number; fetch it again")
            who = f"patient_{row['patient']}_node_{row['node']}"
            name = f"patches/{who}/patch_{who}_x_{row['x_coord']}_y_{row['y_coord']}.png"
            if name in seen:
                raise DataError(f"{path}, line {line}: {name} is there twice; fetch it again")
            seen.add(name)
            if f"centre{centre}" in chosen:
                items.append(Item(name, 0, stamp))
                slide = int(row["slide"]) if by_slide else 0
                numbers.append((int(tumour), chosen.index(f"centre{centre}"), slide))
    columns = np.array(numbers, dtype=np.int64).reshape(-1, 3)
    for number, name in enumerate(chosen):
        labels = columns[columns[:, 1] == number, 0]
        if len(set(labels.tolist())) < 2:
            raise DataError(
                f"{path}: {name} has {len(labels)} patches, and not of both classes; fetch it "
                "again, or choose other centres with data.domains"
            )
    return Table(items, columns[:, 0], columns[:, 1], groups=columns[:, 2] if by_slide else None)
