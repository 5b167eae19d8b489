from typing import Literal

import pytest
import torch

from flray.data.augment import augmented, augmented_with, random_crop, random_flip, random_resized_crop
from flray.errors import ConfigError
from flray.keys import torch_generator


def test_a_crop_is_a_shift_of_at_most_the_padding() -> None:
    images = torch.arange(1, 1 + 200 * 2 * 36, dtype=torch.float64).reshape(200, 2, 6, 6)
    cropped = random_crop(images, torch_generator(0, "augmentation"), padding=2)
    assert cropped.shape == images.shape
    assert cropped.dtype == torch.float64
    seen = set()
    for before, after in zip(images, cropped, strict=True):
        padded = torch.nn.functional.pad(before, (2, 2, 2, 2))
        shifts = [(r, c) for r in range(5) for c in range(5) if torch.equal(padded[:, r:r + 6, c:c + 6], after)]
        assert len(shifts) == 1
        seen.add(shifts[0])
    assert len(seen) == 25


def test_no_padding_changes_nothing() -> None:
    images = torch.randint(256, (5, 3, 8, 8), dtype=torch.uint8)
    assert torch.equal(random_crop(images, torch_generator(0, "augmentation"), padding=0), images)


def test_half_of_the_images_are_mirrored() -> None:
    images = torch.arange(400 * 4).reshape(400, 1, 1, 4)
    flipped = random_flip(images, torch_generator(0, "augmentation"))
    same = (flipped == images).all(dim=(1, 2, 3))
    mirrored = (flipped == images.flip(-1)).all(dim=(1, 2, 3))
    assert (same ^ mirrored).all()
    assert 160 < int(mirrored.sum()) < 240


def test_the_generator_decides_and_the_batch_is_left_alone() -> None:
    images = torch.randn(20, 3, 8, 8)
    before = images.clone()
    for augment in (random_crop, random_flip):
        first, again, other = (augment(images, torch_generator(0, "augmentation", round=r)) for r in (1, 1, 2))
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
    assert torch.equal(images, before)


def test_a_resized_crop_shows_a_part_of_the_image_at_its_size() -> None:
    """On a ramp in x and y, bilinear parts stay ramps: their slope is the side shown, at least sqrt(0.2 * 3/4)."""
    ramp = torch.arange(16, dtype=torch.float64)
    images = torch.stack([ramp.expand(16, 16), ramp.expand(16, 16).T]).expand(300, 2, 16, 16)
    cropped = random_resized_crop(images, torch_generator(0, "augmentation"))
    assert cropped.shape == images.shape and cropped.dtype == torch.float64
    across, down = cropped[:, 0, 8, 4:12].diff(dim=1), cropped[:, 1, 4:12, 8].diff(dim=1)
    for slopes in (across, down):
        assert float((slopes - slopes[:, :1]).abs().max()) < 1e-9
    shown = across[:, 0] * down[:, 0]
    assert 0.2 - 1e-9 <= float(shown.min()) < 0.25 and 0.9 < float(shown.max()) <= 1 + 1e-9
    ratios = across[:, 0] / down[:, 0]
    assert float(ratios.min()) >= 3 / 4 - 1e-9 and float(ratios.max()) <= 4 / 3 + 1e-9
    assert float(cropped.min()) >= 0 and float(cropped.max()) <= 15


def test_what_is_no_image_is_left_alone() -> None:
    features = torch.rand(5, 3)
    assert augmented(features, "resized", torch_generator(0, "augmentation")) is features
    images = torch.rand(5, 1, 8, 8)
    assert augmented(images, "none", torch_generator(0, "augmentation")) is images
    for how in ("flip", "crop", "resized"):
        assert not torch.equal(augmented(images, how, torch_generator(0, "augmentation")), images)


@pytest.mark.parametrize("how", ["flip", "crop", "resized"])
def test_masks_go_where_their_pixels_go(how: Literal["flip", "crop", "resized"]) -> None:
    square = torch.zeros(40, 2, 24, 24)
    square[:, 0, 8:14, 5:12] = 1
    square[:, 1, 9:11, 6:8] = 1
    moved, masks = augmented_with(square, square.to(torch.uint8), how, torch_generator(0, "augmentation"))
    assert masks.dtype == torch.uint8 and set(masks.unique().tolist()) == {0, 1}
    assert torch.equal(masks, (moved >= 0.5).to(torch.uint8))
    assert not torch.equal(masks, square.to(torch.uint8))
    alone, labels = augmented_with(square, torch.arange(40), how, torch_generator(0, "augmentation"))
    assert torch.equal(alone, moved) and torch.equal(labels, torch.arange(40))


def test_masks_refuse_what_does_more_than_move_pixels() -> None:
    with pytest.raises(ConfigError, match=r"experiment.local.augment: found strong; .*only what moves pixels"):
        augmented_with(torch.zeros(1, 3, 8, 8), torch.zeros(1, 1, 8, 8), "strong",  # type: ignore[arg-type]
                       torch_generator(0, "augmentation"))
