"""Files of the same bytes are told from files of the same size; images come in order however many threads decode."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from flray.data.image_files import Folder, Zip, decoded, open_store, same_content
from flray.errors import DataError
from tests.data.pictures import picture, pixels_of, zipped


def test_only_the_same_bytes_share_a_number(tmp_path: Path) -> None:
    home = tmp_path / "x"
    home.mkdir()
    long = bytes(5000)
    for name, content in (("a", b"one"), ("b", b"two"), ("c", b"one"), ("d", b"other"), ("e", long + b"1"),
                          ("f", long + b"2"), ("g", long + b"1"), ("h", b""), ("i", b"")):
        (home / f"{name}.png").write_bytes(content)
    for store in (Folder(home), Zip(zipped(home, tmp_path / "x.zip"))):
        assert same_content(store, store.items()).tolist() == [0, 1, 0, 3, 4, 5, 4, 7, 7]


def test_files_of_different_size_are_not_read(tmp_path: Path) -> None:
    for n in range(3):
        (tmp_path / f"{n}.png").write_bytes(bytes(n))
    store = Folder(tmp_path)
    items = store.items()
    for path in tmp_path.iterdir():
        path.unlink()
    assert same_content(store, items).tolist() == [0, 1, 2]


def test_many_images_come_in_order(tmp_path: Path) -> None:
    count = 1500  # more than are decoded ahead
    for n in range(count):
        picture(tmp_path / f"{n:04d}.png", n % 300)
    store = Folder(tmp_path)
    for n, image in enumerate(decoded(store, store.items(), 8)):
        assert np.array_equal(image, pixels_of(n % 300))
    assert n == count - 1


def test_the_first_damaged_file_is_named(tmp_path: Path) -> None:
    for n in range(40):
        picture(tmp_path / f"{n:02d}.png", n)
    for n in (31, 7, 12):
        (tmp_path / f"{n:02d}.png").write_bytes(b"junk")
    store = Folder(tmp_path)
    with pytest.raises(DataError, match=r"/07\.png: cannot be decoded"):
        list(decoded(store, store.items(), 8))


def test_a_place_is_a_folder_an_archive_or_nothing(tmp_path: Path) -> None:
    assert open_store(tmp_path / "nowhere") is None
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / ".hidden").touch()
    assert open_store(tmp_path / "empty") is None
    (tmp_path / "odd.tar").write_bytes(b"not a zip archive")
    with pytest.raises(DataError, match=r"odd\.tar: not a readable zip archive"):
        open_store(tmp_path / "odd.tar")
