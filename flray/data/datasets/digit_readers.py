"""Images and labels of digit archives, from pickles and MATLAB files of several layouts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from flray.data.arrays import Array, Arrays
from flray.data.sources.archives import check_labels, expect, whole_numbers
from flray.data.sources.safe_unpickle import read_pickled_arrays

Reader: TypeAlias = "Callable[[Path, Sequence[str]], list[Array]]"


def images_of(path: Path, values: ArrayLike) -> NDArray[np.uint8]:
    """Return images [n, 3, H, W] of 0 to 255 from an archive's array, grey or coloured, channels first or last."""
    array = np.asarray(values)
    if array.ndim == 3:
        array = array[:, None]
    elif array.ndim == 4 and array.shape[1] not in (1, 3):
        array = array.transpose(0, 3, 1, 2)
    expect(
        path,
        array.ndim == 4 and array.shape[1] in (1, 3) and array.shape[2] == array.shape[3],
        f"images of {list(np.asarray(values).shape)}",
        "[n, H, H], [n, H, H, C] or [n, C, H, H]",
    )
    if array.dtype != np.uint8:
        floating = array.astype(np.float64)
        expect(
            path,
            bool(np.isfinite(floating).all()) and floating.min() >= 0 and floating.max() <= 255,
            f"values from {floating.min():g} to {floating.max():g}",
            "0 to 1 or 0 to 255",
        )
        array = np.rint(floating * (255 if floating.max() <= 1 else 1)).astype(np.uint8)
    return np.ascontiguousarray(np.broadcast_to(array, (len(array), 3, *array.shape[2:])))


def labels_of(path: Path, values: ArrayLike, count: int) -> NDArray[np.int64]:
    """Return labels 0 to 9 from numbers (a zero may be written as 10) or one-hot rows."""
    array = np.asarray(values)
    if array.ndim == 2 and array.shape[1] == 10:
        array = array.argmax(1)
    labels = whole_numbers(path, array.ravel())
    if 0 not in labels:
        labels = np.where(labels == 10, 0, labels)
    expect(path, len(labels) == count, f"{len(labels)} labels for {count} images", "as many")
    check_labels(path, labels, 10)
    return labels


def _validate_pair(
    path: Path, images: ArrayLike, labels: ArrayLike
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    x = images_of(path, images)
    return x, labels_of(path, labels, len(x))


def read_pickled_parts(folder: Path, names: Sequence[str]) -> list[Array]:
    """Return a domain's training and test images and labels; the last file is the test part."""
    pairs = []
    for name in names:
        content = read_pickled_arrays(folder / name)
        expect(
            folder / name,
            isinstance(content, (tuple, list)) and len(content) == 2,
            type(content).__name__,
            "a pair of images and labels",
        )
        pairs.append(_validate_pair(folder / name, *content))
    return [
        np.concatenate([x for x, _ in pairs[:-1]]),
        np.concatenate([y for _, y in pairs[:-1]]),
        *pairs[-1],
    ]


def _read_matlab(path: Path, wanted: Mapping[str, Sequence[str]]) -> Arrays:
    """Return a MATLAB file's variables by what they are here; each may have one of several names."""
    from scipy.io import loadmat

    content: Arrays = loadmat(path)
    found = {}
    for here, names in wanted.items():
        name = next((n for n in names if n in content), None)
        expect(
            path,
            name is not None,
            f"the variables {', '.join(k for k in content if not k.startswith('__'))}",
            f"{' or '.join(names)} among them",
        )
        found[here] = content[str(name)]
    return found


def _reader_of(train: Sequence[str], test: Sequence[str]) -> Reader:
    """Return the reader of one file with two parts, given the names of their images."""

    def read(folder: Path, names: Sequence[str]) -> list[Array]:
        path = folder / names[0]
        found = _read_matlab(
            path,
            {
                "x": train,
                "y": ("label_train", "train_label"),
                "tx": test,
                "ty": ("label_test", "test_label"),
            },
        )
        return [
            *_validate_pair(path, found["x"], found["y"]),
            *_validate_pair(path, found["tx"], found["ty"]),
        ]

    return read


def _read_svhn(folder: Path, names: Sequence[str]) -> list[Array]:
    parts: list[Array] = []
    for name in names:
        found = _read_matlab(folder / name, {"X": ("X",), "y": ("y",)})
        parts += _validate_pair(folder / name, found["X"].transpose(3, 2, 0, 1), found["y"])
    return parts


def _read_usps(folder: Path, names: Sequence[str]) -> list[Array]:
    path = folder / names[0]
    dataset = _read_matlab(path, {"dataset": ("dataset",)})["dataset"]
    expect(
        path,
        getattr(dataset, "shape", ()) == (2, 2),
        f"dataset of {getattr(dataset, 'shape', ())}",
        "2 by 2 cells",
    )
    return [
        *_validate_pair(path, dataset[0][0], dataset[0][1]),
        *_validate_pair(path, dataset[1][0], dataset[1][1]),
    ]


MATLAB_READERS: dict[str, Reader] = {
    "mnist": _reader_of(("train_28", "train_32"), ("test_28", "test_32")),
    "svhn": _read_svhn,
    "usps": _read_usps,
    "synthdigits": _reader_of(("train_data",), ("test_data",)),
    "mnistm": _reader_of(("train",), ("test",)),
}
