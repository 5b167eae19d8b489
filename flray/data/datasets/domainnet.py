"""DomainNet: six styles, all 345 classes or the ten of FedBN, with the official split where its lists are there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from flray.data.datasets.class_folders import ClassFolders, Incomplete, domain_home, normalise_name
from flray.data.datasets.embedded import ChosenDomains, SampleCap, Seed, select_domains
from flray.data.sources.archives import register_source
from flray.data.sources.file_stores import Item, Store
from flray.data.sources.image_sets import (
    ImageSet,
    Mapped,
    Place,
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

NUM_CLASSES = 345
DOMAINS = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
TEN = tuple(
    "bird feather headphones ice_cream teapot tiger whale windmill wine_glass zebra".split()  # noqa: SIM905
)
"""FedBN's classes, in its label order."""
Which = Annotated[Literal["ten", "all"], Field(description="FedBN's ten classes, or all 345")]


DOMAINNET = register_source(
    ClassFolders(
        "domainnet",
        "https://ai.bu.edu/M3SDA (Peng et al., 2019)",
        dict.fromkeys(DOMAINS, ()),
        TEN,
        others=True,
    )
)


@register_dataset("domainnet")
def domainnet(
    root: Path,
    *,
    path: Place = None,
    classes: Which = "ten",
    seed: Seed = 0,
    domains: ChosenDomains = None,
    samples: SampleCap = None,
    size: Size = 256,
    test: TestShare = 0.2,
    incomplete: Incomplete = False,
    mapped: Mapped = None,
) -> DataSet:
    """Return DomainNet: 6 styles, FedBN's ten classes or all 345 (586,575 pictures), by default 3x256x256.

    With the lists ``DOMAIN_train.txt`` and ``DOMAIN_test.txt`` beside the folders the split is the
    official one, and only listed pictures are taken; without them `test` and `seed` decide.
    """
    tree, name = DOMAINNET, DOMAINNET.name
    store = find_store(root, tree, path, tree.layout)
    chosen = select_domains(name, DOMAINS, domains)
    items = store.items()
    home = domain_home(store, items, {normalise_name(d): d for d in DOMAINS}, tree.layout, name)
    if classes == "all":
        found = _all_classes(store, items, home, chosen, incomplete)
        tree = replace(tree, classes=found, others=False)
    table = tree.table(store, items, chosen, {}, incomplete)
    spec = ImageSet(name, chosen, tuple(tree.classes), size, seed, samples, mapped)
    listed = _test_list(store, items, home, chosen)
    table = split(table, test, spec, store) if listed is None else _official(table, listed)
    return image_dataset(spec, table, store, root)


def _all_classes(
    store: Store, items: Sequence[Item], home: str, chosen: Sequence[str], incomplete: bool
) -> tuple[str, ...]:
    names: dict[str, str] = {}
    for item in items:
        below = item.path.removeprefix(home).split("/")
        if item.path.startswith(home) and len(below) == 3 and normalise_name(below[0]) in chosen:
            names.setdefault(normalise_name(below[1]), below[1])
    if len(names) != NUM_CLASSES and not incomplete:
        raise DataError(
            f"data set domainnet: {len(names)} folders of classes in {store.where}, expected "
            f"{NUM_CLASSES}; fetch it again, or set data.incomplete to true to do with these"
        )
    return tuple(names[key] for key in sorted(names))


def _test_list(
    store: Store, items: Sequence[Item], home: str, chosen: Sequence[str]
) -> dict[str, bool] | None:
    """Return which listed pictures are for test, or None where a domain has no lists.

    Raises
    ------
    DataError
        Naming list and line, if a picture is not there, is in two lists, or its class has another
        label elsewhere.
    """
    files = {item.path for item in items}
    by_name = {
        item.path.rsplit("/", 1)[-1]: item.path for item in items if item.path.endswith(".txt")
    }
    lists = [
        (by_name.get(f"{domain}_{part}.txt"), part == "test")
        for domain in chosen
        for part in ("train", "test")
    ]
    if any(path is None for path, _ in lists):
        return None
    found: dict[str, bool] = {}
    labels: dict[str, str] = {}
    for path, is_test in lists:
        assert path is not None
        for number, line in enumerate(store.read(path).decode("utf-8", "replace").splitlines(), 1):
            if not line.strip():
                continue
            where = f"{store.where / path}, line {number}"
            name, _, label = line.strip().rpartition(" ")
            folder = normalise_name(name.split("/")[-2]) if name.count("/") >= 1 else ""
            if not folder or not label.isdigit():
                raise DataError(
                    f"{where}: found {line.strip()[:80]!r}; expected DOMAIN/CLASS/FILE LABEL"
                )
            if home + name not in files:
                raise DataError(
                    f"{where}: {store.where / (home + name)} is not there; fetch the pictures again"
                )
            if labels.setdefault(folder, label) != label:
                raise DataError(
                    f"{where}: label {label} for the class {folder}, which has label "
                    f"{labels[folder]} elsewhere; fetch the list again"
                )
            if home + name in found:
                raise DataError(f"{where}: {name} is listed twice; fetch the list again")
            found[home + name] = is_test
    _one_class_per_label(labels, store)
    return found


def _one_class_per_label(labels: Mapping[str, str], store: Store) -> None:
    classes: dict[str, str] = {}
    for name, label in labels.items():
        if classes.setdefault(label, name) != name:
            raise DataError(
                f"{store.where}: the lists give the label {label} to the classes {classes[label]} "
                f"and {name}; fetch them again"
            )


def _official(table: Table, listed: Mapping[str, bool]) -> Table:
    rows = np.array(
        [row for row, item in enumerate(table.items) if item.path in listed], dtype=np.int64
    )
    taken = table.rows(rows)
    return replace(taken, test=np.array([listed[item.path] for item in taken.items], dtype=bool))
