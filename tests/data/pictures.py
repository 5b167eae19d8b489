"""Small image files, and archives of images, in the layouts that data sets have."""

import gzip
import io
import pickle
import struct
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from flray.data.datasets.class_folders import DOMAINNET, OFFICE_CALTECH10
from flray.data.datasets.small_images import CIFAR10


def pixels_of(number: int, side: int = 8) -> NDArray[np.uint8]:
    """Return an image [side, side, 3] of blocks that no other number has and that JPEG keeps well."""
    colours = np.random.default_rng(number).integers(0, 256, (2, 2, 3)).astype(np.uint8)
    return colours.repeat(side // 2, 0).repeat(side // 2, 1)


def picture(path: Path, number: int, side: int = 8) -> None:
    """Write such an image."""
    save(path, pixels_of(number, side))


def save(path: Path, pixels: NDArray[np.uint8]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels).save(path)


def trees(root: Path, domains: dict[str, dict[str, int]]) -> Path:
    """Write ROOT/domain/class/*, so many images of each class, numbered through all."""
    folders = [
        (root / d / name, n) for d, classes in domains.items() for name, n in classes.items()
    ]
    files = [folder / f"{i:03d}.png" for folder, count in folders for i in range(count)]
    for number, file in enumerate(files):
        picture(file, number)
    return root


def zipped(folder: Path, archive: Path) -> Path:
    """Write a folder's files into a zip archive, below the folder's name."""
    with zipfile.ZipFile(archive, "w") as packed:
        for path in sorted(folder.rglob("*")):
            packed.write(path, f"{folder.name}/{path.relative_to(folder)}")
    return archive


def found(domain: Any, part: str) -> dict[int, int]:
    """Return the label of each written image in a part, by its number."""
    known = {pixels_of(n).tobytes(): n for n in range(2500)}
    x, y = (getattr(domain, f"{part}_{name}") for name in "xy")
    numbers = [known[image.tobytes()] for image in np.moveaxis(x, 1, -1)]
    return dict(zip(numbers, map(int, y), strict=True))


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


TEN = tuple(DOMAINNET.classes)
STYLES = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
WNIDS = tuple(f"n{10 * i + 3:08d}" for i in range(200))


def office(root: Path, count: int = 5) -> Path:
    domains = ("amazon", "caltech", "dslr", "webcam")
    classes = dict.fromkeys(OFFICE_CALTECH10.classes, count)
    return trees(root / "office_caltech_10", dict.fromkeys(domains, classes))


ELEVEN = (*TEN, "aircraft_carrier")


def net(root: Path, lists: bool = True, classes: Sequence[str] = ELEVEN) -> Path:
    """Write three pictures of each class of each domain, numbered through; the first of each is the official test."""
    path = trees(root / "domainnet", {style: dict.fromkeys(classes, 3) for style in STYLES})
    order = sorted(classes)
    for style in STYLES if lists else ():
        for part, kept in (("test", (0,)), ("train", (1, 2))):
            lines = [f"{style}/{c}/{i:03d}.png {order.index(c)}\n" for c in classes for i in kept]
            (path / f"{style}_{part}.txt").write_text("".join(lines))
    return path


def tiny(root: Path) -> Path:
    """Write two training images 2c, 2c + 1 and the validation image 400 + c of each class c."""
    path = root / "tiny-imagenet-200"
    lines = []
    for label, wnid in enumerate(WNIDS):
        for i in range(2):
            picture(path / "train" / wnid / "images" / f"{wnid}_{i}.png", 2 * label + i)
        (path / "train" / wnid / f"{wnid}_boxes.txt").write_text("boxes")
        name = f"val_{199 - label}.png"  # not in the order of the classes
        picture(path / "val" / "images" / name, 400 + label)
        lines.append(f"{name}\t{wnid}\t0\t0\t7\t7\n")
    picture(path / "test" / "images" / "test_0.png", 700)
    (path / "val" / "val_annotations.txt").write_text("".join(lines))
    return path


def tissue(root: Path) -> Path:
    """Write patches of two slides (patients) at each centre, every second one with tumour, numbered through."""
    home = root / "camelyon17_v1.0"
    lines = [",patient,node,x_coord,y_coord,tumor,slide,center,split"]
    for number in range(100):
        slide, i = divmod(number, 10)
        lines.append(f"{number},{slide:03d},4,{i},{32 * i},{i % 2},{slide},{slide // 2},0")
        who = f"patient_{slide:03d}_node_4"
        picture(home / "patches" / who / f"patch_{who}_x_{i}_y_{32 * i}.png", number)
    (home / "metadata.csv").write_text("\n".join([*lines, ""]))
    return home


def eye(number: int, white: bool = True) -> NDArray[np.uint8]:
    """Return a mask 16x16: a disc of 8x8 at (4 + number % 4, 4) and in it a cup of 4x4."""
    mask = np.zeros((16, 16), np.uint8)
    top = 4 + number % 4
    mask[top : top + 8, 4:12] = 128
    mask[top + 2 : top + 6, 6:10] = 255
    return 255 - mask if white else mask


def retina(root: Path, white: bool = True) -> Path:
    path = root / "Fundus"
    for number in range(30):
        part = "train" if number % 5 < 3 else "test"
        home = path / f"Domain{number // 5 + 1}" / part / "ROIs"
        picture(home / "image" / f"g{number:03d}.png", number, 16)
        save(home / "mask" / f"g{number:03d}.png", eye(number, white))
    return path


RNG = np.random.default_rng(0)


def pixels(n: int, *shape: int) -> NDArray[np.uint8]:
    return RNG.integers(0, 256, (n, *shape)).astype(np.uint8)


def python_cifar10(folder: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    folder.mkdir(parents=True)
    x, y = pixels(60, 3072), np.arange(60) % 10
    for i, name in enumerate([*(f"data_batch_{k}" for k in range(1, 6)), "test_batch"]):
        rows = slice(10 * i, 10 * i + 10)
        content = {"data": x[rows], "labels": y[rows].tolist()}
        (folder / name).write_bytes(pickle.dumps(content, protocol=2))
    return x, y


def cifar100_pickles(folder: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Class c lies in superclass c // 5; two images of each in both parts."""
    folder.mkdir(parents=True)
    fine = np.repeat(np.arange(100), 2)
    parts = {"data": pixels(200, 3072), "fine_labels": fine, "coarse_labels": fine // 5}
    for name in ("train", "test"):
        (folder / name).write_bytes(pickle.dumps(parts, protocol=2))
    return parts["data"], fine


def idx(path: Path, array: NDArray[np.uint8]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    head = bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape)
    path.write_bytes(gzip.compress(head + array.tobytes()))


FEDBN_SHAPES = {"MNIST": (28, 28), "SVHN": (32, 32, 3), "USPS": (16, 16)}
FEDBN_SHAPES |= {"SynthDigits": (32, 32, 3), "MNIST_M": (28, 28, 3)}


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
    rows, whole = np.arange(20), np.concatenate(files)
    held = {"jpeg": whole, "offset": np.cumsum([0, *map(len, files)]), "classes": np.array(classes)}
    np.savez(path, **held, label=rows % 10, is_test=rows >= 10)
    return whole
