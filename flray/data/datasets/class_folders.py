"""Sets laid out as ``ROOT/<domain>/<class>/*``, and sets with a list of labels beside the images."""

import contextlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path

import numpy as np

from flray.data.datasets.embedded import ChosenDomains, SampleCap, Seed, select_domains
from flray.data.sources import image_sets
from flray.data.sources.archives import Place, Source, facts, read_pickled_arrays, register_source
from flray.data.types import DataSet
from flray.errors import DataError, explained, nearest
from flray.registry import register_dataset

_DEEPEST = 3  # folders between the given place and those of the domains


@lru_cache(4096)
def normalise_name(name: str) -> str:
    """Return a folder's name without capitals, spaces and punctuation."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def domain_home(
    store: image_sets.Store,
    items: Sequence[image_sets.Item],
    domains: Mapping[str, str],
    layout: str,
    name: str,
) -> str:
    """Return the path (with a slash, or empty) below which most of the domains' folders lie.

    Raises
    ------
    DataError
        If none of them is anywhere.
    """
    homes: dict[str, set[str]] = {}
    for item in items:
        parents = item.path.split("/")[:-1]
        for depth, folder in enumerate(parents[: _DEEPEST + 1]):
            if normalise_name(folder) in domains:
                homes.setdefault("".join(f"{p}/" for p in parents[:depth]), set()).add(
                    domains[normalise_name(folder)]
                )
    if not homes:
        tops = sorted({item.path.split("/")[0] for item in items})
        some = ", ".join(tops[:5]) + (" and more" if len(tops) > 5 else "")
        raise DataError(
            f"data set {name}: no domain's folder in {store.where}, only {some or 'nothing'}; it "
            f"must be laid out as {layout}"
        )
    return min(homes, key=lambda home: (-len(homes[home]), home.count("/"), home))


_BETWEEN = ("images", "full")


@dataclass(frozen=True)
class ClassFolders(Source):
    """How a set of folders looks.

    Attributes
    ----------
    domains : mapping of str to sequence of str
        Names of the domains in order, with other names of their folders.
    classes : sequence of str
        Names of the classes in label order.
    aliases : mapping of str to str
        Other names of the classes' folders.
    others : bool
        Whether folders of other classes are ignored; otherwise they are an error.
    lists : sequence of str
        Kinds of lists of images; the first that each domain has decides on the split.
    """

    domains: Mapping[str, Sequence[str]]
    classes: Sequence[str]
    aliases: Mapping[str, str] = field(default_factory=dict)
    others: bool = False
    lists: Sequence[str] = (".pkl",)

    @property
    def layout(self) -> str:
        """The layout in words."""
        return f"DOMAIN/CLASS/*.jpg with the domains {', '.join(self.domains)} (DOMAIN/images/CLASS is taken too)"

    def table(
        self, store: image_sets.Store, items: Sequence[image_sets.Item], chosen: Sequence[str]
    ) -> image_sets.Table:
        """Return every image with its class and domain.

        Raises
        ------
        DataError
            If a domain or class is missing, or a file or folder does not belong there; the message
            names it.
        """
        other = {
            normalise_name(folder): name
            for name, folders in self.domains.items()
            for folder in (name, *folders)
        }
        home = domain_home(store, items, other, self.layout, self.name)
        label_of = {
            normalise_name(folder): self.classes.index(name)
            for folder, name in (*((c, c) for c in self.classes), *self.aliases.items())
        }
        kept: list[image_sets.Item] = []
        labels, numbers = [], []
        for item in items:
            below = item.path.removeprefix(home).split("/") if item.path.startswith(home) else []
            domain = other.get(normalise_name(below[0])) if len(below) > 1 else None
            if domain is None:
                if item.is_image:
                    raise DataError(
                        f"data set {self.name}: {store.where / item.path} is in no domain's "
                        f"folder ({', '.join(self.domains)}); take it away"
                    )
                continue  # a licence, a list or the like
            if domain not in chosen:
                continue
            if len(below) == 4 and below[1].lower() in _BETWEEN:
                del below[1]
            if len(below) != 3 or not item.is_image:
                raise DataError(
                    f"data set {self.name}: {store.where / item.path} is no image in a class's "
                    f"folder, {below[0]}/CLASS/*.jpg; take it away"
                )
            label = label_of.get(normalise_name(below[1]))
            if label is None and self.others:
                continue
            if label is None:
                raise DataError(
                    f"data set {self.name}: the folder {str(store.where / item.path).rsplit('/', 1)[0]} is none of its "
                    f"{len(self.classes)} classes{nearest(below[1], self.classes)}; take it away, or rename it"
                )
            kept.append(item)
            labels.append(label)
            numbers.append(chosen.index(domain))
        held = set(zip(numbers, labels, strict=True))
        for number, domain in enumerate(chosen):
            lacks = [c for label, c in enumerate(self.classes) if (number, label) not in held]
            if lacks:
                some = ", ".join(lacks[:5]) + " and more" * (len(lacks) > 5)
                raise DataError(
                    f"data set {self.name}: the domain {domain} in {store.where} has no images of {some}; fetch it "
                    "again, or choose other domains with data.domains"
                )
        return image_sets.Table(
            kept, np.array(labels, dtype=np.int64), np.array(numbers, dtype=np.int64)
        )


def register_tree(tree: ClassFolders, title: str, usual: int) -> ClassFolders:
    """Register a set of folders with the options that all of them have.

    Parameters
    ----------
    tree : ClassFolders
        The set.
    title : str
        One sentence that describes it.
    usual : int
        Default height and width.
    """

    def dataset(
        root: Path,
        *,
        path: Place = None,
        seed: Seed = 0,
        domains: ChosenDomains = None,
        samples: SampleCap = None,
        size: image_sets.Size = usual,
        test: image_sets.TestShare = 0.2,
        mapped: image_sets.Mapped = None,
    ) -> DataSet:
        store = image_sets.find_store(root, tree, path, tree.layout)
        chosen = select_domains(tree.name, tuple(tree.domains), domains)
        items = store.items()
        table = tree.table(store, items, chosen)
        spec = image_sets.ImageSet(
            tree.name, chosen, tuple(tree.classes), size, seed, samples, mapped
        )
        for kind in tree.lists:
            if (listed := _lists(store, items, chosen, kind)) is not None:
                row_of = {item.path: row for row, item in enumerate(table.items)}
                rows = [row_of[place] for place in listed if place in row_of]
                table = table.rows(np.array(rows, dtype=np.int64))
                parts = np.array([listed[item.path] for item in table.items], dtype=bool)
                found = image_sets.image_dataset(spec, replace(table, test=parts), store, root)
                return replace(found, ordered=kind == ".pkl")
        table = image_sets.split(table, test, spec, store)
        return image_sets.image_dataset(spec, table, store, root)

    dataset.__doc__ = title
    register_dataset(tree.name)(dataset)
    return register_source(tree)


OFFICE_CALTECH10, OFFICE31, OFFICE_HOME, PACS, VLCS, DOMAINNET = (
    register_tree(
        ClassFolders(
            name,
            one["where"],
            one["domains"],
            one["classes"].split(),
            *(one[part] for part in ("aliases", "others", "lists") if part in one),
        ),
        one["title"],
        one["size"],
    )
    for name, one in facts(__file__).items()
)


def _lists(
    store: image_sets.Store, items: Sequence[image_sets.Item], chosen: Sequence[str], kind: str
) -> dict[str, bool] | None:
    """Return which listed pictures are for test, or None if a domain has no lists.

    A line of ``DOMAIN_PART.txt`` is a path and a label; ``DOMAIN_PART.pkl`` (FedBN's) holds paths
    and names of classes, in the order of samples. Paths are compared from the domain's folder on, and never opened.

    Raises
    ------
    DataError
        Naming list and entry, if a picture is not there or is listed twice.
    """
    by_name = {item.path.rsplit("/", 1)[-1]: item.path for item in items}
    lists = {
        (domain, part): by_name.get(f"{domain}_{part}{kind}")
        for domain in chosen
        for part in ("train", "test")
    }
    if None in lists.values():
        return None
    places = {_below(item.path, domain): item.path for item in items for domain in chosen}
    places.pop("", None)
    found: dict[str, bool] = {}
    for (domain, part), path in lists.items():
        assert path is not None
        for number, entry in enumerate(_entries(store, path), 1):
            place = places.get(_below(entry, domain))
            if place is None or place in found:
                raise DataError(
                    f"{store.where / path}, entry {number}: {entry[:80]!r} is listed twice or is not in "
                    f"{store.where}; fetch the pictures again"
                )
            found[place] = part == "test"
    return found if kind == ".pkl" else dict(sorted(found.items()))


def _entries(store: image_sets.Store, path: str) -> list[str]:
    content = store.read(path)
    if path.endswith(".txt"):
        lines = content.decode("utf-8", "replace").splitlines()
        return [line.strip().rpartition(" ")[0] or line for line in lines if line.strip()]
    held = read_pickled_arrays(store.where / path, content)
    if isinstance(held, list | tuple) and len(held) == 2:
        with contextlib.suppress(ValueError):  # numpy's, of lists of unequal lengths
            names, labels = (np.asarray(one) for one in held)
            if names.ndim == 1 and names.shape == labels.shape and names.dtype.kind in "UO":
                return [str(name) for name in names]
    raise DataError(f"{store.where / path}: no paths with a class's name each; fetch it again")


def _below(path: str, domain: str) -> str:
    """Return a path from the domain's folder on, or nothing if it has none."""
    names = path.split("/")
    depths = [
        i for i, name in enumerate(names[:-1]) if normalise_name(name) == normalise_name(domain)
    ]
    return "/".join([domain, *names[depths[0] + 1 :]]) if depths else ""


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
        # Both may lie in one folder more; there are boxes, words, and the unlabelled test part too.
        below = re.match(r"(?:[^/]+/)??(train|val)/([^/]*)", item.path)
        if item.is_image and below:
            part, folder = below.groups()
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
    place = CAMELYON17.place(root, path)
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
    found = path.stat()
    with explained(ValueError, f"{path}: cannot be read", "fetch it again"):
        table = pd.read_csv(path, usecols=list(_COLUMNS), dtype=str, keep_default_na=False)
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
    stamp = f"{found.st_size}|{found.st_mtime_ns}"
    return image_sets.Table(
        [image_sets.Item(name, 0, stamp) for name in names.iloc[kept]],
        numbers["tumor"].to_numpy()[kept],
        place[numbers["center"].to_numpy()[kept]],
    )
