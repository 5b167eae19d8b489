"""FC100: few-shot classes of CIFAR-100, from its own files or made of CIFAR-100 (Oreshkin et al., 2018)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from flray.data.arrays import Arrays
from flray.data.datasets.cifar import CIFAR100, CIFAR100_FILES
from flray.data.datasets.embedded import SampleCap, Seed, cap_samples
from flray.data.sources.archives import (
    Files,
    Place,
    check_labels,
    expect,
    register_source,
    whole_numbers,
)
from flray.data.sources.download import Progress
from flray.data.sources.images import channel_statistics
from flray.data.sources.safe_unpickle import read_pickled_arrays
from flray.data.types import DataSet, Domain
from flray.registry import register_dataset

FC100_COARSE = {
    "train": (1, 2, 3, 4, 5, 6, 9, 10, 15, 17, 18, 19),
    "val": (8, 11, 13, 16),
    "test": (0, 7, 12, 14),
}
"""The superclasses of each part of FC100 (Oreshkin et al., 2018): no class of one part shares one with another part."""


@dataclass(frozen=True)
class Fc100Files(Files):
    """FC100 from its own files, or made of CIFAR-100, wherever that is."""

    @property
    def fetched(self) -> bool:
        """Whether `flray data get` downloads it."""
        return True

    def present(self, root: Path) -> bool:
        """Whether it or CIFAR-100 is at the usual place."""
        return super().present(root) or CIFAR100_FILES.present(root)

    def get(self, root: Path, progress: Progress) -> None:
        """Fetch CIFAR-100, unless one of both is there, and decode it."""
        if not super().present(root):
            CIFAR100_FILES.get(root, progress)
        self.load(root)

    def load(self, root: Path, path: str | None = None) -> Arrays:
        """Return images and fine labels of the parts train, val and test."""
        if self.has(root, path) or not CIFAR100_FILES.has(root, path):
            return super().load(root, path)
        whole = CIFAR100_FILES.load(root, path)
        x, y, coarse = (
            np.concatenate([whole[f"{half}_{kind}"] for half in ("train", "test")])
            for kind in ("x", "y", "coarse")
        )
        parts: Arrays = {}
        for part, superclass in FC100_COARSE.items():
            mine = np.isin(coarse, superclass)
            parts |= {f"{part}_x": x[mine], f"{part}_y": y[mine]}
        return parts


def _decode_fc100(folder: Path, names: Sequence[str]) -> Arrays:
    arrays: Arrays = {}
    owner: dict[int, str] = {}
    for part, name in zip(FC100_COARSE, names, strict=True):
        path = folder / name
        content = read_pickled_arrays(path)
        expect(
            path,
            isinstance(content, dict) and {"data", "labels"} <= content.keys(),
            "other entries",
            "data and labels",
        )
        x, y = np.asarray(content["data"]), whole_numbers(path, content["labels"])
        if x.ndim == 4 and x.shape[-1] == 3:
            x = x.transpose(0, 3, 1, 2)
        expect(
            path,
            x.dtype == np.uint8 and x.shape[1:] == (3, 32, 32) and y.shape == x.shape[:1],
            f"data of {x.dtype} {list(x.shape)} and labels {list(y.shape)}",
            "uint8 [n, 32, 32, 3] and n labels",
        )
        check_labels(path, y, 100)
        for label in np.unique(y).tolist():
            expect(
                path,
                owner.setdefault(label, name) == name,
                f"the class {CIFAR100[label]}, which {owner[label]} has",
                "classes of its own",
            )
        arrays |= {f"{part}_x": np.ascontiguousarray(x), f"{part}_y": y}
    return arrays


FC100_FILES = register_source(
    Fc100Files(
        "fc100",
        [[f"FC100_{part}.pickle" for part in FC100_COARSE]],
        _decode_fc100,
        "CIFAR-100 (`flray data get cifar-100`), or as the three pickles that MetaOptNet links to",
    )
)


@register_dataset("fc100")
def fc100(
    root: Path,
    *,
    path: Place = None,
    seed: Seed = 0,
    samples: SampleCap = None,
    part: Annotated[
        Literal["test", "val"], Field(description="whose classes are the unseen ones")
    ] = "test",
) -> DataSet:
    """Return FC100: few-shot classes of CIFAR-100, split by superclass into 60 for training, 20 and 20 unseen ones."""
    arrays = FC100_FILES.load(root, path)
    parts = (arrays[name] for name in ("train_x", "train_y", f"{part}_x", f"{part}_y"))
    domain = cap_samples(Domain("fc100", "real", *parts), samples, seed)
    return DataSet(
        "fc100", (domain,), CIFAR100, *channel_statistics([domain.train_x]), task="few-shot"
    )
