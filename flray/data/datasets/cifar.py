"""CIFAR-10 and CIFAR-100 from either of their archives."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from flray.data.arrays import Arrays
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
from flray.data.sources.images import channel_statistics
from flray.data.sources.safe_unpickle import read_pickled_arrays
from flray.data.types import DataSet, Domain
from flray.errors import DataError
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
