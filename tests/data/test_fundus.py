"""The six fundus sources, written here in the exact layout."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from flray.data.loading import load_dataset
from flray.data.types import DataSet
from flray.errors import FlrayError
from tests.data.pictures import picture, pixels_of


def eye(number: int, white: bool = True) -> NDArray[np.uint8]:
    """Return a mask 16x16: a disc of 8x8 at (4 + number % 4, 4) and in it a cup of 4x4."""
    mask = np.zeros((16, 16), np.uint8)
    top = 4 + number % 4
    mask[top : top + 8, 4:12] = 128
    mask[top + 2 : top + 6, 6:10] = 255
    return 255 - mask if white else mask


def retina(root: Path, white: bool = True) -> Path:
    path = root / "Fundus"
    number = 0
    for k in range(1, 7):
        for part, count in (("train", 3), ("test", 2)):
            for _ in range(count):
                home = path / f"Domain{k}" / part / "ROIs"
                picture(home / "image" / f"g{number:03d}.png", number, 16)
                (home / "mask").mkdir(exist_ok=True)
                Image.fromarray(eye(number, white)).save(home / "mask" / f"g{number:03d}.png")
                number += 1
    return path


def load_retina(root: Path, path: Path, **options: Any) -> DataSet:
    return load_dataset("fundus", {"path": str(path), "size": 16, **options}, root)


@pytest.mark.parametrize("white", [True, False])
def test_fundus_images_have_their_own_masks(white: bool, tmp_path: Path) -> None:
    dataset = load_retina(tmp_path, retina(tmp_path, white))
    assert (dataset.task, dataset.classes) == ("segmentation", ("disc", "cup"))
    assert [(d.name, len(d.train_x), len(d.test_x)) for d in dataset.domains] == [
        (f"domain{k}", 3, 2) for k in range(1, 7)
    ]
    known = {pixels_of(n, 16).tobytes(): n for n in range(30)}
    seen = []
    for domain in dataset.domains:
        for part in ("train", "test"):
            x, y = getattr(domain, f"{part}_x"), getattr(domain, f"{part}_y")
            assert (y.dtype, y.shape) == (np.uint8, (len(x), 2, 16, 16))
            for image, masks in zip(x, y, strict=True):
                number = known[np.moveaxis(image, 0, -1).tobytes()]
                seen.append((number, part))
                assert np.array_equal(masks[0], eye(number, False) >= 128)
                assert np.array_equal(masks[1], eye(number, False) == 255)
    assert sorted(seen) == [(n, "train" if n % 5 < 3 else "test") for n in range(30)]


def test_masks_are_resized_without_new_values_and_stay_with_their_image(tmp_path: Path) -> None:
    dataset = load_retina(tmp_path, retina(tmp_path), size=32, samples=2, domains=["domain3"])
    (domain,) = dataset.domains
    assert (domain.train_y.shape, domain.test_y.shape) == ((2, 2, 32, 32), (2, 2, 32, 32))
    known = {
        np.asarray(
            Image.fromarray(pixels_of(n, 16)).resize((32, 32), Image.Resampling.BILINEAR)
        ).tobytes(): n
        for n in range(30)
    }
    for image, masks in zip(domain.train_x, domain.train_y, strict=True):
        number = known[np.moveaxis(image, 0, -1).tobytes()]
        assert np.array_equal(masks[0], (eye(number, False) >= 128).repeat(2, 0).repeat(2, 1))
        assert np.array_equal(masks[1], (eye(number, False) == 255).repeat(2, 0).repeat(2, 1))


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (
            lambda p: (p / "Domain2/test/ROIs/mask/g008.png").unlink(),
            ["Domain2/test/ROIs/image/g008.png", "has no mask"],
        ),
        (
            lambda p: (p / "Domain2/test/ROIs/image/g008.png").unlink(),
            ["Domain2/test/ROIs/mask/g008.png", "has no image"],
        ),
        (
            lambda p: Image.fromarray(np.full((16, 16), 255, np.uint8)).save(
                p / "Domain2/test/ROIs/mask/g008.png"
            ),
            ["mask/g008.png", "shows no disc"],
        ),
        (
            lambda p: Image.fromarray(np.full((16, 16), 120, np.uint8)).save(
                p / "Domain2/test/ROIs/mask/g008.png"
            ),
            ["mask/g008.png", "grey value 120 in the corners"],
        ),
        (
            lambda p: picture(p / "Domain2/test/ROIs/mask/g008.png", 8, 16),
            ["mask/g008.png", "coloured, and a mask"],
        ),
        (
            lambda p: Image.fromarray(eye(8)[:12]).save(p / "Domain2/test/ROIs/mask/g008.png"),
            ["mask/g008.png", "the mask is 16x12 and its image 16x16"],
        ),
        (
            lambda p: picture(p / "Domain2/test/lost.png", 0),
            ["Domain2/test/lost.png", "out of place"],
        ),
        (lambda p: shutil.rmtree(p / "Domain6"), ["domain6 has no train images"]),
        (lambda p: shutil.rmtree(p / "Domain6/test"), ["domain6 has no test images"]),
    ],
)
def test_fundus_flaws_are_named(
    damage: Callable[[Path], None], words: list[str], tmp_path: Path
) -> None:
    path = retina(tmp_path)
    damage(path)
    with pytest.raises(FlrayError) as error:
        load_retina(tmp_path, path)
    assert "\n" not in str(error.value)
    assert all(word in str(error.value) for word in words), str(error.value)
