import torch

from flray.data.augment import random_crop, random_flip
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
