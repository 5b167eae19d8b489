"""Small image files in the layouts that data sets have."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image


def pixels_of(number: int, side: int = 8) -> NDArray[np.uint8]:
    """Return an image [side, side, 3] of blocks that no other number has and that JPEG keeps well."""
    colours = np.random.default_rng(number).integers(0, 256, (2, 2, 3)).astype(np.uint8)
    return colours.repeat(side // 2, 0).repeat(side // 2, 1)


def picture(path: Path, number: int, side: int = 8) -> None:
    """Write such an image."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(pixels_of(number, side)).save(path)


def trees(
    root: Path, domains: dict[str, dict[str, int]], suffix: str = ".png", between: str = ""
) -> Path:
    """Write ROOT/domain/class/*, so many images of each class, numbered through all."""
    number = 0
    for domain, classes in domains.items():
        for name, count in classes.items():
            for i in range(count):
                picture(root / domain / between / name / f"{i:03d}{suffix}", number)
                number += 1
    return root


def zipped(folder: Path, archive: Path) -> Path:
    """Write a folder's files into a zip archive, below the folder's name."""
    with zipfile.ZipFile(archive, "w") as packed:
        for path in sorted(folder.rglob("*")):
            packed.write(path, f"{folder.name}/{path.relative_to(folder)}")
    return archive


def found(domain: Any, part: str, numbers: int = 2500) -> dict[int, int]:
    """Return the label of each written image in a part, by its number."""
    known = {pixels_of(n).tobytes(): n for n in range(numbers)}
    return {
        known[np.moveaxis(x, 0, -1).tobytes()]: int(y)
        for x, y in zip(getattr(domain, f"{part}_x"), getattr(domain, f"{part}_y"), strict=True)
    }


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
