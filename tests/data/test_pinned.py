"""What a seed means is fixed: another result of the same seed would make every earlier run impossible to repeat.

Where such a change is meant, the new values belong here, and a word about it into the commit.
"""

import hashlib
from pathlib import Path
from typing import Any

import pytest

from flray.config.sections import Shift
from flray.data import DataSet, FederatedData, federate, load_dataset
from tests.data.layouts import LAYOUTS
from tests.data.pictures import found
from tests.data.test_splits import OPTIONS, numbered

PARTITIONS = {
    "dirichlet": "1f7e09684ebfbdb1",
    "dirichlet-equal": "fd2329f05aacaa10",
    "domain-dirichlet": "7ea2266d95efd52b",
    "domains": "736c625f70172cf7",
    "flower": "0f848a228124e1dd",
    "iid": "7de57d77acec59da",
    "pachinko": "b638972125f3905f",
    "pathological": "341bc12052bdd2ca",
    "quantity": "3acae5ffcb03ecd4",
}


def federated(
    partition: str = "domains", options: dict[str, Any] | None = None, **settings: Any
) -> FederatedData:
    return federate(numbered([(1000, 200), (950, 200)]), partition, options or {}, 3, **settings)


@pytest.mark.parametrize("name", sorted(OPTIONS))
def test_partitions(name: str) -> None:
    assert federated(name, OPTIONS[name]).partition_fingerprint[:16] == PARTITIONS[name]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"split": "official"}, "efc0283bd26e933c"),
        ({"split": (0.6, 0.2, 0.2)}, "b17e653b7ea8e89e"),
        ({"split": "fedbn-digits"}, "50fc31219ed9119e"),
        ({"split": "fedbn-office"}, "4923a9a4d57bb9fc"),
        ({"split": "fedbn-domainnet"}, "180849377386cd93"),
        ({"val_fraction": 0.2}, "28e7760e62d068cc"),
        ({"shift": Shift(long_tail=10)}, "837ce16c4d972d24"),
        ({"shift": Shift(sizes={"d0": 30})}, "a6d8fb029a104f0f"),
        ({"shift": Shift(ratio=0.5)}, "d67d22ca6fb83bd7"),
        ({"shift": Shift(noise=0.3)}, "68b1f36486a3deab"),
    ],
)
def test_splits_and_shifts(settings: dict[str, Any], expected: str) -> None:
    assert federated(**settings).partition_fingerprint[:16] == expected


def labels(dataset: DataSet) -> str:
    """Return a digest of class names and labels; pixels may differ by the release of a font or JPEG library."""
    held = [(d.name, d.train_y.tolist(), d.test_y.tolist()) for d in dataset.domains]
    return hashlib.sha256(repr((dataset.classes, held)).encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    ("name", "options", "expected"),
    [
        ("digits-sklearn", {}, "6bd685cec7e125d9"),
        ("digits-sklearn", {"samples": 20}, "21a7d4f41c2d4193"),
        ("glyphs", {}, "c7c7ffe37076d484"),
    ],
)
def test_generated_sets(name: str, options: dict[str, Any], expected: str) -> None:
    assert labels(load_dataset(name, {**options, "seed": 3})) == expected


PACS = [
    [1, 3, 5, 7, 9, 11, 13],
    [15, 16, 19, 20, 22, 25, 27],
    [29, 30, 32, 34, 37, 39, 40],
    [42, 44, 47, 49, 50, 52, 55],
]
CAMELYON17 = [
    [4, 11, 12, 17],
    [21, 28, 34, 37],
    [45, 49, 52, 56],
    [61, 62, 66, 75],
    [86, 89, 94, 99],
]


@pytest.mark.parametrize(("name", "expected"), [("pacs", PACS), ("camelyon17", CAMELYON17)])
def test_which_images_of_a_folder_are_for_test(
    name: str, expected: list[list[int]], tmp_path: Path
) -> None:
    options = LAYOUTS[name](tmp_path).options
    dataset = load_dataset(name, {**options, "seed": 3}, tmp_path)
    assert [sorted(found(domain, "test")) for domain in dataset.domains] == expected
