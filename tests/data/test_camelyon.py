"""Camelyon17, written here in the exact layout."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flray.data.federated import federate
from flray.data.loading import load_dataset
from flray.data.types import DataSet
from flray.errors import FlrayError
from tests.data.pictures import edit, found, picture


def tissue(root: Path, per_slide: int = 10) -> Path:
    """Write patches of two slides (patients) at each centre, every second one with tumour, numbered through."""
    home = root / "camelyon17_v1.0"
    home.mkdir(parents=True)
    number = 0
    with (home / "metadata.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(
            ["", "patient", "node", "x_coord", "y_coord", "tumor", "slide", "center", "split"]
        )
        for slide in range(10):
            for i in range(per_slide):
                table.writerow([number, f"{slide:03d}", 4, i, 32 * i, i % 2, slide, slide // 2, 0])
                who = f"patient_{slide:03d}_node_4"
                picture(home / "patches" / who / f"patch_{who}_x_{i}_y_{32 * i}.png", number)
                number += 1
    return home


def load_tissue(root: Path, path: Path, **options: Any) -> DataSet:
    return load_dataset("camelyon17", {"path": str(path), "size": 8, **options}, root)


def test_camelyons_centres_are_its_clients(tmp_path: Path) -> None:
    dataset = load_tissue(tmp_path, tissue(tmp_path))
    assert (dataset.task, dataset.classes) == ("binary", ("normal", "tumour"))
    assert [d.name for d in dataset.domains] == [f"centre{k}" for k in range(5)]
    for k, domain in enumerate(dataset.domains):
        train, test = found(domain, "train"), found(domain, "test")
        assert not set(train) & set(test)
        assert train | test == {n: n % 2 for n in range(20 * k, 20 * k + 20)}
        assert sorted(test.values()) == [0, 0, 1, 1]
    data = federate(dataset, "domains", {}, 0)
    assert [c.name for c in data.clients] == [f"centre{k}" for k in range(5)]
    other = load_tissue(tmp_path, tmp_path, seed=1)
    assert other.fingerprint != dataset.fingerprint == load_tissue(tmp_path, tmp_path).fingerprint


def test_by_slide_no_patient_is_in_both_parts(tmp_path: Path) -> None:
    dataset = load_tissue(tmp_path, tissue(tmp_path), by="slide", test=0.5)
    for domain in dataset.domains:
        slides = [{n // 10 for n in found(domain, part)} for part in ("train", "test")]
        assert len(slides[0]) == len(slides[1]) == 1
        assert slides[0] != slides[1]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (
            lambda p: edit(p / "metadata.csv", "3,000,4,3,96,1,0,0,0", "3,000,4,3,96,2,0,0,0"),
            ["metadata.csv, line 5", "'2'"],
        ),
        (
            lambda p: edit(p / "metadata.csv", "3,000,4,3,96,1,0,0,0", "3,000,4,3,96,1,0,5,0"),
            ["line 5", "center '5'"],
        ),
        (
            lambda p: edit(p / "metadata.csv", "3,000,4,3,96,1", "3,../x,4,3,96,1"),
            ["line 5", "no number"],
        ),
        (
            lambda p: edit(p / "metadata.csv", "3,000,4,3,96,1", "3,000,4,2,64,1"),
            ["line 5", "_x_2_y_64.png is there twice"],
        ),
        (lambda p: edit(p / "metadata.csv", "tumor", "label"), ["no column tumor"]),
        (
            lambda p: edit(p / "metadata.csv", "3,000,4,3,96,1", "3,000,4,3,96," + "1" * 200_000),
            ["field larger than"],
        ),
        (
            lambda p: edit(
                p / "metadata.csv", (p / "metadata.csv").read_text().split("\n", 81)[81], ""
            ),
            ["centre4 has 0 patches"],
        ),
        (
            lambda p: (
                p / "patches/patient_002_node_4/patch_patient_002_node_4_x_1_y_32.png"
            ).unlink(),
            ["patch_patient_002_node_4_x_1_y_32.png", "No such file"],
        ),
    ],
)
def test_camelyons_flaws_are_named(
    damage: Callable[[Path], None], words: list[str], tmp_path: Path
) -> None:
    path = tissue(tmp_path)
    damage(path)
    with pytest.raises(FlrayError) as error:
        load_tissue(tmp_path, path)
    assert "\n" not in str(error.value)
    assert all(word in str(error.value) for word in words), str(error.value)
