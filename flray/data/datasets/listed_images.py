"""Image sets with a list of labels beside the images: Tiny-ImageNet, and Camelyon17 as WILDS has it."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from flray.data.datasets.embedded import ChosenDomains, SampleCap, Seed, select_domains
from flray.data.sources import image_sets
from flray.data.sources.archives import Place, Source, register_source
from flray.data.types import DataSet
from flray.errors import DataError, brief
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
    size: image_sets.Size = 64,
    mapped: image_sets.Mapped = None,
) -> DataSet:
    """Return Tiny-ImageNet: 100,000 photos 3x64x64 of 200 classes (sorted WordNet ids); 10,000 of val for test."""
    store = image_sets.find_store(root, TINY_IMAGENET, path, LAYOUT)
    table, classes = _table(store)
    spec = image_sets.ImageSet(
        "tiny-imagenet", ("tiny-imagenet",), classes, size, seed, samples, mapped
    )
    return image_sets.image_dataset(spec, table, store, root)


def _table(store: image_sets.Store) -> tuple[image_sets.Table, tuple[str, ...]]:
    items = store.items()
    named: dict[str, str] = {}
    for item in items:
        if item.path.rsplit("/", 1)[-1] == ANNOTATIONS:
            for line in store.read(item.path).decode("utf-8", "replace").splitlines():
                name, _, rest = line.partition("\t")
                path = f"{item.path.removesuffix(ANNOTATIONS)}images/{name}"
                named[path] = rest.partition("\t")[0]
    kept: list[image_sets.Item] = []
    names, test = [], []
    for item in items:
        part, folder, *_ = (*_below(item.path), "", "")
        if item.is_image and part:  # no boxes, words, or the unlabelled test part
            kept.append(item)
            in_list = (part, folder) == ("val", "images")
            names.append(named.get(item.path, "") if in_list else folder)
            test.append(part == "val")
    classes = sorted({name for name, is_val in zip(names, test, strict=True) if not is_val})
    if len(classes) != NUM_CLASSES:
        raise DataError(
            f"data set tiny-imagenet: {len(classes)} folders of classes in "
            f"{store.where}/**/train, expected {NUM_CLASSES}; it must be laid out as {LAYOUT}"
        )
    label_of = {name: label for label, name in enumerate(classes)}
    for item, name in zip(kept, names, strict=True):
        if name not in label_of:
            raise DataError(
                f"data set tiny-imagenet: {store.where / item.path} belongs to none of the "
                f"classes of train/, by its folder or {ANNOTATIONS}; take it away or fetch it again"
            )
    labels = np.array([label_of[name] for name in names], dtype=np.int64)
    return image_sets.Table(kept, labels, np.zeros_like(labels), np.array(test, dtype=bool)), tuple(
        classes
    )


def _below(path: str) -> tuple[str, ...]:
    """Return a path's names from ``train`` or ``val`` on; both may lie in one folder more."""
    parts = path.split("/")
    for depth in range(min(2, len(parts))):
        if parts[depth] in ("train", "val"):
            return tuple(parts[depth:])
    return ()


CENTRES = tuple(f"centre{number}" for number in range(5))
METADATA = "metadata.csv"
PATCHES = f"{METADATA} and patches/patient_*_node_*/patch_*.png"
_COLUMNS = {
    **dict.fromkeys(("patient", "node", "x_coord", "y_coord"), "[0-9]+"),
    "tumor": "[01]",
    "center": "[0-4]",
}
"""What stands in each; nothing else may be part of a file's name."""
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
    size: image_sets.Size = 96,
    test: image_sets.TestShare = 0.2,
    mapped: image_sets.Mapped = None,
) -> DataSet:
    """Return Camelyon17 (WILDS): 455,954 patches 3x96x96 from 5 centres, with and without tumour (binary).

    A patch that is not there is noticed when it is decoded; that it changed later, only with the
    table.
    """
    place = Path(path).expanduser() if path else root / "archives" / "camelyon17"
    homes = [home for home in (place, place / "camelyon17_v1.0") if (home / METADATA).is_file()]
    if not homes:
        raise DataError(
            f"data set camelyon17 is not there: {place} lacks {METADATA}. It comes from {CAMELYON17.where}; unpack it "
            f"there (or give its folder as data.path), laid out as {PATCHES}"
        )
    chosen = select_domains("camelyon17", CENTRES, domains)
    spec = image_sets.ImageSet(
        "camelyon17", chosen, ("normal", "tumour"), size, seed, samples, mapped, "binary"
    )
    table = image_sets.split(_patches(homes[0], chosen), test, spec)
    return image_sets.image_dataset(spec, table, image_sets.Store(homes[0]), root)


def _patches(home: Path, chosen: Sequence[str]) -> image_sets.Table:
    """Read the table of patches.

    Raises
    ------
    DataError
        If it has other columns, or naming the line that is wrong.
    """
    import pandas as pd

    path = home / METADATA
    facts = path.stat()
    try:
        table = pd.read_csv(path, usecols=list(_COLUMNS), dtype=str, keep_default_na=False)
    except ValueError as error:
        raise DataError(f"{path}: {brief(error)}; fetch it again") from None
    who = "patient_" + table["patient"] + "_node_" + table["node"]
    names = "patches/" + who + "/patch_" + who
    names += "_x_" + table["x_coord"] + "_y_" + table["y_coord"] + ".png"
    wrong = names.duplicated()
    for column in _COLUMNS:
        wrong |= ~table[column].str.fullmatch(_COLUMNS[column])
    if wrong.any():
        row = int(wrong.to_numpy().argmax())
        raise DataError(
            f"{path}, line {row + 2}: found {table.iloc[row].to_dict()}; expected numbers, tumor 0 "
            "or 1, center 0 to 4, and no patch twice; fetch it again"
        )
    numbers = table[["tumor", "center"]].astype(np.int64)
    kept = np.flatnonzero(("centre" + table["center"]).isin(chosen))
    place = np.array([chosen.index(name) if name in chosen else -1 for name in CENTRES])
    stamp = f"{facts.st_size}|{facts.st_mtime_ns}"
    return image_sets.Table(
        [image_sets.Item(name, 0, stamp) for name in names.iloc[kept]],
        numbers["tumor"].to_numpy()[kept],
        place[numbers["center"].to_numpy()[kept]],
    )
