"""Tiny-ImageNet, written here in both layouts."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flray.data.loading import load_dataset
from flray.data.types import DataSet
from flray.errors import FlrayError
from tests.data.pictures import edit, found, picture, zipped

WNIDS = tuple(f"n{10 * i + 3:08d}" for i in range(200))


def tiny(root: Path, folded: bool, images: str = "images") -> Path:
    """Write two training images 2c, 2c + 1 and the validation image 400 + c of each class c."""
    path = root / "tiny-imagenet-200"
    lines = []
    for label, wnid in enumerate(WNIDS):
        for i in range(2):
            picture(path / "train" / wnid / images / f"{wnid}_{i}.png", 2 * label + i)
        (path / "train" / wnid / f"{wnid}_boxes.txt").write_text("boxes")
        name = f"val_{199 - label}.png"  # not in the order of the classes
        picture(path / "val" / (wnid if folded else "images") / name, 400 + label)
        lines.append(f"{name}\t{wnid}\t0\t0\t7\t7\n")
    picture(path / "test" / "images" / "test_0.png", 700)
    if not folded:
        (path / "val" / "val_annotations.txt").write_text("".join(lines))
    return path


def load_tiny(root: Path, path: Path, **options: Any) -> DataSet:
    return load_dataset("tiny-imagenet", {"path": str(path), "size": 8, **options}, root)


@pytest.mark.parametrize(("folded", "images"), [(False, "images"), (True, "images"), (True, "")])
def test_both_layouts_of_tiny_imagenet_are_the_same_data(
    folded: bool, images: str, tmp_path: Path
) -> None:
    path = tiny(tmp_path, folded, images)
    for source in (path, zipped(path, tmp_path / "tiny.zip")):
        dataset = load_tiny(tmp_path, source)
        (domain,) = dataset.domains
        assert dataset.classes == WNIDS
        assert found(domain, "train") == {n: n // 2 for n in range(400)}
        assert found(domain, "test") == {400 + c: c for c in range(200)}


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (
            lambda p: edit(p / "val/val_annotations.txt", WNIDS[5], "n99999999"),
            ["val_annotations.txt, line 6", "n99999999"],
        ),
        (
            lambda p: edit(p / "val/val_annotations.txt", "val_194.png", "val_999.png"),
            ["line 6", "val_999.png is not there"],
        ),
        (
            lambda p: edit(
                p / "val/val_annotations.txt", f"val_194.png\t{WNIDS[5]}\t0\t0\t7\t7\n", ""
            ),
            ["val_194.png", "not in val_annotations.txt"],
        ),
        (
            lambda p: (p / "val/val_annotations.txt").unlink(),
            ["val/images/val_0.png", "none of the classes"],
        ),
        (
            lambda p: shutil.rmtree(p / "train" / WNIDS[7]),
            ["199 folders of classes", "expected 200"],
        ),
        (lambda p: shutil.rmtree(p / "val"), [f"class {WNIDS[0]} has no images in the val folder"]),
        (
            lambda p: (p / "train" / WNIDS[3] / "images" / f"{WNIDS[3]}_1.png").write_bytes(
                b"\x89PNG"
            ),
            [f"{WNIDS[3]}_1.png", "cannot be decoded"],
        ),
        (lambda p: picture(p / "train" / "lost.png", 3), ["train/lost.png"]),
    ],
)
def test_tiny_imagenets_flaws_are_named(
    damage: Callable[[Path], None], words: list[str], tmp_path: Path
) -> None:
    path = tiny(tmp_path, folded=False)
    damage(path)
    with pytest.raises(FlrayError) as error:
        load_tiny(tmp_path, path)
    assert "\n" not in str(error.value)
    assert all(word in str(error.value) for word in words), str(error.value)
