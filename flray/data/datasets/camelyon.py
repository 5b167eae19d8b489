"""Camelyon17 as WILDS has it: patches of tissue from five centres, tumour or not."""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from flray.data.datasets.embedded import ChosenDomains, SampleCap, Seed, select_domains
from flray.data.sources.archives import Place, Source, register_source
from flray.data.sources.file_stores import Folder, Item
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

CENTRES = tuple(f"centre{number}" for number in range(5))
METADATA = "metadata.csv"
LAYOUT = f"{METADATA} and patches/patient_*_node_*/patch_*.png"
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
            f"{LAYOUT}"
        )
    chosen = select_domains("camelyon17", CENTRES, domains)
    spec = ImageSet(
        "camelyon17", chosen, ("normal", "tumour"), size, seed, samples, mapped, "binary"
    )
    table = split(_table(homes[0], chosen, by == "slide"), test, spec)
    return image_dataset(spec, table, Folder(homes[0]), root)


def _rows(path: Path, reader: csv.DictReader[str]) -> Iterator[dict[str, str]]:
    try:
        yield from reader
    except csv.Error as error:
        raise DataError(f"{path}, line {reader.line_num}: {error}; fetch it again") from None


def _table(home: Path, chosen: Sequence[str], by_slide: bool) -> Table:
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
