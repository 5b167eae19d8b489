"""CIFAR-10 and CIFAR-100 from either of their archives, CIFAR-10 as JPEG, and FC100."""

from __future__ import annotations

import io
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from flray.data.datasets.embedded import SampleCap, Seed, one_domain
from flray.data.sources.archives import (
    Download,
    Files,
    Place,
    check_labels,
    expect,
    labelled_images,
    register_source,
    whole_numbers,
)
from flray.data.sources.download import Progress
from flray.data.sources.safe_unpickle import read_pickled_arrays
from flray.data.types import Arrays, DataSet
from flray.errors import DataError
from flray.files.border import read_npz
from flray.registry import register_dataset

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
COARSE = tuple(
    """
aquatic mammals, fish, flowers, food containers, fruit and vegetables, household electrical devices,
household furniture, insects, large carnivores, large man-made outdoor things, large natural outdoor scenes,
large omnivores and herbivores, medium-sized mammals, non-insect invertebrates, people, reptiles,
small mammals, trees, vehicles 1, vehicles 2
""".strip()
    .replace("\n", " ")
    .split(", ")
)
CIFAR100 = tuple(
    """
apple aquarium_fish baby bear beaver bed bee beetle bicycle bottle bowl boy bridge bus butterfly camel
can castle caterpillar cattle chair chimpanzee clock cloud cockroach couch crab crocodile cup dinosaur dolphin elephant
flatfish forest fox girl hamster house kangaroo keyboard lamp lawn_mower leopard lion lizard lobster man maple_tree
motorcycle mountain mouse mushroom oak_tree orange orchid otter palm_tree pear pickup_truck pine_tree plain plate poppy
porcupine possum rabbit raccoon ray road rocket rose sea seal shark shrew skunk skyscraper snail snake spider squirrel
streetcar sunflower sweet_pepper table tank telephone television tiger tractor train trout tulip turtle wardrobe whale
willow_tree wolf woman worm
""".split()  # noqa: SIM905
)
_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))


def _downloads(name: str) -> Sequence[Download]:
    from torchvision import datasets

    source = getattr(datasets, name)
    return (Download(source.url, source.tgz_md5, unpack=True),)


def _entries(path: Path, names: Collection[str]) -> dict[str, Any]:
    """Return some named entries of a pickle."""
    content = read_pickled_arrays(path)
    known = isinstance(content, dict) and set(names) <= content.keys()
    expect(path, known, "other entries", ", ".join(names))
    return {name: np.asarray(content[name]) for name in names}


def _records(path: Path, **classes: int) -> Arrays:
    """Return images and labels of a file in either form: a pickle, or labels and 3,072 pixels for each image."""
    if path.suffix == ".bin":
        raw, width = np.fromfile(path, dtype=np.uint8), 3072 + len(classes)
        expect(path, raw.size % width == 0, f"{raw.size} bytes", f"a multiple of {width}")
        columns = np.split(raw.reshape(-1, width), range(1, 1 + len(classes)), 1)
        content = dict(zip((*classes, "data"), columns, strict=True))
    else:
        content = _entries(path, ("data", *classes))
    found: Arrays = {}
    for kind, count in classes.items():
        labels = content[kind].ravel()
        x, found[kind] = labelled_images(path, content["data"], labels, (3072,), count)
    return {"x": x.reshape(-1, 3, 32, 32), **found}


def _decode10(folder: Path, names: Sequence[str]) -> Arrays:
    files = [_records(folder / name, labels=10) for name in names]
    return {
        f"{part}_{kind}": np.concatenate([file[entry] for file in some])
        for part, some in (("train", files[:-1]), ("test", files[-1:]))
        for kind, entry in (("x", "x"), ("y", "labels"))
    }


def _decode100(folder: Path, names: Sequence[str]) -> Arrays:
    kinds = {"x": "x", "coarse_labels": "coarse", "fine_labels": "y"}
    return {
        f"{part}_{kinds[entry]}": values
        for part, name in zip(("train", "test"), names, strict=True)
        for entry, values in _records(folder / name, coarse_labels=20, fine_labels=100).items()
    }


CIFAR10_FILES = register_source(
    Files(
        "cifar-10",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        [
            [f"cifar-10-batches-py/{name}" for name in (*_BATCHES, "test_batch")],
            [f"cifar-10-batches-bin/{name}.bin" for name in (*_BATCHES, "test_batch")],
            [*_BATCHES, "test_batch"],
            [f"{name}.bin" for name in (*_BATCHES, "test_batch")],
        ],
        _decode10,
        partial(_downloads, "CIFAR10"),
    )
)
CIFAR100_FILES = register_source(
    Files(
        "cifar-100",
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        [
            ["cifar-100-python/train", "cifar-100-python/test"],
            ["cifar-100-binary/train.bin", "cifar-100-binary/test.bin"],
            ["train", "test"],
            ["train.bin", "test.bin"],
        ],
        _decode100,
        partial(_downloads, "CIFAR100"),
    )
)


@register_dataset("cifar-10")
def cifar10(
    root: Path, *, path: Place = None, seed: Seed = 0, samples: SampleCap = None
) -> DataSet:
    """Return CIFAR-10, 50,000 and 10,000 photos 3x32x32, official split."""
    return one_domain("cifar-10", CIFAR10_FILES.load(root, path), CIFAR10, seed, samples)


@register_dataset("cifar-100")
def cifar100(
    root: Path,
    *,
    path: Place = None,
    seed: Seed = 0,
    samples: SampleCap = None,
    labels: Annotated[
        Literal["fine", "coarse"], Field(description="100 classes, or their 20 superclasses")
    ] = "fine",
) -> DataSet:
    """Return CIFAR-100, 50,000 and 10,000 photos 3x32x32, official split; its superclasses serve `pachinko`."""
    arrays = CIFAR100_FILES.load(root, path)
    if labels == "coarse":
        arrays |= {"train_y": arrays["train_coarse"], "test_y": arrays["test_coarse"]}
        return one_domain("cifar-100", arrays, COARSE, seed, samples)
    return one_domain("cifar-100", arrays, CIFAR100, seed, samples, coarse=superclasses(arrays))


def superclasses(arrays: Arrays) -> tuple[int, ...]:
    """Return the superclass of each class.

    Raises
    ------
    DataError
        If a class has images in two superclasses: the labels are not in CIFAR-100's order.
    """
    found: dict[int, int] = {}
    for fine, coarse in zip(
        arrays["train_y"].tolist(), arrays["train_coarse"].tolist(), strict=True
    ):
        if found.setdefault(fine, coarse) != coarse:
            raise DataError(
                f"cifar-100: class {CIFAR100[fine]} lies in the superclasses "
                f"{COARSE[found[fine]]} and {COARSE[coarse]}: the files are not CIFAR-100's; "
                "fetch them again"
            )
    return tuple(found.get(label, 0) for label in range(100))


@register_dataset("cifar10-jpeg")
def cifar10_jpeg(
    root: Path,
    *,
    seed: Seed = 0,
    samples: SampleCap = None,
    path: Annotated[
        str, Field(description="the .npz file with jpeg, offset, label, is_test and classes")
    ],
) -> DataSet:
    """Return all of CIFAR-10 after lossy compression, 3x32x32: results on it are not results on CIFAR-10."""
    file = Path(path).expanduser()
    files = Files("cifar10-jpeg", "who made the file", [[file.name]], _decode_jpeg)
    arrays = files.load(root, str(file.parent))
    return one_domain("cifar10-jpeg", arrays, CIFAR10, seed, samples)


def _decode_jpeg(folder: Path, names: Sequence[str]) -> Arrays:
    from PIL import Image

    path = folder / names[0]
    wanted = ("jpeg", "offset", "label", "is_test", "classes")
    stored = read_npz(path)
    missing = [name for name in wanted if name not in stored]
    expect(path, not missing, f"no {', '.join(missing)}", ", ".join(wanted))
    jpeg, offset, label, test, found = (stored[name] for name in wanted)
    labels, jpeg, test = whole_numbers(path, label), jpeg.tobytes(), test.astype(bool)
    names_ = [str(name) for name in found]
    expect(path, labels.ndim == 1, f"labels of shape {list(labels.shape)}", "[n]")
    known = sorted(names_) == sorted(CIFAR10)
    expect(path, known, f"the classes {', '.join(names_)}", ", ".join(CIFAR10))
    check_labels(path, labels, 10)
    expect(
        path,
        len(offset) == len(labels) + 1
        and len(test) == len(labels)
        and (np.diff(offset) > 0).all()
        and offset[0] >= 0
        and offset[-1] <= len(jpeg),
        f"{len(offset)} offsets and {len(test)} entries of is_test for {len(labels)} labels and "
        f"{len(jpeg)} bytes",
        "one rising offset more than labels, within the bytes, and as many entries of is_test",
    )
    labels = np.array([CIFAR10.index(name) for name in names_])[labels]
    x = np.empty((len(labels), 3, 32, 32), dtype=np.uint8)
    for row, (start, end) in enumerate(pairwise(offset.tolist())):
        try:
            with Image.open(io.BytesIO(jpeg[start:end]), formats=("JPEG", "PNG", "WEBP")) as image:
                size = list(image.size)
                expect(path, size == [32, 32], f"image {row} of {size}", "32 by 32 pixels")
                x[row] = np.asarray(image.convert("RGB")).transpose(2, 0, 1)
        except (OSError, ValueError, Image.DecompressionBombError) as error:
            raise DataError(
                f"{path}: image {row} cannot be decoded ({error}); fetch the file again"
            ) from None
    return {
        "train_x": x[~test],
        "train_y": labels[~test],
        "test_x": x[test],
        "test_y": labels[test],
    }


FC100_COARSE = {
    "train": (1, 2, 3, 4, 5, 6, 9, 10, 15, 17, 18, 19),
    "val": (8, 11, 13, 16),
    "test": (0, 7, 12, 14),
}
"""The superclasses of each part of FC100 (Oreshkin et al., 2018): no class of one part shares one with another part."""


@dataclass(frozen=True)
class Fc100Files(Files):
    """FC100 from the files of FC100, or built from CIFAR-100 files."""

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
        x, y = _entries(path, ("data", "labels")).values()
        if x.ndim == 4 and x.shape[-1] == 3:
            x = x.transpose(0, 3, 1, 2)
        x, y = labelled_images(path, x, y, (3, 32, 32), 100)
        for label in np.unique(y).tolist():
            expect(
                path,
                owner.setdefault(label, name) == name,
                f"the class {CIFAR100[label]}, which {owner[label]} has",
                "classes of its own",
            )
        arrays |= {f"{part}_x": x, f"{part}_y": y}
    return arrays


FC100_FILES = register_source(
    Fc100Files(
        "fc100",
        "CIFAR-100 (`flray data get cifar-100`), or as the three pickles that MetaOptNet links to",
        [[f"FC100_{part}.pickle" for part in FC100_COARSE]],
        _decode_fc100,
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
    arrays |= {"test_x": arrays[f"{part}_x"], "test_y": arrays[f"{part}_y"]}
    return one_domain("fc100", arrays, CIFAR100, seed, samples, task="few-shot")
