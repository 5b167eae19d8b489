"""Small archives in the exact layout of the makers' files."""

import gzip
import io
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from flray.data.datasets.small_images import CIFAR10

RNG = np.random.default_rng(0)


def pixels(n: int, *shape: int) -> NDArray[np.uint8]:
    return RNG.integers(0, 256, (n, *shape)).astype(np.uint8)


def python_cifar10(folder: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    folder.mkdir(parents=True)
    x, y = pixels(60, 3072), np.arange(60) % 10
    for i, name in enumerate([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]):
        rows = slice(10 * i, 10 * i + 10)
        (folder / name).write_bytes(
            pickle.dumps({"data": x[rows], "labels": y[rows].tolist()}, protocol=2)
        )
    return x, y


def cifar100_pickles(folder: Path, **changes: Any) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Class c lies in superclass c // 5; two images of each in both parts."""
    folder.mkdir(parents=True)
    fine = np.repeat(np.arange(100), 2)
    parts = {"data": pixels(200, 3072), "fine_labels": fine, "coarse_labels": fine // 5, **changes}
    for name in ("train", "test"):
        (folder / name).write_bytes(pickle.dumps(parts, protocol=2))
    return parts["data"], fine


def idx(path: Path, array: NDArray[np.uint8]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(gzip.compress(head + array.tobytes()))


FEDBN_SHAPES = {
    "MNIST": (28, 28),
    "SVHN": (32, 32, 3),
    "USPS": (16, 16),
    "SynthDigits": (32, 32, 3),
    "MNIST_M": (28, 28, 3),
}


def fedbn_archive(folder: Path) -> dict[str, Any]:
    parts: dict[str, Any] = {}
    for name, shape in FEDBN_SHAPES.items():
        (folder / name / "partitions").mkdir(parents=True)
        for i in range(11):
            content = (pixels(10, *shape), np.roll(np.arange(10), i))
            parts[f"{name}/{i}"] = content
            path = folder / name / ("test.pkl" if i == 10 else f"partitions/train_part{i}.pkl")
            path.write_bytes(pickle.dumps(content))
    return parts


def jpeg_archive(path: Path, classes: tuple[str, ...] = CIFAR10) -> NDArray[np.uint8]:
    files = []
    for value in range(20):
        stream = io.BytesIO()
        Image.fromarray(np.full((32, 32, 3), 12 * value, np.uint8)).save(stream, "JPEG", quality=95)
        files.append(np.frombuffer(stream.getvalue(), np.uint8))
    np.savez(
        path,
        jpeg=np.concatenate(files),
        offset=np.cumsum([0, *map(len, files)]),
        label=np.arange(20) % 10,
        is_test=np.arange(20) >= 10,
        classes=np.array(classes),
    )
    return np.concatenate(files)
