"""Files that nobody should read: endless, huge, lying about their size, or of another kind. One line each, at once."""

from __future__ import annotations

import gzip
import os
import struct
import tracemalloc
import warnings
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from flray.data.datasets.characters import read_idx
from flray.data.loading import load_dataset
from flray.data.sources import file_stores
from flray.data.sources.download import member
from flray.data.sources.file_stores import (
    Folder,
    Store,
    Zip,
    check_proportions,
    decode_images,
    open_store,
)
from flray.data.sources.safe_unpickle import read_pickled_arrays
from flray.errors import DataError, FlrayError
from tests.data.layouts import LAYOUTS
from tests.data.pictures import picture, pixels_of


def refusal(action: Callable[[], object], most: int = 2**26) -> str:
    """Return the one line that it is refused with, having looked that little memory was used."""
    tracemalloc.start()
    try:
        with warnings.catch_warnings(), pytest.raises(FlrayError) as error:
            warnings.simplefilter("error")
            action()
        assert tracemalloc.get_traced_memory()[1] < most
    finally:
        tracemalloc.stop()
    assert str(error.value).isprintable()
    return str(error.value)


def decode(store: Store) -> object:
    return list(decode_images(store, store.items(), 8))


def a_pipe(path: Path) -> None:
    os.mkfifo(path)


def a_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [a_pipe, a_device])
def test_only_regular_files_are_read(make: Callable[[Path], None], tmp_path: Path) -> None:
    kind = make.__name__.replace("_", " ")
    path = tmp_path / "x" / "z.png"
    path.parent.mkdir()
    make(path)
    line = f"{path}: it is {kind}, and only regular files are read; take it away"
    assert refusal(lambda: decode(Folder(path.parent))) == line
    readers: tuple[Callable[[], object], ...] = (
        lambda: open_store(path),
        lambda: Folder(path.parent).read("z.png"),
        lambda: read_pickled_arrays(path),
        lambda: read_idx(path),
    )
    assert all(f"it is {kind}" in refusal(read) for read in readers)


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "z.png").open("wb") as file:
        file.truncate(2**40)
    assert refusal(lambda: decode(Folder(tmp_path))) == (
        f"{tmp_path}/z.png: it has 1 TiB, and at most 256 MiB are read of one file; take it away "
        "or make it smaller"
    )
    assert "at most 4 GiB are read" in refusal(lambda: read_pickled_arrays(tmp_path / "z.png"))


def declare(path: Path, size: int) -> None:
    """Let an archive say that its last member has so many bytes."""
    content = path.read_bytes()
    at = content.rindex(b"PK\1\2")
    path.write_bytes(content[: at + 24] + struct.pack("<I", size) + content[at + 28 :])


@pytest.mark.parametrize(
    ("size", "declared", "method", "said"),
    [
        (3 * 2**20, 3 * 2**30, zipfile.ZIP_DEFLATED, "it has 3 GiB, and at most 256 MiB are read"),
        (2**27, 1000, zipfile.ZIP_DEFLATED, "z.png cannot be read (Bad CRC-32"),
        (2**24, 1000, zipfile.ZIP_BZIP2, "z.png cannot be read (it is neither stored nor deflated"),
        (2**24, 2**24, zipfile.ZIP_DEFLATED, "it is no JPEG, PNG, BMP, GIF or WEBP file"),
    ],
)
def test_a_member_is_unpacked_within_bounds(
    size: int, declared: int, method: int, said: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.zip"
    with (
        zipfile.ZipFile(path, "w", method) as archive,
        archive.open("z.png", "w", force_zip64=True) as file,
    ):
        for _ in range(0, size, 2**20):
            file.write(bytes(2**20))
    declare(path, declared)
    assert said in refusal(lambda: decode(Zip(path)), 2**26 if declared == size else 2**22)


def test_a_member_that_declares_more_than_it_holds_is_no_image(tmp_path: Path) -> None:
    picture(tmp_path / "z.png", 0)
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(tmp_path / "z.png", "z.png")
    for declared in (2**20, 2**31, 2**32 - 2):
        declare(path, declared)
        assert "z.png" in refusal(lambda: decode(Zip(path)))


def test_an_archive_that_declares_too_much_is_refused_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for n in range(5):
            archive.writestr(f"{n}.txt", bytes(1000))
    monkeypatch.setattr(file_stores, "FILES", 4)
    assert "it declares 5 files of 4.883 KiB together, and at most 4 of 4 TiB" in refusal(
        lambda: Zip(path)
    )
    monkeypatch.setattr(file_stores, "FILES", 5)
    assert len(Zip(path).items()) == 5
    monkeypatch.setattr(file_stores, "ARCHIVE_BYTES", 4999)
    refusal(lambda: Zip(path))


def test_nothing_in_an_archive_leads_out_of_it(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(b"secret")
    link = zipfile.ZipInfo("d/link.png")
    link.external_attr = 0o120777 << 16
    path = tmp_path / "x.zip"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(link, "../secret.png")
    assert "d/link.png: it is of another kind, and only regular files are read" in refusal(
        lambda: Zip(path).items()
    )
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("../secret.png", "/etc/passwd.png", "a/../../secret.png", "C:\\x.png"):
            archive.writestr(name, b"not the file outside")
    store = Zip(path)
    assert {store.read(item.path) for item in store.items()} <= {b"not the file outside"}
    before = set(tmp_path.iterdir())
    assert "cannot be decoded" in refusal(lambda: decode(store))
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
    for store in (Folder(home), Zip(tmp_path / "x.zip")):
        assert "cannot be decoded" in refusal(lambda store=store: decode(store))  # type: ignore[misc]
    picture(home / name, 1)
    (image,) = decode_images(Folder(home), Folder(home).items(), 8)
    assert np.array_equal(image, pixels_of(1))


def png(path: Path, width: int, height: int) -> None:
    """Write a PNG of so many black pixels; few bytes are enough."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content))
            + kind
            + content
            + struct.pack(">I", zlib.crc32(kind + content))
        )

    path.write_bytes(
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))
        + chunk(b"IDAT", zlib.compress(b""))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    ("side", "found"), [(8193, "8193x8193 pixels"), (60000, "more than 67,108,864 pixels")]
)
def test_an_image_of_too_many_pixels_is_refused_by_its_head(
    side: int, found: str, tmp_path: Path
) -> None:
    png(tmp_path / "z.png", side, side)
    store = Folder(tmp_path)
    line = (
        f"{tmp_path}/z.png: it has {found}, and at most 67,108,864 are decoded of one image; make "
        "it smaller, or take it away"
    )
    assert refusal(lambda: decode(store)) == line
    assert refusal(lambda: check_proportions(store, store.items(), store.items())) == line


def test_large_images_are_decoded_one_at_a_time_up_to_the_bound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_stores, "_LARGE", 0)
    monkeypatch.setattr(file_stores, "PIXELS", 64)
    for n in range(20):
        picture(tmp_path / f"{n:02d}.png", n)
    for n, image in enumerate(decode_images(Folder(tmp_path), Folder(tmp_path).items(), 8)):
        assert np.array_equal(image, pixels_of(n))
    Image.new("RGB", (65, 1)).save(tmp_path / "b.png")
    assert "b.png: it has 65x1 pixels, and at most 64" in refusal(lambda: decode(Folder(tmp_path)))


def test_what_comes_out_of_a_compressed_file_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flray.data.datasets.characters.ARRAYS_BYTES", 2**20)
    monkeypatch.setattr("flray.data.sources.download.ARRAYS_BYTES", 10)
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(bytes(2**26)))
    assert (
        refusal(lambda: read_idx(path))
        == f"{path}: more than 1 MiB come out of it, which is what is read of one file at most; "
        "take it away or make it smaller"
    )
    path.write_bytes(gzip.compress(b"\0\0\x08\xff"))
    assert "another kind of file" in refusal(lambda: read_idx(path))
    path.write_bytes(gzip.compress(b"\0\0\x08\x01")[:-9])
    assert "cannot be decompressed" in refusal(lambda: read_idx(path))
    with zipfile.ZipFile(tmp_path / "x.whl", "w") as archive:
        archive.writestr("data", bytes(11))
    assert "x.whl/data: it has 11 bytes, and at most 10 bytes" in refusal(
        lambda: member(tmp_path / "x.whl", "data")
    )


def test_a_refused_image_leaves_nothing_behind(tmp_path: Path) -> None:
    home = tmp_path / "archives" / "vlcs"
    LAYOUTS["vlcs"](tmp_path)
    image, root = home / "sun" / "dog" / "001.png", tmp_path / "root" / "cache"
    options = {"path": str(home), "size": 8}
    for known in (False, True):
        before = sorted(root.rglob("*"))
        image.write_bytes(b"junk")
        with pytest.raises(DataError, match="cannot be decoded"):
            load_dataset("vlcs", options, root)
        assert sorted(root.rglob("*")) == before and root.parent.exists() is known
        picture(image, 1)
        load_dataset("vlcs", options, root)
