"""Sets laid out as ``ROOT/<domain>/<class>/*``: how one is declared, read and registered."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field

from flray.data.datasets.domain_folders import (
    check_complete,
    domain_home,
    normalise_name,
    select_domains,
)
from flray.data.datasets.embedded import ChosenDomains, SampleCap, Seed
from flray.data.sources.archives import register_source
from flray.data.sources.download import Progress
from flray.data.sources.file_stores import Item, Store, find_store
from flray.data.sources.image_sets import (
    ImageSet,
    Mapped,
    Place,
    Size,
    Table,
    TestShare,
    image_dataset,
    split,
)
from flray.data.types import DataSet
from flray.errors import ConfigError, DataError, nearest
from flray.registry import register_dataset

Rename = Annotated[
    dict[str, str], Field(description="other names of class folders, for example {auto: car}")
]
Incomplete = Annotated[bool, Field(description="take domains that lack some of the classes")]
_BETWEEN = ("images", "full")


@dataclass(frozen=True)
class ClassFolders:
    """How a set of folders looks.

    Attributes
    ----------
    name, title : str
        Its registered name, and one sentence of what it is.
    where : str
        Where a user gets it.
    domains : mapping of str to sequence of str
        Names of the domains in order, and what else their folders are called.
    classes : sequence of str
        Names of the classes in label order.
    size : int
        Usual height and width.
    aliases : mapping of str to str
        What else folders of classes are called.
    others : bool
        Whether folders of other classes are passed over; otherwise they are refused.
    """

    name: str
    title: str
    where: str
    domains: Mapping[str, Sequence[str]]
    classes: Sequence[str]
    size: int
    aliases: Mapping[str, str] = field(default_factory=dict)
    others: bool = False

    @property
    def fetched(self) -> bool:
        """Whether `flray data get` downloads it."""
        return False

    @property
    def layout(self) -> str:
        """The layout in words."""
        return f"DOMAIN/CLASS/*.jpg with the domains {', '.join(self.domains)} (DOMAIN/images/CLASS is taken too)"

    def present(self, root: Path) -> bool:
        """Whether there is something at the usual place."""
        return (root / "archives" / self.name).exists()

    def get(self, root: Path, progress: Progress) -> None:
        """Decode what was put there by hand.

        Raises
        ------
        DataError
            If it is not there.
        """
        self.load(root, progress=progress)

    def load(
        self,
        root: Path,
        *,
        path: str | None = None,
        seed: int = 0,
        domains: Sequence[str] | None = None,
        samples: int | None = None,
        size: int | None = None,
        test: float = 0.2,
        rename: Mapping[str, str] | None = None,
        incomplete: bool = False,
        mapped: bool | None = None,
        progress: Progress | None = None,
    ) -> DataSet:
        """Return the data set; the options are those of `register_tree`."""
        store = find_store(root, self.name, path, self.where, self.layout)
        chosen = select_domains(self.name, tuple(self.domains), domains)
        table = self.table(store, store.items(), chosen, rename or {}, incomplete)
        spec = ImageSet(
            self.name, chosen, tuple(self.classes), size or self.size, seed, samples, mapped
        )
        return image_dataset(spec, split(table, test, spec, store), store, root, progress)

    def table(
        self,
        store: Store,
        items: Sequence[Item],
        chosen: Sequence[str],
        rename: Mapping[str, str],
        incomplete: bool,
    ) -> Table:
        """Return every image with its class and domain.

        Raises
        ------
        DataError
            If a domain or class is missing, or a file or folder is where none belongs; the message
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
        for folder, name in rename.items():
            if normalise_name(name) not in label_of:
                raise ConfigError(
                    f"experiment.data.rename.{folder}",
                    repr(name),
                    f"a class of {self.name}: "
                    f"{', '.join(self.classes)}{nearest(name, self.classes)}",
                )
            label_of[normalise_name(folder)] = label_of[normalise_name(name)]
        kept: list[Item] = []
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
            below = (
                [below[0], *below[2:]]
                if len(below) == 4 and below[1].lower() in _BETWEEN
                else below
            )
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
                    f"data set {self.name}: the folder "
                    f"{str(store.where / item.path).rsplit('/', 1)[0]} is none of its "
                    f"{len(self.classes)} classes{nearest(below[1], self.classes)}; take it away, "
                    f"or say what it is, as data.rename={{{below[1]}: CLASS}}"
                )
            kept.append(item)
            labels.append(label)
            numbers.append(chosen.index(domain))
        table = Table(kept, np.array(labels, dtype=np.int64), np.array(numbers, dtype=np.int64))
        check_complete(self.name, store.where, table, chosen, self.classes, incomplete)
        return table


def register_tree(tree: ClassFolders) -> ClassFolders:
    """Register a set of folders with the options that all of them have."""

    def dataset(
        root: Path,
        *,
        path: Place = None,
        seed: Seed = 0,
        domains: ChosenDomains = None,
        samples: SampleCap = None,
        size: Size = tree.size,
        test: TestShare = 0.2,
        rename: Rename = {},  # noqa: B006 - never changed, and the schema shows it
        incomplete: Incomplete = False,
        mapped: Mapped = None,
    ) -> DataSet:
        return tree.load(
            root,
            path=path,
            seed=seed,
            domains=domains,
            samples=samples,
            size=size,
            test=test,
            rename=rename,
            incomplete=incomplete,
            mapped=mapped,
        )

    dataset.__doc__ = tree.title
    register_dataset(tree.name)(dataset)
    register_source(tree)
    return tree
