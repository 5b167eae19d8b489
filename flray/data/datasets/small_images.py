"""Small images from their makers' files: CIFAR, FC100, Fashion-MNIST, EMNIST, SVHN."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from flray.data.datasets import embedded
from flray.data.datasets.digit_archives import read_idx, read_matlab
from flray.data.datasets.embedded import SampleCap, Seed, one_domain
from flray.data.sources.archives import (
    Files,
    Place,
    Source,
    facts,
    read_pickled_arrays,
    register_source,
)
from flray.data.sources.images import decode
from flray.data.types import Arrays, DataSet
from flray.files.border import read_npz
from flray.registry import register_dataset

_TABLE = facts(__file__)
COARSE, CIFAR10 = tuple(_TABLE["coarse"]), tuple(_TABLE["cifar-10"]["classes"])
CIFAR100 = tuple(_TABLE["cifar-100"]["classes"])
FC100_COARSE: Mapping[str, Sequence[int]] = _TABLE["fc100"]["superclasses"]


def _files(name: str, decode: Callable[[Path, Sequence[str]], Arrays], split: str = "") -> Files:
    """Register the files of a set, whose places and addresses are in the table, and return them."""
    one = _TABLE[name]
    layouts = [layout.format(split=split).split() for layout in one["layouts"]]
    return register_source(
        Files(
            name,
            one["where"],
            layouts,
            decode,
            len(one["classes"]),
            one["downloads"],
            one.get("elsewhere", ()),
        )
    )


def _register(name: str, decode: Callable[[Path, Sequence[str]], Arrays]) -> None:
    """Register the set of some files: one domain with its official split."""
    files, one = _files(name, decode), _TABLE[name]

    def dataset(
        root: Path, *, path: Place = None, seed: Seed = 0, samples: SampleCap = None
    ) -> DataSet:
        return one_domain(name, files.load(root, path), tuple(one["classes"]), seed, samples)

    dataset.__doc__ = one["title"]
    register_dataset(name)(dataset)


def _decode(folder: Path, names: Sequence[str]) -> Arrays:
    """Return images and labels; the last file is the test part."""
    files = [read_pickled_arrays(folder / name) for name in names]
    kinds = {"x": "data", "y": "labels"}
    if "fine_labels" in files[0]:
        kinds |= {"y": "fine_labels", "coarse": "coarse_labels"}
    arrays: Arrays = {}
    for part, some in (("train", files[:-1]), ("test", files[-1:])):
        for kind, entry in kinds.items():
            found = np.concatenate([np.asarray(file[entry]) for file in some])
            arrays[f"{part}_{kind}"] = found.reshape(-1, 3, 32, 32) if kind == "x" else found
    return arrays


_register("cifar-10", _decode)
CIFAR100_FILES = _files("cifar-100", _decode)


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
    coarse = dict(zip(arrays["train_y"].tolist(), arrays["train_coarse"].tolist(), strict=True))
    superclasses = tuple(coarse.get(label, 0) for label in range(100))
    return one_domain("cifar-100", arrays, CIFAR100, seed, samples, coarse=superclasses)


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
    files = Files("cifar10-jpeg", "who made the file", [[file.name]], _decode_jpeg, 10)
    return one_domain("cifar10-jpeg", files.load(root, str(file.parent)), CIFAR10, seed, samples)


def _decode_jpeg(folder: Path, names: Sequence[str]) -> Arrays:
    path = folder / names[0]
    stored = read_npz(path)
    jpeg, test = stored["jpeg"].tobytes(), stored["is_test"].astype(bool)
    number = {name: place for place, name in enumerate(CIFAR10)}
    if (stored["label"] < 0).any():  # numpy counts it from the end
        raise ValueError(f"the label {stored['label'].min()}")
    y = np.array([number[str(name)] for name in stored["classes"]])[stored["label"]]
    images = [
        decode(jpeg[start:end], f"{path}: image {row}", 32)
        for row, (start, end) in enumerate(pairwise(stored["offset"].tolist()))
    ]
    x = np.stack(images).transpose(0, 3, 1, 2)
    return {"train_x": x[~test], "train_y": y[~test], "test_x": x[test], "test_y": y[test]}


register_source(
    Source(
        "fc100",
        "CIFAR-100 (`flray data get cifar-100`)",
        fetch=CIFAR100_FILES.get,
        there=CIFAR100_FILES.present,
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
    whole = CIFAR100_FILES.load(root, path)
    x, y, coarse = (
        np.concatenate([whole[f"train_{kind}"], whole[f"test_{kind}"]])
        for kind in ("x", "y", "coarse")
    )
    arrays: Arrays = {}
    for half, superclass in (("train", FC100_COARSE["train"]), ("test", FC100_COARSE[part])):
        mine = np.isin(coarse, superclass)
        arrays |= {f"{half}_x": x[mine], f"{half}_y": y[mine]}
    return one_domain("fc100", arrays, CIFAR100, seed, samples, task="few-shot")


def _idx_pairs(folder: Path, names: Sequence[str], turned: bool) -> Arrays:
    """Return both parts; EMNIST stores its images turned: rows and columns change places."""
    x, y, test_x, test_y = (read_idx(folder / name) for name in names)
    if turned:
        x, test_x = x.swapaxes(1, 2), test_x.swapaxes(1, 2)
    return dict(zip(embedded.PARTS, (x[:, None], y, test_x[:, None], test_y), strict=True))


def _svhn(folder: Path, names: Sequence[str]) -> Arrays:
    return dict(zip(embedded.PARTS, read_matlab(folder, names), strict=True))


_register("fashion-mnist", partial(_idx_pairs, turned=False))
_register("svhn", _svhn)
EMNIST_FILES = {
    split: _files("emnist", partial(_idx_pairs, turned=True), split)
    for split in ("balanced", "bymerge")
}


@register_dataset("emnist")
def emnist(
    root: Path,
    *,
    path: Place = None,
    seed: Seed = 0,
    samples: SampleCap = None,
    split: Annotated[
        Literal["bymerge", "balanced"], Field(description="all images, or equally many per class")
    ] = "bymerge",
) -> DataSet:
    """Return EMNIST's 47 merged classes of letters and digits, 1x28x28, official split (by merge 697,932 + 116,323)."""
    classes = tuple(_TABLE["emnist"]["classes"])
    return one_domain("emnist", EMNIST_FILES[split].load(root, path), classes, seed, samples)
