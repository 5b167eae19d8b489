"""Every data set that comes from files, written small in its layout, with what each of its samples is."""

import bz2
import gzip
import hashlib
import pickle
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from scipy.io import savemat
from torchvision.datasets import EMNIST, FashionMNIST

from flray.data.datasets import class_folders
from flray.data.datasets.class_folders import PACS, ClassFolders
from flray.data.datasets.small_images import CIFAR10, CIFAR100, FC100_COARSE
from flray.data.loading import fit_to_shape
from flray.data.sources.cache import decoded
from flray.data.sources.images import resize, to_colour
from tests.data import pictures
from tests.data.conftest import N_MNIST, N_USPS

Known = dict[bytes, tuple[str, Any]]


@dataclass(frozen=True)
class Written:
    """What lies on disk."""

    known: Known  # domain, and class name or masks (bytes), of each sample by its bytes [C, H, W]
    test: set[bytes] | None = None  # the official test part; None where the seed divides
    options: dict[str, Any] = field(default_factory=dict)  # with which the set is loaded
    drawn: dict[str, Any] = field(default_factory=dict)  # what else makes the seed count
    spare: int = 0  # how many of the known samples are left over for another domain


def key(image: NDArray[Any]) -> bytes:
    """Return an image [H, W, C] as a data set has it."""
    return np.moveaxis(image, -1, 0).tobytes()


def numbered(number: int, side: int = 8) -> bytes:
    return key(pictures.pixels_of(number, side))


def divided(images: NDArray[Any], names: list[str], domain: str, first_test: int) -> Written:
    """Return images [n, C, H, W] of one domain, for test from `first_test` on."""
    keys = [image.tobytes() for image in images]
    known = {k: (domain, name) for k, name in zip(keys, names, strict=True)}
    drawn = {"samples": max(2, first_test // 2)}
    return Written(known, set(keys[first_test:]), drawn=drawn)


def tree(kind: ClassFolders) -> Callable[[Path], Written]:
    def write(root: Path) -> Written:
        two = dict.fromkeys(kind.classes, 2)
        pictures.trees(root / "archives" / kind.name, dict.fromkeys(kind.domains, two))
        rows = [(d, name) for d in kind.domains for name in kind.classes for _ in range(2)]
        return Written({numbered(n): row for n, row in enumerate(rows)}, None, {"size": 8})

    return write


def domainnet(root: Path) -> Written:
    pictures.net(root / "archives", lists=True, classes=pictures.TEN)
    rows = [(style, name) for style in pictures.STYLES for name in pictures.TEN for _ in range(3)]
    known = {numbered(n): row for n, row in enumerate(rows)}
    return Written(known, {numbered(n) for n in range(0, 180, 3)}, {"size": 8}, {"samples": 10})


def camelyon17(root: Path) -> Written:
    pictures.tissue(root / "archives" / "camelyon17")
    rows = {numbered(n): (f"centre{n // 20}", ("normal", "tumour")[n % 2]) for n in range(100)}
    return Written(rows, None, {"size": 8})


def tiny_imagenet(root: Path) -> Written:
    pictures.tiny(root / "archives" / "tiny-imagenet")
    classes = [pictures.WNIDS[n // 2 if n < 400 else n - 400] for n in range(600)]
    known = {numbered(n): ("tiny-imagenet", name) for n, name in enumerate(classes)}
    return Written(known, {numbered(n) for n in range(400, 600)}, {"size": 8}, {"samples": 50})


def fundus(root: Path) -> Written:
    """Images and masks are enlarged; a mask gets no new values by it."""
    pictures.retina(root / "archives" / "fundus")
    images = [Image.fromarray(pictures.pixels_of(n, 16)) for n in range(30)]
    keys = [key(np.asarray(one.resize((32, 32), Image.Resampling.BILINEAR))) for one in images]
    known = {}
    for n, image in enumerate(keys):
        mask = pictures.eye(n, white=False).repeat(2, 0).repeat(2, 1)
        both = np.stack([mask >= 128, mask == 255]).astype(np.uint8)
        known[image] = f"domain{n // 5 + 1}", both.tobytes()
    test = {image for n, image in enumerate(keys) if n % 5 > 2}
    return Written(known, test, {"size": 32}, {"samples": 2})


def cifar10(root: Path) -> Written:
    x, y = pictures.python_cifar10(root / "archives" / "cifar-10")
    return divided(x, [CIFAR10[label] for label in y], "cifar-10", 50)


def cifar100(root: Path) -> Written:
    folder = root / "archives" / "cifar-100"
    x, y = pictures.cifar100_pickles(folder)
    fine, other = np.arange(100), pictures.pixels(100, 3072)
    content = {"data": other, "fine_labels": fine, "coarse_labels": fine // 5}
    (folder / "test").write_bytes(pickle.dumps(content, protocol=2))
    return divided(np.concatenate([x, other]), [CIFAR100[c] for c in (*y, *fine)], "cifar-100", 200)


def fc100(root: Path) -> Written:
    """Unseen classes come from both of CIFAR-100's files, those for validation are left out."""
    whole = cifar100(root)
    coarse = {k: CIFAR100.index(name) // 5 for k, (_, name) in whole.known.items()}
    kept = [k for k, label in coarse.items() if label not in FC100_COARSE["val"]]
    test = {k for k in kept if coarse[k] in FC100_COARSE["test"]}
    return Written({k: ("fc100", whole.known[k][1]) for k in kept}, test, drawn={"samples": 50})


def jpegs(root: Path) -> Written:
    """The file numbers the classes in an order of its own."""
    pictures.jpeg_archive(root / "c.npz", CIFAR10[::-1])
    keys = [np.full((3, 32, 32), v, np.uint8).tobytes() for v in range(0, 240, 12)]
    known = {key: ("cifar10-jpeg", CIFAR10[9 - n % 10]) for n, key in enumerate(keys)}
    return Written(known, set(keys[10:]), {"path": str(root / "c.npz")}, {"samples": 5})


def pairs(file: Path, parts: tuple[str, str], x: NDArray[Any], y: NDArray[Any], first: int) -> None:
    """Write images and labels of both parts, as MNIST's are."""
    for part, rows in zip(parts, (slice(first), slice(first, None)), strict=True):
        for kind, values in (("images-idx3", x), ("labels-idx1", y)):
            pictures.idx(Path(str(file).format(part, kind)), values[rows])


def fashion(root: Path) -> Written:
    x, y = pictures.pixels(30, 28, 28), (np.arange(30) * 7 % 10).astype(np.uint8)
    pairs(root / "archives/fashion-mnist/{}-{}-ubyte.gz", ("train", "t10k"), x, y, 20)
    return divided(x, [FashionMNIST.classes[label] for label in y], "fashion-mnist", 20)


def emnist(root: Path) -> Written:
    x, labels = pictures.pixels(94, 28, 28), [*range(47), *reversed(range(47))]
    y = np.array(labels, dtype=np.uint8)
    file = root / "archives/emnist/gzip/emnist-bymerge-{}-{}-ubyte.gz"
    pairs(file, ("train", "test"), x, y, 47)
    names = sorted(EMNIST.classes_split_dict["bymerge"])
    return divided(x.swapaxes(1, 2), [names[label] for label in y], "emnist", 47)


def cropped(folder: Path, file: str, x: NDArray[Any], y: NDArray[Any], first_test: int) -> None:
    """Write SVHN's two files: images [H, W, C, n], and 10 for the digit 0."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, rows in (("train", slice(first_test)), ("test", slice(first_test, None))):
        labels = np.where(y[rows] == 0, 10, y[rows])[:, None]
        savemat(folder / file.format(name), {"X": x[rows].transpose(1, 2, 3, 0), "y": labels})


def svhn(root: Path) -> Written:
    x, y = pictures.pixels(30, 32, 32, 3), np.arange(30) * 3 % 10
    cropped(root / "archives" / "svhn", "{}_32x32.mat", x, y, 20)
    return divided(np.moveaxis(x, -1, 1), [str(label) for label in y], "svhn", 20)


FEDBN = {name: name.lower().replace("_", "") for name in pictures.FEDBN_SHAPES}


def fedbn(name: str, size: int, only: str = "") -> Callable[[Path], Written]:
    """FedBN's archive; images of another size are brought to this one as public images are."""

    def write(root: Path) -> Written:
        known: Known = {}
        test = set()
        for place, (x, y) in pictures.fedbn_archive(root / "archives" / name).items():
            folder, part = place.split("/")
            if only in ("", folder):
                colour = to_colour(x) if x.ndim == 3 else np.moveaxis(x, -1, 1)
                wide = fit_to_shape(colour, (3, size, size))
                keys = [image.tobytes() for image in wide]
                known |= {k: (FEDBN[folder], str(label)) for k, label in zip(keys, y, strict=True)}
                test |= set(keys) if part == "10" else set()
        return Written(known, test, {"size": size}, {"samples": 30})

    return write


def digits_of(
    there: Written, domain: str, x: NDArray[Any], y: NDArray[Any], first_test: int
) -> tuple[NDArray[Any], NDArray[Any]]:
    """Add images [n, H, W, C] of digits to what lies on disk, and return them with their labels."""
    colour = to_colour(x[..., 0]) if x.shape[-1] == 1 else np.moveaxis(x, -1, 1)
    keys = [image.tobytes() for image in fit_to_shape(colour, (3, 32, 32))]
    there.known.update({k: (domain, str(label)) for k, label in zip(keys, y, strict=True)})
    there.test.update(keys[first_test:])
    return x, y


def digit_five(root: Path) -> Written:
    folder = root / "archives" / "digit-five"
    there = Written({}, set(), {"size": 32}, {"samples": 5})

    def halves(domain: str, channels: int, step: int) -> tuple[Any, Any]:
        images = pictures.pixels(20, 32, 32, channels)
        return digits_of(there, domain, images, np.arange(20) * step % 10, 10)

    (x, y), (u, z) = (halves(name, 1, 3) for name in ("mnist", "usps"))
    steps = {"mnistm": 7, "synthdigits": 9, "svhn": 1}
    (m, n), (s, t), (v, w) = (halves(name, 3, step) for name, step in steps.items())
    hot = np.eye(10)
    cropped(folder, "svhn_{}_32x32.mat", v, w, 10)
    for file, names, images, labels in (
        # as some name it; its images may have any size
        ("mnist_data", ("train_28", "label_train", "test_32", "label_test"), x, hot[y]),
        ("mnistm_with_label", ("train", "label_train", "test", "label_test"), m, hot[n]),
        ("syn_number", ("train_data", "train_label", "test_data", "test_label"), s, t[:, None]),
    ):
        parts = (images[:10], labels[:10], images[10:], labels[10:])
        savemat(folder / f"{file}.mat", dict(zip(names, parts, strict=True)))
    cells = np.empty((2, 2), dtype=object)
    for row, rows in enumerate((slice(10), slice(10, 20))):
        cells[row, 0], cells[row, 1] = u[rows, None, :, :, 0] / 255, z[rows, None]
    savemat(folder / "usps_28x28.mat", {"dataset": cells})
    return there


def digits4(root: Path) -> Written:
    """FCCL+'s folder: three sets as torchvision fetches them, and SYN in folders of digits."""
    home, there = root / "archives" / "digits4", Written({}, set(), {}, {"samples": 10})
    shapes = {"mnist": (32, 32, 1), "usps": (16, 16, 1), "svhn": (32, 32, 3), "syn": (32, 32, 3)}
    (m, n), (u, z), (v, w), (s, t) = (
        digits_of(there, name, pictures.pixels(30, *shape) // 2 * 2, np.arange(30) * 7 % 10, 20)
        for name, shape in shapes.items()
    )
    cropped(home, "{}_32x32.mat", v, w, 20)
    raw = home / "MNIST/raw/{}-{}-ubyte.gz"
    pairs(raw, ("train", "t10k"), m[..., 0], n.astype(np.uint8), 20)
    for file, rows in (("usps", slice(20)), ("usps.t", slice(20, 30))):
        # a little above the whole number, which is rounded down
        values = (u[rows].reshape(-1, 256) + 0.3) / 127.5 - 1
        lines = [
            " ".join([str(label + 1), *(f"{i}:{value:.6f}" for i, value in enumerate(row, 1))])
            for row, label in zip(values, z[rows], strict=True)
        ]
        (home / f"{file}.bz2").write_bytes(bz2.compress("\n".join(lines).encode()))
    for row, (image, label) in enumerate(zip(s, t, strict=True)):
        part = "train" if row < 20 else "val"
        pictures.save(home / "syn" / part / str(label) / f"{row}.png", image)
    return there


def cached(folder: Path, x: NDArray[Any], train: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Write what `flray data get` keeps of one set of digits, and return it with its labels."""
    y = np.arange(len(x)) * 3 % 10
    parts = {"train_x": x[:train], "train_y": y[:train], "test_x": x[train:], "test_y": y[train:]}
    decoded(folder, lambda _: parts)
    return x, y


def mnist(root: Path) -> Written:
    x, y = cached(root / "mnist", pictures.pixels(40, 28, 28), 30)
    return divided(x, [str(label) for label in y], "mnist", 30)


def usps(root: Path) -> Written:
    x, y = cached(root / "usps", pictures.pixels(2 * N_USPS, 16, 16), N_USPS)
    both = zip(x, y, strict=True)
    return Written({image.tobytes(): ("usps", str(label)) for image, label in both})


def digits5_local(root: Path) -> Written:
    """Its three real domains; of MNIST as much as of USPS, the rest is for the composed one."""
    known: Known = {}
    for name, (train, test), shape, factor in (
        ("mnist", (N_MNIST["train"], N_MNIST["test"]), 28, 1),
        ("usps", (N_USPS, N_USPS), 16, 1),
        ("optdigits", (40, 20), 8, 255 / 16),
    ):
        images = pictures.pixels(train + test, shape, shape) // (1 if factor == 1 else 16)
        x, y = cached(root / name, images, train)
        both = zip(to_colour(resize(x * factor, 32)), y, strict=True)
        known |= {image.tobytes(): (name, str(label)) for image, label in both}
    spare = sum(N_MNIST.values()) - 2 * N_USPS
    return Written(known, None, {"domains": ["mnist", "usps", "optdigits"]}, spare=spare)


def eeg(root: Path) -> Written:
    """Trials as they are kept after MOABB gave them: a strong first channel is the right hand."""
    generator = np.random.default_rng(0)
    for channels, source in enumerate(("AlexMI", "BNCI2014_001", "BNCI2015_004", "Zhou2016"), 2):
        y = np.arange(30) % 2
        x = np.stack([np.diag(np.exp(0.1 * generator.standard_normal(channels))) for _ in y])
        x[:, 0, 0] *= np.where(y == 1, 50, 1 / 50)
        folder = f"{source}-{hashlib.sha256(f'{source}|8.0|32.0'.encode()).hexdigest()[:16]}"
        decoded(root / "eeg" / folder, lambda _, x=x, y=y: {"x": x, "y": y})
    return Written({})


KINDS = class_folders.OFFICE_CALTECH10, class_folders.OFFICE31, class_folders.OFFICE_HOME
BY_NAME = (domainnet, camelyon17, tiny_imagenet, fundus, fc100, emnist, svhn, digits4, digit_five)
BY_NAME += (mnist, usps, digits5_local, eeg)
LAYOUTS: dict[str, Callable[[Path], Written]] = {
    **{kind.name: tree(kind) for kind in (*KINDS, PACS, class_folders.VLCS)},
    **{write.__name__.replace("_", "-"): write for write in BY_NAME},
    "cifar-10": cifar10,
    "cifar-100": cifar100,
    "cifar10-jpeg": jpegs,
    "fashion-mnist": fashion,
    "digits5": fedbn("digits5", 32),
    "mnist-m": fedbn("mnist-m", 28, "MNIST_M"),
    "synthdigits": fedbn("synthdigits", 32, "SynthDigits"),
}


def moved(between: str = "", **folders: str) -> Callable[[Path], object]:
    """Give domains' folders other names, and put a folder between them and their classes."""

    def change(home: Path) -> None:
        aside = home.rename(home.with_name("aside"))
        for domain in aside.iterdir():
            to = home / folders.get(domain.name.replace("-", "_"), domain.name) / between
            to.parent.mkdir(parents=True, exist_ok=True)
            domain.rename(to)
        (home / "README.txt").write_text("about it")

    return change


def packed(home: Path) -> None:
    (inner, *more) = home.iterdir()
    archive = pictures.zipped(home if more else inner, home.parent / "o.zip")
    shutil.rmtree(home)
    home.mkdir()
    archive.rename(home / "whatever.zip")


def folded(home: Path) -> None:
    """Sort the validation images of Tiny ImageNet by class, without the list and the folders `images`."""
    lists = home / "tiny-imagenet-200" / "val" / "val_annotations.txt"
    for line in lists.read_text().splitlines():
        name, wnid, *_ = line.split("\t")
        (lists.parent / wnid).mkdir()
        (lists.parent / "images" / name).rename(lists.parent / wnid / name)
        images = lists.parent.parent / "train" / wnid / "images"
        for file in images.iterdir():
            file.rename(images.parent / file.name)
        images.rmdir()
    (lists.parent / "images").rmdir()
    lists.unlink()


def unpacked(home: Path) -> None:
    for path in home.glob("MNIST/raw/*.gz"):
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()


def dark(home: Path) -> None:
    shutil.rmtree(home)
    pictures.retina(home, white=False)


HOME = {"art": "Art", "clipart": "Clipart", "product": "Product", "real_world": "Real World"}
OTHER_FORMS: list[tuple[str, Callable[[Path], object]]] = [
    ("office31", moved("images")),
    ("office-home", moved(**HOME)),
    ("pacs", moved(**{name: f"kfold/{name}" for name in PACS.domains})),
    ("vlcs", moved("full", caltech="Caltech101", labelme="LabelMe", sun="SUN09", pascal="VOC2007")),
    ("office-caltech10", packed),
    ("tiny-imagenet", folded),
    ("tiny-imagenet", packed),
    ("fundus", dark),
    ("digits4", unpacked),
]
"""The same data as others hold them: what is done to a set's folder."""
