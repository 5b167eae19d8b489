"""Archives that come divided and in an order keep both: FedBN's digits and its lists of pictures."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flray.data import federate
from flray.data.datasets.digit_archives import DOMAINS
from flray.data.loading import load_dataset
from flray.data.types import DataSet
from tests.data.pictures import STYLES, found, net, office
from tests.data.writers import FEDBN_SHAPES
from tests.messages import refused

SIZES = {"MNIST": 8000, "SVHN": 9000, "USPS": 7438, "SynthDigits": 7440, "MNIST_M": 7441}


def numbered(start: int, size: int, shape: tuple[int, ...]) -> Any:
    """Return images whose first pixel values are their number in base 256, and labels."""
    x = np.zeros((size, *shape), np.uint8)
    numbers = np.arange(start, start + size)
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
        x, y = numbered(0, size, (8, 8, 3))
        test = numbered(100_000, 50, (8, 8, 3))
        for i in range(10):
            rows = slice(int(743.8 * i), int(743.8 * (i + 1)))
            (folder / f"partitions/train_part{i}.pkl").write_bytes(pickle.dumps((x[rows], y[rows])))
        for file, content in (
            ("train_stratified", (x, y)),
            ("test_stratified", test),
            ("test", test),
        ):
            (folder / f"{file}.pkl").write_bytes(pickle.dumps(content))
    return root


def split(dataset: DataSet, name: Any, **more: Any) -> list[list[list[int]]]:
    """Return the numbers of each client's training, validation and test samples."""
    data = federate(dataset, "domains", {}, 3, split=name, **more)
    return [[numbers_of(data.x[part]) for part in (c.train, c.val, c.test)] for c in data.clients]


@pytest.mark.parametrize("percent", [0.02, 0.1, 0.3])
def test_fedbn_trains_on_the_first_tenths(percent: float, digits: Path) -> None:
    """FedBN's DigitsDataset: so many of ten parts, below a tenth a share of the first (data_utils.py)."""
    from flray.config.sections import Shift

    dataset = load_dataset("digits5", {"size": 8}, digits)
    whole = round(10 * percent)
    wanted = int(743.8 * whole) if whole else int(743 * percent * 10)
    for train, val, test in split(dataset, "fedbn-digits", shift=Shift(ratio=10 * percent)):
        assert train == list(range(wanted)) and not val
        assert sorted(test) == list(range(100_000, 100_050))


def test_lgmix_validates_on_the_last_quarter(digits: Path) -> None:
    """HeteroPFL's get_datasets.py: floor(n / 4) from the end, its own test part."""
    dataset = load_dataset("digits5", {"size": 8, "training": "whole"}, digits)
    for size, (train, val, test) in zip(
        SIZES.values(), split(dataset, "lgmix-digits"), strict=True
    ):
        assert train == list(range(size - size // 4)) and val == list(range(size - size // 4, size))
        assert len(test) == 50


def test_whole_parts_have_two_names(digits: Path, tmp_path: Path) -> None:
    for name in SIZES:
        (tmp_path / name).mkdir()
        for part in ("train", "test"):
            source = digits / "archives" / "digits5" / name / f"{part}_stratified.pkl"
            (tmp_path / name / f"{part}.pkl").symlink_to(source)
    options = {"size": 8, "training": "whole"}
    one, other = (
        load_dataset("digits5", {**options, **more}, digits)
        for more in ({}, {"path": str(tmp_path)})
    )
    assert one.fingerprint == other.fingerprint
    assert set(SIZES) == set(FEDBN_SHAPES) and len(DOMAINS) == len(SIZES)
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
    home = office(tmp_path / "archives" / "office-caltech10", count=10)
    drawn = load_dataset("office-caltech10", {"size": 8}, tmp_path)
    names = [domain.name for domain in drawn.domains]
    kept = {"train": range(2, 10), "test": range(2)}
    lists(home, names, "office_caltech_10", drawn.classes, kept)
    listed = load_dataset("office-caltech10", {"size": 8}, tmp_path)
    for place, domain in enumerate(listed.domains):
        train, test = (found(domain, part) for part in ("train", "test"))
        first = 100 * place
        order = [first + 10 * c + i for i in range(2, 10) for c in range(10)][::-1]
        assert list(train) == order and set(test) == {
            n for n in range(first, first + 100) if n % 10 < 2
        }
    data = federate(listed, "domains", {}, 3, split="fedbn-office")
    per_domain = len(data.clients[0].train), len(data.clients[0].val), len(data.clients[0].test)
    assert per_domain == (40, 32, 20)
    train = federate(listed, "domains", {}, 4, split="fedbn-office").clients[1].train
    assert np.array_equal(train, np.arange(80, 120)), "the first of the list, whatever the seed"


def test_fedbns_lists_of_domainnet_come_before_the_official_ones(tmp_path: Path) -> None:
    home = net(tmp_path / "archives")
    options = {"size": 8}
    official = load_dataset("domainnet", options, tmp_path)
    lists(home, STYLES, "DomainNet", official.classes, {"train": (0, 1), "test": (2,)})
    fedbn = load_dataset("domainnet", options, tmp_path)
    assert not official.ordered and fedbn.ordered
    assert {n % 3 for d in official.domains for n in found(d, "test")} == {0}
    assert {n % 3 for d in fedbn.domains for n in found(d, "test")} == {2}


@pytest.mark.parametrize(
    "content",
    [
        (np.array(["office_caltech_10/amazon/mug/404.png"]), np.array(["mug"])),
        (np.array(["../../../amazon/../../etc/passwd"]), np.array(["mug"])),
        (np.array(["office_caltech_10/amazon/mug/000.png"] * 2), np.array(["mug"] * 2)),
        (np.array(["office_caltech_10/amazon/mug/000.png"]), np.array(["mug", "bike"])),
        [1, 2],
        {"paths": 3},
        3.5,
        b"no pickle",
    ],
    ids=["absent", "outside", "twice", "unequal", "short", "dict", "number", "damaged"],
)
def test_a_bad_list_is_named_and_leads_nowhere(content: Any, tmp_path: Path) -> None:
    home = office(tmp_path / "archives" / "office-caltech10", count=2)
    raw = content if isinstance(content, bytes) else pickle.dumps(content)
    for domain in ("amazon", "caltech", "dslr", "webcam"):
        for part in ("train", "test"):
            (home / f"{domain}_{part}.pkl").write_bytes(raw)
    refused(load_dataset, "office-caltech10", {"size": 8}, tmp_path)


def test_syn_lies_in_folders_of_digits(tmp_path: Path) -> None:
    from tests.data.layouts import digits4

    digits4(tmp_path)
    home = tmp_path / "archives" / "digits4"
    three = {"domains": ["usps", "mnist"]}
    (home / "syn" / "val" / "cat").mkdir()
    (home / "syn" / "train" / "7" / "1.png").rename(home / "syn" / "val" / "cat" / "1.png")
    refused(load_dataset, "digits4", {}, tmp_path)
    (home / "syn").rename(home / "elsewhere")
    refused(load_dataset, "digits4", {}, tmp_path)
    assert [d.name for d in load_dataset("digits4", three, tmp_path).domains] == ["mnist", "usps"]
