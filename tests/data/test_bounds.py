"""Files that nobody should read: endless, huge, lying about their size, or with names that lead out. One line each."""

import gzip
import os
import struct
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from flray.data.datasets.digit_archives import read_idx
from flray.data.loading import load_dataset
from flray.data.sources.archives import read_pickled_arrays
from flray.data.sources.image_sets import Store, decode_images
from tests.data.layouts import LAYOUTS
from tests.data.pictures import picture, pixels_of
from tests.messages import refused


def refused_early(action: Callable[..., object], *arguments: object, most: int = 2**26) -> None:
    """Look that it is refused without a warning and with little memory."""
    tracemalloc.start()
    try:
        with warnings.catch_warnings(action="error"):
            refused(action, *arguments)
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()


def decode(path: Path) -> object:
    store = Store(path)
    return list(decode_images(store, store.items(), 8))


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_only_regular_files_are_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "z.png"
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
    refused_early(decode, tmp_path)
    refused_early(read_pickled_arrays, path)
    refused(Store(path).items)


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "z.png").open("wb") as file:
        file.truncate(2**40)
    refused_early(decode, tmp_path)
    refused_early(read_pickled_arrays, tmp_path / "z.png")


def declare(path: Path, size: int) -> None:
    """Let an archive say that its last member has so many bytes."""
    content = path.read_bytes()
    at = content.rindex(b"PK\1\2")
    path.write_bytes(content[: at + 24] + struct.pack("<I", size) + content[at + 28 :])


@pytest.mark.parametrize(
    ("size", "declared", "method"),
    [
        (3 * 2**20, 3 * 2**30, zipfile.ZIP_DEFLATED),
        (2**27, 1000, zipfile.ZIP_DEFLATED),
        (2**24, 1000, zipfile.ZIP_BZIP2),
        (2**24, 2**24, zipfile.ZIP_DEFLATED),
    ],
)
def test_a_member_is_unpacked_within_bounds(
    size: int, declared: int, method: int, tmp_path: Path
) -> None:
    path = tmp_path / "x.zip"
    with (
        zipfile.ZipFile(path, "w", method) as archive,
        archive.open("z.png", "w", force_zip64=True) as file,
    ):
        for _ in range(0, size, 2**20):
            file.write(bytes(2**20))
    declare(path, declared)
    refused_early(decode, path, most=2**22 if declared < size else 2**26)


def test_nothing_in_an_archive_leads_out_of_it(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(b"secret")
    link = zipfile.ZipInfo("d/link.png")
    link.external_attr = 0o120777 << 16
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(link, b"not the file outside")
        for name in ("../secret.png", "/etc/passwd.png", "a/../../secret.png", "C:\\x.png"):
            archive.writestr(name, b"not the file outside")
    store = Store(path)
    assert {store.read(item.path) for item in store.items()} <= {b"not the file outside"}
    before = set(tmp_path.iterdir())
    refused_early(decode, path)
    assert set(tmp_path.iterdir()) == before


@pytest.mark.parametrize(
    "name", ["a\nb.png", "\x1b[31m.png", "a\u2028b.png", "[red].png", "é 日本 ☃.png", "'\".png"]
)
def test_a_name_with_anything_in_it_makes_one_line(name: str, tmp_path: Path) -> None:
    home = tmp_path / "x"
    home.mkdir()
    (home / name).write_bytes(b"junk")
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as archive:
        archive.writestr(name, b"junk")
    for path in (home, tmp_path / "x.zip"):
        refused_early(decode, path)
    picture(home / name, 1)
    (image,) = decode_images(Store(home), Store(home).items(), 8)
    assert np.array_equal(image, pixels_of(1))


def test_what_comes_out_of_a_compressed_file_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flray.data.datasets.digit_archives.ARRAYS_BYTES", 2**20)
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(bytes(2**26)))
    refused_early(read_idx, path)


def test_a_refused_image_leaves_nothing_behind(tmp_path: Path) -> None:
    home = tmp_path / "archives" / "vlcs"
    LAYOUTS["vlcs"](tmp_path)
    image, root = home / "sun" / "dog" / "001.png", tmp_path / "root" / "cache"
    options = {"path": str(home), "size": 8}
    for known in (False, True):
        before = sorted(root.rglob("*"))
        image.write_bytes(b"junk")
        refused(load_dataset, "vlcs", options, root)
        assert sorted(root.rglob("*")) == before and root.parent.exists() is known
        picture(image, 1)
        load_dataset("vlcs", options, root)
