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

from flray.data.datasets.small_images import read_idx
from flray.data.loading import load_dataset
from flray.data.sources.image_sets import Store, decode_images
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


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_only_regular_files_are_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "z.png"
    os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
    line = f"{path}: not a regular file, and only those are read; take it away"
    assert refusal(lambda: decode(Store(tmp_path))) == line
    assert refusal(lambda: read_pickled_arrays(path)) == line
    with pytest.raises(FlrayError, match="cannot be read"):
        Store(path).items()


def test_a_large_file_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "z.png").open("wb") as file:
        file.truncate(2**40)
    assert "z.png: it has 1 TiB, and at most 256 MiB" in refusal(lambda: decode(Store(tmp_path)))
    assert "at most 4 GiB are read" in refusal(lambda: read_pickled_arrays(tmp_path / "z.png"))


def declare(path: Path, size: int) -> None:
    """Let an archive say that its last member has so many bytes."""
    content = path.read_bytes()
    at = content.rindex(b"PK\1\2")
    path.write_bytes(content[: at + 24] + struct.pack("<I", size) + content[at + 28 :])


@pytest.mark.parametrize(
    ("size", "declared", "method", "said"),
    [
        (3 * 2**20, 3 * 2**30, zipfile.ZIP_DEFLATED, "z.png: cannot be decoded"),
        (2**27, 1000, zipfile.ZIP_DEFLATED, "z.png: cannot be read (Bad CRC-32"),
        (
            2**24,
            1000,
            zipfile.ZIP_BZIP2,
            "z.png: cannot be read (it is neither stored nor deflated",
        ),
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
    assert said in refusal(lambda: decode(Store(path)), 2**22 if declared < size else 2**26)


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
    for store in (Store(home), Store(tmp_path / "x.zip")):
        assert "cannot be decoded" in refusal(lambda store=store: decode(store))  # type: ignore[misc]
    picture(home / name, 1)
    (image,) = decode_images(Store(home), Store(home).items(), 8)
    assert np.array_equal(image, pixels_of(1))


def test_what_comes_out_of_a_compressed_file_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flray.data.datasets.small_images.ARRAYS_BYTES", 2**20)
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(bytes(2**26)))
    assert (
        refusal(lambda: read_idx(path))
        == f"{path}: more than 1 MiB come out of it, which is what is read of one file at most; "
        "take it away or make it smaller"
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
