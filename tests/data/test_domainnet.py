"""DomainNet, written here in the exact layout."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flray.data.datasets.domainnet import TEN
from flray.data.loading import load_dataset
from flray.data.types import DataSet
from flray.errors import FlrayError
from tests.data.pictures import edit, found, trees

STYLES = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")


def net(root: Path, lists: bool, classes: tuple[str, ...] = (*TEN, "aircraft_carrier")) -> Path:
    """Write three pictures of each class of each domain, numbered through; the first of each is the official test."""
    path = trees(root / "domainnet", {style: dict.fromkeys(classes, 3) for style in STYLES})
    order = sorted(classes)
    for style in STYLES if lists else ():
        for part, kept in (("test", (0,)), ("train", (1, 2))):
            (path / f"{style}_{part}.txt").write_text(
                "".join(
                    f"{style}/{c}/{i:03d}.png {order.index(c)}\n" for c in classes for i in kept
                )
            )
    return path


def load_net(root: Path, path: Path, **options: Any) -> DataSet:
    return load_dataset("domainnet", {"path": str(path), "size": 8, **options}, root)


def test_domainnet_takes_fedbns_ten_with_the_official_split(tmp_path: Path) -> None:
    dataset = load_net(tmp_path, net(tmp_path, lists=True))
    assert dataset.classes == (
        "bird",
        "feather",
        "headphones",
        "ice_cream",
        "teapot",
        "tiger",
        "whale",
        "windmill",
        "wine_glass",
        "zebra",
    )
    assert [d.name for d in dataset.domains] == list(STYLES)
    for k, domain in enumerate(dataset.domains):
        assert found(domain, "test") == {33 * k + 3 * c: c for c in range(10)}
        assert found(domain, "train") == {33 * k + 3 * c + i: c for c in range(10) for i in (1, 2)}


def test_domainnet_without_lists_is_split_by_the_seed(tmp_path: Path) -> None:
    path = net(tmp_path, lists=False)
    first, again, other = (load_net(tmp_path, path, seed=seed) for seed in (0, 0, 1))
    assert first.fingerprint == again.fingerprint != other.fingerprint
    for k, domain in enumerate(first.domains):
        train, test = found(domain, "train"), found(domain, "test")
        assert not set(train) & set(test)
        assert train | test == {33 * k + 3 * c + i: c for c in range(10) for i in range(3)}
        assert sorted(test.values()) == list(range(10))


def test_all_of_domainnet_is_every_folder_in_order(tmp_path: Path) -> None:
    path = net(tmp_path, lists=True)
    dataset = load_net(tmp_path, path, classes="all", incomplete=True)
    assert dataset.classes == ("aircraft_carrier", *TEN)
    assert found(dataset.domains[0], "test") == {30: 0} | {3 * c: c + 1 for c in range(10)}
    with pytest.raises(FlrayError, match=r"11 folders of classes in .*expected 345"):
        load_net(tmp_path, path, classes="all")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (
            lambda p: edit(p / "real_train.txt", "tiger/001.png 6", "tiger/001.png 5"),
            ["real_train.txt, line 11", "label 5 for the class tiger", "6"],
        ),
        (
            lambda p: edit(p / "real_train.txt", "tiger/001.png 6", "tiger/009.png 6"),
            ["line 11", "real/tiger/009.png"],
        ),
        (
            lambda p: edit(p / "real_train.txt", "tiger/001.png 6", "tiger/000.png 6"),
            ["real_test.txt, line 6", "tiger/000.png", "twice"],
        ),
        (
            lambda p: edit(p / "real_train.txt", "tiger/001.png 6", "tiger"),
            ["line 11", "'real/tiger'"],
        ),
        (lambda p: shutil.rmtree(p / "sketch"), ["domain sketch has no images"]),
        (lambda p: shutil.rmtree(p / "sketch" / "whale"), ["domain sketch", "no images of whale"]),
    ],
)
def test_domainnets_flaws_are_named(
    damage: Callable[[Path], None], words: list[str], tmp_path: Path
) -> None:
    path = net(tmp_path, lists=True)
    damage(path)
    with pytest.raises(FlrayError) as error:
        load_net(tmp_path, path)
    assert "\n" not in str(error.value)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_lists_that_give_two_classes_one_label_are_refused(tmp_path: Path) -> None:
    path = net(tmp_path, lists=True)
    for file in path.glob("*.txt"):
        file.write_text(
            "".join(
                f"{line[:-2]} 6\n" if "/teapot/" in line else f"{line}\n"
                for line in file.read_text().splitlines()
            )
        )
    with pytest.raises(FlrayError, match="label 6 to the classes teapot and tiger"):
        load_net(tmp_path, path)
