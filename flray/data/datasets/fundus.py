"""Retinal photographs of six sources with masks of optic disc and cup."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from flray.data.datasets.domain_folders import select_domains
from flray.data.datasets.embedded import ChosenDomains, SampleCap, Seed
from flray.data.datasets.fundus_synthetic import STRUCTURES
from flray.data.sources.archives import register_source
from flray.data.sources.download import Progress
from flray.data.sources.file_stores import Item, Store, find_store
from flray.data.sources.image_sets import ImageSet, Mapped, Place, Size, Table, image_dataset
from flray.data.types import DataSet
from flray.errors import DataError
from flray.registry import register_dataset

DOMAINS = tuple(f"domain{number}" for number in range(1, 7))
LAYOUT = "Domain1 to Domain6/{train,test}/ROIs/{image,mask}/*.png, image and mask of the same name"


@dataclass(frozen=True)
class Fundus:
    """Where it comes from (see `flray.data.sources.archives.DatasetSource`)."""

    name: str = "fundus"
    where: str = "the six-source optic disc and cup set of DoFE (https://github.com/emma-sjwang/Dofe) and its extension"
    fetched: bool = False

    def present(self, root: Path) -> bool:
        """Whether there is something at the usual place."""
        return (root / "archives" / self.name).exists()

    def get(self, root: Path, progress: Progress) -> None:
        """Decode what was put there by hand."""
        self.load(root, None, 0, None, None, 256, None, progress)

    def load(
        self,
        root: Path,
        path: str | None,
        seed: int,
        domains: Sequence[str] | None,
        samples: int | None,
        size: int,
        mapped: bool | None,
        progress: Progress | None = None,
    ) -> DataSet:
        """Return the data set; the options are those of `fundus`."""
        store = find_store(root, self.name, path, self.where, LAYOUT)
        chosen = select_domains(self.name, DOMAINS, domains)
        spec = ImageSet(
            self.name,
            chosen,
            STRUCTURES,
            size,
            seed,
            samples,
            mapped,
            task="segmentation",
            read_mask=disc_and_cup,
        )
        return image_dataset(spec, _table(store, chosen), store, root, progress)


FUNDUS = register_source(Fundus())


@register_dataset("fundus")
def fundus(
    root: Path,
    *,
    path: Place = None,
    seed: Seed = 0,
    domains: ChosenDomains = None,
    samples: SampleCap = None,
    size: Size = 256,
    mapped: Mapped = None,
) -> DataSet:
    """Return retinal photographs of six sources with masks of disc and cup (segmentation); own test parts."""
    return FUNDUS.load(root, path, seed, domains, samples, size, mapped)


def disc_and_cup(mask: NDArray[np.uint8], path: Path) -> NDArray[np.uint8]:
    """Return the masks of disc (which includes the cup) and cup from one of three grey values.

    Parameters
    ----------
    mask : ndarray of uint8 [H, W]
        White outside, grey in the disc's rim, black in the cup; or black outside and white in the
        cup; or 0, 1, 2.
    path : Path
        For the message.

    Returns
    -------
    ndarray of uint8 [2, H, W]
        1 inside.

    Raises
    ------
    DataError
        If it is not such a mask, or shows no disc.
    """
    corners = np.array([mask[0, 0], mask[0, -1], mask[-1, 0], mask[-1, -1]])
    outside = int(np.median(corners))
    if int(mask.max()) <= 2:
        disc, cup = mask >= 1, mask == 2
    elif outside > 200:
        disc, cup = mask <= 200, mask <= 50
    elif outside < 50:
        disc, cup = mask >= 50, mask > 200
    else:
        raise DataError(
            f"{path}: grey value {outside} in the corners; expected white or black outside the "
            "disc; fetch the mask again"
        )
    if not disc.any():
        raise DataError(
            f"{path}: the mask shows no disc; fetch it again, or take it and its image away"
        )
    return np.stack([disc, cup]).astype(np.uint8)


def _table(store: Store, chosen: Sequence[str]) -> Table:
    images: dict[tuple[int, bool, str], Item] = {}
    masks: dict[tuple[int, bool, str], Item] = {}
    for item in store.items():
        parts = item.path.lower().split("/")
        number = next((DOMAINS.index(part) for part in parts if part in DOMAINS), None)
        if number is None or DOMAINS[number] not in chosen:
            continue
        below = parts[parts.index(DOMAINS[number]) + 1 :]
        if (
            len(below) != 4
            or below[0] not in ("train", "test")
            or below[1] != "rois"
            or below[2] not in ("image", "mask")
            or not item.is_image
        ):
            raise DataError(
                f"data set fundus: {store.where / item.path} is out of place; expected {LAYOUT}; "
                "take it away"
            )
        kind = images if below[2] == "image" else masks
        key = (chosen.index(DOMAINS[number]), below[0] == "test", below[3].rsplit(".", 1)[0])
        if key in kind:
            raise DataError(
                f"data set fundus: {store.where / item.path} and {kind[key].path} have the same "
                "name; take one away"
            )
        kind[key] = item
    for key in sorted({*images, *masks}):
        if key not in images or key not in masks:
            have, lacks = (images, "mask") if key in images else (masks, "image")
            raise DataError(
                f"data set fundus: {store.where / have[key].path} has no {lacks} of the same "
                "name; fetch it again or take the file away"
            )
    keys = sorted(images)
    for number, name in enumerate(chosen):
        if not any(key[0] == number for key in keys):
            raise DataError(
                f"data set fundus: {name} has no images in {store.where}; it must be laid out as "
                f"{LAYOUT}; put them there, or choose other sources with data.domains"
            )
    return Table(
        [images[key] for key in keys],
        np.zeros(len(keys), dtype=np.int64),
        np.array([key[0] for key in keys], dtype=np.int64),
        np.array([key[1] for key in keys], dtype=bool),
        [masks[key] for key in keys],
    )
