"""Files of the same bytes are told from files of the same size; images come in order however many threads decode."""

import contextlib
import os
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps

from flray.data.datasets.class_folders import VLCS
from flray.data.loading import load_dataset
from flray.data.sources.image_sets import (
    Store,
    check_proportions,
    content_groups,
    decode_images,
    open_store,
)
from tests.data.pictures import picture, pixels_of, trees, zipped
from tests.messages import refused


def test_only_the_same_bytes_share_a_number(tmp_path: Path) -> None:
    home = tmp_path / "x"
    home.mkdir()
    long = bytes(5000)
    contents = (b"one", b"two", b"one", b"other", long + b"1", long + b"2", long + b"1", b"", b"")
    for name, content in zip("abcdefghi", contents, strict=True):
        (home / f"{name}.png").write_bytes(content)
    for store in (Store(home), Store(zipped(home, tmp_path / "x.zip"))):
        assert content_groups(store, store.items()).tolist() == [0, 1, 0, 3, 4, 5, 4, 7, 7]


def test_files_of_different_size_are_not_read(tmp_path: Path) -> None:
    for n in range(3):
        (tmp_path / f"{n}.png").write_bytes(bytes(n))
    store = Store(tmp_path)
    items = store.items()
    for path in tmp_path.iterdir():
        path.unlink()
    assert content_groups(store, items).tolist() == [0, 1, 2]


def test_many_images_come_in_order(tmp_path: Path) -> None:
    count = 1100  # more than are decoded ahead
    for n in range(count):
        picture(tmp_path / f"{n:04d}.png", n % 300)
    store = Store(tmp_path)
    for n, image in enumerate(decode_images(store, store.items(), 8)):
        assert np.array_equal(image, pixels_of(n % 300))
    assert n == count - 1
    for n in (31, 7, 12):
        (tmp_path / f"{n:04d}.png").write_bytes(b"junk")
    refused(list, decode_images(store, store.items(), 8))


def test_a_place_is_a_folder_an_archive_or_nothing(tmp_path: Path) -> None:
    assert open_store(tmp_path / "nowhere") is None
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / ".hidden").touch()
    assert open_store(tmp_path / "empty") is None
    (tmp_path / "odd.tar").write_bytes(b"not a zip archive")
    refused(open_store, tmp_path / "odd.tar")


def only(folder: Path, mode: str = "RGB", size: int = 8) -> NDArray[np.uint8]:
    """Return the one image of a folder, with warnings as errors."""
    store = Store(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        (image,) = decode_images(store, store.items(), size, mode)
    return image


RAMP = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4
COLOURS = pixels_of(3)
FLAT = np.full((8, 8, 3), [200, 60, 30], np.uint8)


def in_palette(path: Path, **saved: object) -> None:
    Image.fromarray(COLOURS).quantize(16).save(path, **saved)


def transparent(path: Path) -> None:
    Image.fromarray(np.dstack([COLOURS, RAMP])).save(path)


def deep(path: Path) -> None:
    Image.fromarray(RAMP.astype(np.uint16) * 256 + 99).save(path)


@pytest.mark.parametrize(
    ("write", "suffix", "expected"),
    [
        (lambda p: Image.fromarray(RAMP).save(p), "png", RAMP),
        (lambda p: Image.fromarray(np.dstack([RAMP, RAMP.T])).save(p), "png", RAMP),  # with alpha
        (lambda p: Image.fromarray(RAMP > 100).save(p), "png", 255 * (RAMP > 100)),  # one bit
        (deep, "png", RAMP),
        (lambda p: Image.fromarray(COLOURS).save(p), "PNG", COLOURS),
        (lambda p: Image.fromarray(COLOURS).save(p, lossless=True), "webp", COLOURS),
        (lambda p: Image.fromarray(COLOURS).save(p), "bmp", COLOURS),
        (in_palette, "gif", COLOURS),
        (lambda p: in_palette(p, transparency=bytes([0, 128, 255, 255])), "png", COLOURS),
        (transparent, "png", COLOURS),
        # damaged notes beside an image do not matter
        (lambda p: Image.fromarray(COLOURS).save(p, exif=b"Exif\0\0nonsense"), "png", COLOURS),
        # a JPEG in four printing inks
        (lambda p: Image.fromarray(FLAT).convert("CMYK").save(p, quality=95), "JPG", FLAT),
    ],
)
def test_every_kind_of_pixels_is_read_as_it_looks(
    write: Callable[[Path], None], suffix: str, expected: NDArray[np.uint8], tmp_path: Path
) -> None:
    write(tmp_path / f"x.{suffix}")
    wanted = expected if expected.ndim == 3 else np.repeat(expected[..., None], 3, 2)
    assert np.abs(only(tmp_path).astype(int) - wanted).max() <= (6 if suffix == "JPG" else 0)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_photographs_stand_upright(orientation: int, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    Image.fromarray(COLOURS).save(tmp_path / "x.png", exif=exif)
    with Image.open(tmp_path / "x.png") as image:
        upright = np.asarray(ImageOps.exif_transpose(image))
    assert np.array_equal(upright, COLOURS) is (orientation == 1)
    assert np.array_equal(only(tmp_path), upright)


@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_a_mask_lies_on_its_image_as_it_stands(orientation: int, tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    Image.fromarray(COLOURS[:6]).save(tmp_path / "a.png", exif=exif)  # 8 wide, 6 high
    size = (8, 6) if orientation < 5 else (6, 8)
    for name, other in ("b", size), ("c", (3 * size[0], 3 * size[1])), ("d", size[::-1]):
        Image.new("L", other).save(tmp_path / f"{name}.png")
    store = Store(tmp_path)
    image, same, larger, other = sorted(store.items(), key=lambda item: item.path)
    check_proportions(store, [image, image], [same, larger])
    refused(check_proportions, store, [image], [other])


def test_masks_are_grey(tmp_path: Path) -> None:
    Image.fromarray(RAMP).convert("RGB").save(tmp_path / "x.png")
    assert np.array_equal(only(tmp_path, "L"), RAMP)
    deep(tmp_path / "x.png")
    assert np.array_equal(only(tmp_path, "L"), RAMP)
    in_palette(tmp_path / "x.png")
    refused(only, tmp_path, "L")


def test_names_may_be_of_any_letters_and_bytes(tmp_path: Path) -> None:
    place = tmp_path / "bücher 日本"
    trees(place, dict.fromkeys(VLCS.domains, dict.fromkeys(VLCS.classes, 2)))
    expected = load_dataset("vlcs", {"path": str(place), "size": 8}, tmp_path)
    (place / "sun" / "dog" / "001.png").rename(place / "sun" / "dog" / "1 ünï 犬.PNG")
    cars = place / "sun" / "car"
    with contextlib.suppress(OSError):  # of a file system that takes UTF-8 alone
        (cars / "001.png").rename(cars / os.fsdecode(b"1\xff.Png"))
    found = load_dataset("vlcs", {"path": str(place), "size": 8}, tmp_path)
    assert found.fingerprint == expected.fingerprint
    (place / "sun" / "dog" / "1 ünï 犬.PNG").write_bytes(b"junk")
    refused(load_dataset, "vlcs", {"path": str(place), "size": 8}, tmp_path)
