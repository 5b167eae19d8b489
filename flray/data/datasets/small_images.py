"""Small images from their makers' files: archives of digit domains, CIFAR, FC100, Fashion-MNIST, EMNIST, SVHN.

The digits are FedBN's Digits-5, Digit-Five, and the four domains of FCCL and FCCL+.
"""

import bz2
import gzip
import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field

from flray.data.datasets.embedded import (
    DIGITS,
    PARTS,
    ChosenDomains,
    SampleCap,
    Seed,
    assemble,
    cap_samples,
    one_domain,
    select_domains,
)
from flray.data.loading import fit_to_shape
from flray.data.sources import image_sets, images
from flray.data.sources.archives import (
    FILES,
    Files,
    Place,
    facts,
    read_pickled_arrays,
    register_source,
)
from flray.data.types import Array, Arrays, DataSet, Domain, Images, Origin
from flray.errors import DataError
from flray.files import ARRAYS_BYTES, read_at_most, read_npz
from flray.files.tracking_address import at_home
from flray.registry import register_dataset


def _pair(images: ArrayLike, labels: ArrayLike) -> tuple[Array, Array]:
    """Return images [n, 3, H, W] of 0 to 255, from grey or coloured ones of 0 to 1 or 255, and labels 0 to 9.

    Labels are numbers, where 10 may stand for zero, or one-hot rows.
    """
    x, y = np.asarray(images), np.asarray(labels)
    if x.ndim == 3:
        x = x[:, None]
    elif x.shape[1] not in (1, 3):
        x = x.transpose(0, 3, 1, 2)
    if x.dtype != np.uint8:
        x = np.rint(x.astype(np.float64) * (255 if x.max() <= 1 else 1))
        if not 0 <= x.min() <= x.max() <= 255:
            raise ValueError("pixels that are not all of 0 to 1 or 0 to 255")
    y = y.argmax(1) if y.ndim == 2 and y.shape[1] == 10 else y.ravel()
    y = y if 0 in y else np.where(y == 10, 0, y)
    return np.broadcast_to(x.astype(np.uint8), (len(x), 3, *x.shape[2:])), y


def _read_fedbn(folder: Path, names: Sequence[str]) -> list[Array]:
    """Return a domain's training and test images and labels; the last file is the test part."""
    pairs = [_pair(*read_pickled_arrays(folder / name)) for name in names]
    return [*map(np.concatenate, zip(*pairs[:-1], strict=True)), *pairs[-1]]


def read_matlab(folder: Path, names: Sequence[str]) -> list[Array]:
    """Return the same of one MATLAB file, or of two for SVHN."""
    from scipy.io import loadmat

    found: Arrays = loadmat(folder / names[0])
    if "dataset" in found:  # USPS, two rows of cells
        return [array for row in found["dataset"] for array in _pair(*row)]
    if len(names) == 2:
        both = (found, loadmat(folder / names[1]))
        return [a for one in both for a in _pair(one["X"].transpose(3, 2, 0, 1), one["y"])]

    def first(*names: str) -> Array:
        return found[next((name for name in names if name in found), names[0])]

    return [
        array
        for part in ("train", "test")
        for array in _pair(
            first(part, f"{part}_data", f"{part}_28", f"{part}_32"),
            first(f"label_{part}", f"{part}_label"),
        )
    ]


def read_idx(path: Path) -> Images:
    """Return the array of an IDX file of bytes, compressed or not."""
    with path.open("rb") as file, gzip.open(file) if path.suffix == ".gz" else file as stream:
        raw = read_at_most(stream, path, ARRAYS_BYTES)
    if raw[:3] != b"\0\0\x08":
        raise ValueError(f"{path.name} is no IDX file of bytes")
    shape = np.frombuffer(raw, ">u4", raw[3], offset=4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * raw[3]).reshape(shape)


Size = Annotated[int, Field(ge=8, description="height and width to which all are resized")]
_TABLE = facts(__file__)
DOMAINS: dict[str, Origin] = _TABLE["digits"]["origins"]
_MAT: dict[str, list[str]] = _TABLE["digits"]["matlab"]
_FOLDERS = dict(zip(DOMAINS, ("MNIST", "SVHN", "USPS", "SynthDigits", "MNIST_M"), strict=True))
_FEDBN = tuple(
    {domain: [f"{folder}/{name}" for name in names] for domain, folder in _FOLDERS.items()}
    for names in (
        [*(f"partitions/train_part{i}.pkl" for i in range(10)), "test.pkl"],
        ["train.pkl", "test.pkl"],
        ["train_stratified.pkl", "test_stratified.pkl"],
    )
)
_TRAINING = {"tenths": _FEDBN[:1], "whole": _FEDBN[1:]}
Training = Annotated[
    Literal["tenths", "whole"],
    Field(
        description="tenths: the 7,438 images of partitions/train_part0.pkl to train_part9.pkl; whole: train.pkl, or "
        "train_stratified.pkl and test_stratified.pkl as LG-Mix's code names them, with up to 391,162"
    ),
]
Archive = dict[str, list[str]]


def _domain_files(name: str, where: str, have: Sequence[str], *archives: Archive) -> Files:
    """Register the files of some domains, which are those of one of the archives."""
    layouts = [_layout(archive, have) for archive in archives]

    def decode(folder: Path, names: Sequence[str]) -> Arrays:
        archive = archives[layouts.index(list(names))]
        read = read_matlab if archive is _MAT else _read_fedbn
        return {
            f"{domain}_{part}": array
            for domain in have
            for part, array in zip(PARTS, read(folder, archive[domain]), strict=True)
        }

    return register_source(Files(name, where, layouts, decode, 10))


def _layout(archive: Archive, have: Sequence[str]) -> list[str]:
    return [file for domain in have for file in archive[domain]]


def _dataset(
    arrays: Arrays, chosen: Sequence[str], seed: int, samples: int | None, size: int
) -> list[Domain]:
    """Return the chosen domains, in one size."""
    made = []
    for domain in chosen:
        parts = (arrays[f"{domain}_{part}"] for part in PARTS)
        one = cap_samples(Domain(domain, DOMAINS[domain], *parts), samples, seed)
        train, test = (fit_to_shape(x, (3, size, size)) for x in (one.train_x, one.test_x))
        made.append(replace(one, train_x=train, test_x=test))
    return made


def _register_domains(name: str, one: Mapping[str, Any]) -> None:
    """Register a set of domains, as the table has it."""
    fedbn = _FEDBN if one["fedbn"] else ()
    files = _domain_files(name, one["where"], one["domains"], _MAT, *fedbn)

    def dataset(
        root: Path,
        *,
        path: Place = None,
        seed: Seed = 0,
        domains: ChosenDomains = None,
        samples: SampleCap = None,
        size: Size = one["size"],
    ) -> DataSet:
        chosen = select_domains(name, one["domains"], domains)
        made = _dataset(files.load(root, path), chosen, seed, samples, size)
        return assemble(name, made, DIGITS)

    dataset.__doc__ = one["title"]
    register_dataset(name)(dataset)


for _name, _one in _TABLE["digits"]["sets"].items():
    _register_domains(_name, _one)
DIGITS5 = _domain_files(
    "digits5",
    "the link in https://github.com/med-air/FedBN (digit_dataset)",
    tuple(DOMAINS),
    *_FEDBN,
)


@register_dataset("digits5")
def digits5(
    root: Path,
    *,
    path: Place = None,
    seed: Seed = 0,
    domains: ChosenDomains = None,
    samples: SampleCap = None,
    size: Size = 28,
    training: Training = "tenths",
) -> DataSet:
    """Return FedBN's Digits-5 (MNIST, SVHN, USPS, SynthDigits, MNIST-M), colour images in its parts and order.

    For training 7,438 of each domain or all (56,000, 79,431, 7,438, 391,162 and 56,000), for test
    14,000, 19,858, 1,860, 97,791 and 14,000.
    """
    layouts = [_layout(archive, tuple(DOMAINS)) for archive in _TRAINING[training]]
    arrays = replace(DIGITS5, layouts=layouts).load(root, path)
    chosen = select_domains("digits5", tuple(DOMAINS), domains)
    made = _dataset(arrays, chosen, seed, samples, size)
    return assemble("digits5", made, DIGITS, ordered=True)


FOUR = ("mnist", "usps", "svhn", "syn")
_SYN = "syn/train/DIGIT/* and syn/val/DIGIT/*"


def _four(folder: Path, names: Sequence[str]) -> Arrays:
    """Return three domains as torchvision keeps them; the files of MNIST are the first four."""
    idx = [read_idx(folder / name) for name in names[:4]]
    x = [
        np.broadcast_to(images[:, None], (len(images), 3, *images.shape[1:])) for images in idx[::2]
    ]
    parts = {
        "mnist": [x[0], idx[1], x[1], idx[3]],
        "usps": [array for name in names[4:6] for array in _read_usps(folder / name)],
        "svhn": read_matlab(folder, names[6:]),
    }
    return {
        f"{domain}_{part}": array
        for domain, arrays in parts.items()
        for part, array in zip(PARTS, arrays, strict=True)
    }


def _read_usps(path: Path) -> tuple[Array, Array]:
    """Return images and labels of a LIBSVM file, with pixels rounded down as torchvision does."""
    from sklearn.datasets import load_svmlight_file

    with path.open("rb") as file, bz2.open(file) as stream:
        raw = read_at_most(stream, path, ARRAYS_BYTES)
    x, y = load_svmlight_file(io.BytesIO(raw), n_features=256, dtype=np.float32, zero_based=False)
    pixels = (x.toarray().reshape(-1, 1, 16, 16) + 1) / 2 * 255
    return np.broadcast_to(pixels.astype(np.uint8), (len(y), 3, 16, 16)), y.astype(np.int64) - 1


_IDX = [
    f"MNIST/raw/{part}-{kind}-ubyte"
    for part in ("train", "t10k")
    for kind in ("images-idx3", "labels-idx1")
]
_OTHERS = ["usps.bz2", "usps.t.bz2", "train_32x32.mat", "test_32x32.mat"]
DIGITS4 = register_source(
    Files(
        "digits4",
        "torchvision's MNIST, USPS and SVHN in one folder, and SYN from https://github.com/WenkeHuang/FCCL",
        [[*_IDX, *_OTHERS], [*(f"{name}.gz" for name in _IDX), *_OTHERS]],
        _four,
        10,
    )
)


@register_dataset("digits4")
def digits4(
    root: Path,
    *,
    path: Place = None,
    seed: Seed = 0,
    domains: ChosenDomains = None,
    samples: SampleCap = None,
    size: Size = 32,
) -> DataSet:
    """Return FCCL+'s four domains in its code's folders: MNIST, USPS, SVHN with the official test parts, and SYN."""
    chosen = select_domains("digits4", FOUR, domains)
    arrays = DIGITS4.load(root, path)
    made = _dataset(arrays, [d for d in chosen if d != "syn"], seed, samples, size)
    if "syn" in chosen:
        store = image_sets.Store(DIGITS4.place(root, path) / "syn")
        made.append(_syn(store, root, size, seed, samples))
    return assemble("digits4", made, DIGITS)


def _syn(store: image_sets.Store, root: Path, size: int, seed: int, samples: int | None) -> Domain:
    """Return the domain whose images lie in folders of digits, below train and val."""
    items = []
    for item in store.items() if store.where.exists() else ():
        part, label, *rest = (*item.path.split("/"), "", "")
        if (
            part not in ("train", "val")
            or label not in DIGITS
            or len(rest) != 3
            or not item.is_image
        ):
            raise DataError(
                f"data set digits4: {store.where / item.path} is not one of {_SYN}; take it away"
            )
        items.append(item)
    if not items:
        raise DataError(
            f"data set digits4: {store.where} lacks the domain syn. It comes from {DIGITS4.where}; put it there, laid "
            f"out as {_SYN}, or choose other domains with data.domains"
        )
    y = np.array([DIGITS.index(item.path.split("/")[1]) for item in items], dtype=np.int64)
    test = np.array([item.path.startswith("val/") for item in items])
    table = image_sets.Table(items, y, np.zeros_like(y), test)
    spec = image_sets.ImageSet("digits4", ("syn",), DIGITS, size, seed, samples)
    (domain,) = image_sets.image_dataset(spec, table, store, root).domains
    return replace(domain, origin="rendered")


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
    file = Path(at_home(path))
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
    photos = [
        images.decode(jpeg[start:end], f"{path}: image {row}", 32)
        for row, (start, end) in enumerate(pairwise(stored["offset"].tolist()))
    ]
    x = np.stack(photos).transpose(0, 3, 1, 2)
    return {"train_x": x[~test], "train_y": y[~test], "test_x": x[test], "test_y": y[test]}


FILES["fc100"] = replace(CIFAR100_FILES, where="CIFAR-100 (`flray data get cifar-100`)")


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
    return dict(zip(PARTS, (x[:, None], y, test_x[:, None], test_y), strict=True))


_register("fashion-mnist", partial(_idx_pairs, turned=False))
_register("svhn", lambda *of: dict(zip(PARTS, read_matlab(*of), strict=True)))
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
