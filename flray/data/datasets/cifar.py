"""CIFAR-10 and CIFAR-100 from either of their archives, CIFAR-10 as JPEG, and FC100."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from flray.data.datasets.embedded import SampleCap, Seed, cap_samples
from flray.data.sources.archives import (
    Download,
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
from flray.data.types import Arrays, DataSet, Domain
from flray.errors import DataError
from flray.files.border import read_npz
from flray.registry import register_dataset

CIFAR10 = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
COARSE = (
    "aquatic mammals",
    "fish",
    "flowers",
    "food containers",
    "fruit and vegetables",
    "household electrical devices",
    "household furniture",
    "insects",
    "large carnivores",
    "large man-made outdoor things",
    "large natural outdoor scenes",
    "large omnivores and herbivores",
    "medium-sized mammals",
    "non-insect invertebrates",
    "people",
    "reptiles",
    "small mammals",
    "trees",
    "vehicles 1",
    "vehicles 2",
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


def _cifar10_downloads() -> Sequence[Download]:
    from torchvision.datasets import CIFAR10

    return (Download(CIFAR10.url, CIFAR10.tgz_md5, unpack=True),)


def _cifar100_downloads() -> Sequence[Download]:
    from torchvision.datasets import CIFAR100

    return (Download(CIFAR100.url, CIFAR100.tgz_md5, unpack=True),)


def _records(path: Path, extra: int) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Return images and labels [n, extra] of a file in the binary form: labels, then 3,072 pixels, for each image."""
    if path.suffix == ".bin":
        raw = np.fromfile(path, dtype=np.uint8)
        expect(
            path,
            raw.size > 0 and raw.size % (3072 + extra) == 0,
            f"{raw.size} bytes",
            f"a multiple of {3072 + extra}",
        )
        rows = raw.reshape(-1, 3072 + extra)
        return rows[:, extra:].reshape(-1, 3, 32, 32), rows[:, :extra].astype(np.int64)
    content = read_pickled_arrays(path)
    keys = ("labels",) if extra == 1 else ("coarse_labels", "fine_labels")
    expect(
        path,
        isinstance(content, dict) and all(key in content for key in ("data", *keys)),
        "other entries",
        f"data, {', '.join(keys)}",
    )
    pixels = np.asarray(content["data"])
    expect(
        path,
        pixels.dtype == np.uint8 and pixels.ndim == 2 and pixels.shape[1] == 3072,
        f"data of {pixels.dtype} {list(pixels.shape)}",
        "uint8 [n, 3072]",
    )
    labels = np.stack([whole_numbers(path, content[key]) for key in keys], 1)
    expect(
        path,
        len(labels) == len(pixels),
        f"{len(labels)} labels for {len(pixels)} images",
        "as many",
    )
    return pixels.reshape(-1, 3, 32, 32), labels


def _decode10(folder: Path, names: Sequence[str]) -> Arrays:
    parts = [_records(folder / name, 1) for name in names]
    for name, (_, labels) in zip(names, parts, strict=True):
        check_labels(folder / name, labels, 10)
    x, y = np.concatenate([p[0] for p in parts[:-1]]), np.concatenate([p[1] for p in parts[:-1]])
    return {"train_x": x, "train_y": y[:, 0], "test_x": parts[-1][0], "test_y": parts[-1][1][:, 0]}


def _decode100(folder: Path, names: Sequence[str]) -> Arrays:
    arrays: Arrays = {}
    for part, name in zip(("train", "test"), names, strict=True):
        x, labels = _records(folder / name, 2)
        check_labels(folder / name, labels[:, 0], 20)
        check_labels(folder / name, labels[:, 1], 100)
        arrays |= {
            f"{part}_x": x,
            f"{part}_coarse": labels[:, 0].copy(),
            f"{part}_y": labels[:, 1].copy(),
        }
    return arrays


CIFAR10_FILES = register_source(
    Files(
        "cifar-10",
        [
            [f"cifar-10-batches-py/{name}" for name in (*_BATCHES, "test_batch")],
            [f"cifar-10-batches-bin/{name}.bin" for name in (*_BATCHES, "test_batch")],
            [*_BATCHES, "test_batch"],
            [f"{name}.bin" for name in (*_BATCHES, "test_batch")],
        ],
        _decode10,
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        _cifar10_downloads,
    )
)
CIFAR100_FILES = register_source(
    Files(
        "cifar-100",
        [
            ["cifar-100-python/train", "cifar-100-python/test"],
            ["cifar-100-binary/train.bin", "cifar-100-binary/test.bin"],
            ["train", "test"],
            ["train.bin", "test.bin"],
        ],
        _decode100,
        "https://www.cs.toronto.edu/~kriz/cifar.html",
        _cifar100_downloads,
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
        return one_domain(
            "cifar-100",
            {**arrays, "train_y": arrays["train_coarse"], "test_y": arrays["test_coarse"]},
            COARSE,
            seed,
            samples,
        )
    return one_domain("cifar-100", arrays, CIFAR100, seed, samples, superclasses(arrays))


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


def one_domain(
    name: str,
    arrays: Arrays,
    classes: tuple[str, ...],
    seed: int,
    samples: int | None,
    coarse: tuple[int, ...] | None = None,
) -> DataSet:
    """Return a data set of a single domain from arrays of its two parts."""
    domain = cap_samples(
        Domain(name, "real", *(arrays[p] for p in ("train_x", "train_y", "test_x", "test_y"))),
        samples,
        seed,
    )
    return DataSet(name, (domain,), classes, *channel_statistics([domain.train_x]), coarse=coarse)


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
    arrays = Files("cifar10-jpeg", [[file.name]], _decode_jpeg, "who made the file").load(
        root, str(file.parent)
    )
    return one_domain("cifar10-jpeg", arrays, CIFAR10, seed, samples)


def _decode_jpeg(folder: Path, names: Sequence[str]) -> Arrays:
    from PIL import Image

    path = folder / names[0]
    wanted = ("jpeg", "offset", "label", "is_test", "classes")
    stored = {name: array for name, array in read_npz(path).items() if name in wanted}
    missing = [name for name in wanted if name not in stored]
    expect(path, not missing, f"no {', '.join(missing)}", ", ".join(wanted))
    jpeg, offset, labels = (
        stored["jpeg"].tobytes(),
        stored["offset"],
        whole_numbers(path, stored["label"]),
    )
    test, names_ = stored["is_test"].astype(bool), [str(name) for name in stored["classes"]]
    expect(path, labels.ndim == 1, f"labels of shape {list(labels.shape)}", "[n]")
    expect(
        path,
        sorted(names_) == sorted(CIFAR10),
        f"the classes {', '.join(names_)}",
        ", ".join(CIFAR10),
    )
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
                expect(
                    path,
                    image.size == (32, 32),
                    f"image {row} of {list(image.size)}",
                    "32 by 32 pixels",
                )
                pixels = np.asarray(image.convert("RGB"))
        except (OSError, ValueError, Image.DecompressionBombError) as error:
            raise DataError(
                f"{path}: image {row} cannot be decoded ({error}); fetch the file again"
            ) from None
        x[row] = pixels.transpose(2, 0, 1)
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
