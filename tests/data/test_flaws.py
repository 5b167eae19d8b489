"""What is wrong with files is one line: damaged sets, files that nobody should read, and hostile pickles."""

import gzip
import os
import pickle
import shutil
import struct
import tracemalloc
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from flray.data.datasets.small_images import read_idx
from flray.data.loading import load_dataset
from flray.data.sources.archives import read_pickled_arrays
from flray.data.sources.image_sets import Store, decode_images
from flray.data.types import DataSet
from flray.errors import FlrayError
from tests.data import pictures
from tests.data.layouts import LAYOUTS
from tests.helpers import cases
from tests.messages import refused

Damage = Callable[[Path], object]
WRITTEN = {"office-caltech10": pictures.office, "tiny-imagenet": pictures.tiny}
WRITTEN |= {"domainnet": pictures.net, "camelyon17": pictures.tissue, "fundus": pictures.retina}


def load(name: str, root: Path, path: Path, **options: Any) -> DataSet:
    size = 16 if name == "fundus" else 8
    return load_dataset(name, {"path": str(path), "size": size, **options}, root)


def edits(file: str, old: str, new: str) -> Damage:
    return lambda path: pictures.edit(path / file, old, new)


def takes_away(file: str) -> Damage:
    return lambda path: (
        shutil.rmtree(path / file) if (path / file).is_dir() else (path / file).unlink()
    )


def puts(file: str, content: bytes) -> Damage:
    return lambda path: (path / file).write_bytes(content)


def draws(file: str, side: int = 8) -> Damage:
    return lambda path: pictures.picture(path / file, 300, side)


def masks(pixels: NDArray[np.uint8]) -> Damage:
    return lambda path: Image.fromarray(pixels).save(path / "Domain2/test/ROIs/mask/g008.png")


def empties(path: Path) -> None:
    shutil.rmtree(path / "dslr")
    (path / "dslr").mkdir()


def cuts_off(path: Path) -> None:
    lines = (path / TABLE).read_text().splitlines(keepends=True)
    (path / TABLE).write_text("".join(lines[:81]))


def cuts(file: str, size: int) -> Damage:
    return lambda path: (path / file).write_bytes((path / file).read_bytes()[:size])


MUG, EPS = "dslr/mug/001.png", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\nshowpage\n%%EOF\n"
FIFTH = f"val_194.png\t{pictures.WNIDS[5]}\t0\t0\t7\t7\n"
TIGER, VAL, ROW = "tiger/001.png 6", "val/val_annotations.txt", "3,000,4,3,96,1"
LIST, TABLE = "real_train.txt", "metadata.csv"
EYE, PATCH = "Domain2/test/ROIs", "patch_patient_002_node_4_x_1_y_32.png"
FLAWS: dict[str, list[Damage]] = {
    "office-caltech10": [
        *(cuts(MUG, 60), puts(MUG, EPS), puts("dslr/mug/notes.txt", b"x")),
        *map(draws, ("dslr/lost.png", "other/mug/lost.png", "dslr/keybord/0.png")),
        *(takes_away("dslr/mug"), empties),
    ],
    "domainnet": [
        *(edits(LIST, TIGER, new) for new in ("tiger/009.png 6", "tiger/000.png 6", "tiger")),
        takes_away("sketch/whale"),
    ],
    "tiny-imagenet": [
        *(edits(VAL, pictures.WNIDS[5], "n99999999"), edits(VAL, "val_194.png", "val_999.png")),
        edits(VAL, FIFTH, ""),
        *map(takes_away, (VAL, f"train/{pictures.WNIDS[7]}", "val")),
    ],
    "camelyon17": [
        *(edits(TABLE, f"{ROW},0,0", new) for new in ("3,000,4,3,96,2,0,0", f"{ROW},0,5")),
        *(edits(TABLE, ROW, new) for new in ("3,../x,4,3,96,1", "3,000,4,2,64,1")),
        *(edits(TABLE, "tumor", "label"), cuts_off),
        takes_away(f"patches/patient_002_node_4/{PATCH}"),
    ],
    "fundus": [
        *(takes_away(f"{EYE}/{kind}/g008.png") for kind in ("mask", "image")),
        *(masks(np.full((16, 16), grey, np.uint8)) for grey in (255, 120)),
        *(draws(f"{EYE}/mask/g008.png", 16), masks(pictures.eye(8)[:12])),
        *(draws("Domain2/test/lost.png"), takes_away("Domain6")),
    ],
}
CASES = [(name, damage) for name, rows in FLAWS.items() for damage in rows]


@pytest.mark.parametrize(("name", "damage"), CASES)
def test_each_flaw_has_a_line_naming_the_file(name: str, damage: Damage, tmp_path: Path) -> None:
    path = WRITTEN[name](tmp_path)
    damage(path)
    sources = [path]
    if name in ("office-caltech10", "fundus"):
        sources.append(pictures.zipped(path, tmp_path / "o.zip"))
    for source in sources:
        refused(load, name, tmp_path, source)
        assert not [*(tmp_path / name).glob("*/manifest.json"), *(tmp_path / name).glob(".*/*")]


def test_domainnet_without_lists_is_split_by_the_seed(tmp_path: Path) -> None:
    path = pictures.net(tmp_path, lists=False)
    first, again, other = (load("domainnet", tmp_path, path, seed=seed) for seed in (0, 0, 1))
    assert first.fingerprint == again.fingerprint != other.fingerprint
    for k, domain in enumerate(first.domains):
        train, test = pictures.found(domain, "train"), pictures.found(domain, "test")
        assert not set(train) & set(test)
        assert train | test == {33 * k + 3 * c + i: c for c in range(10) for i in range(3)}
        assert sorted(test.values()) == list(range(10))


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


@pytest.mark.parametrize("kind", ["pipe", "device", "large"])
def test_only_regular_files_of_a_size_that_can_be_are_read(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "z.png"
    if kind == "large":
        path.touch()
        os.truncate(path, 2**40)
    else:
        os.mkfifo(path) if kind == "pipe" else path.symlink_to("/dev/zero")
        refused(Store(path).items)
    refused_early(decode, tmp_path)
    refused_early(read_pickled_arrays, path)


@pytest.mark.parametrize("name", ["folder", "cifar-10", "camelyon17", "table", "cifar10-jpeg"])
def test_the_home_folder_of_nobody_is_a_path_like_any_other(name: str) -> None:
    label = {"label": "y"} if name == "table" else {}
    path = "~nobody-of-this-name/x.csv"
    refused(load_dataset, name, {"path": path, **label}, Path("cache"))


def declare(path: Path, size: int) -> None:
    """Let an archive say that its last member has so many bytes."""
    content = path.read_bytes()
    at = content.rindex(b"PK\1\2")
    path.write_bytes(content[: at + 24] + struct.pack("<I", size) + content[at + 28 :])


@pytest.mark.parametrize(
    ("size", "declared"), [(3 * 2**20, 3 * 2**30), (2**27, 1000), (2**24, 1000), (2**24, 2**24)]
)
def test_unpacking_has_its_bounds(size: int, declared: int, tmp_path: Path) -> None:
    path, bzip2 = tmp_path / "x.zip", (size, declared) == (2**24, 1000)
    method = zipfile.ZIP_BZIP2 if bzip2 else zipfile.ZIP_DEFLATED
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("z.png", bytes(size))
    declare(path, declared)
    refused_early(decode, path, most=2**22 if declared < size else 2**26)


def test_nothing_in_an_archive_leads_out_of_it(tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(b"secret")
    link = zipfile.ZipInfo("d/link.png")
    link.external_attr = 0o120777 << 16
    path = tmp_path / "x.zip"
    names = (link, "../secret.png", "/etc/passwd.png", "a/../../secret.png", "C:\\x.png")
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
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
    pictures.picture(home / name, 1)
    (image,) = decode_images(Store(home), Store(home).items(), 8)
    assert np.array_equal(image, pictures.pixels_of(1))


def test_what_comes_out_of_a_file_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flray.data.datasets.small_images.ARRAYS_BYTES", 2**20)
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress(bytes(2**26)))
    refused_early(read_idx, path)


def test_a_refused_image_leaves_nothing_behind(tmp_path: Path) -> None:
    home = tmp_path / "archives" / "vlcs"
    LAYOUTS["vlcs"](tmp_path)
    image, root = home / "sun" / "dog" / "001.png", tmp_path / "root" / "cache"
    options = {"path": str(home), "size": 8}
    for _ in range(2):
        before = sorted(root.glob("*/*/*"))
        image.write_bytes(b"junk")
        refused(load_dataset, "vlcs", options, root)
        assert sorted(root.glob("*/*/*")) == before
        pictures.picture(image, 1)
        load_dataset("vlcs", options, root)


NUMERIC = np._core.numeric  # type: ignore[attr-defined]


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def unread(tmp_path: Path, *contents: bytes) -> None:
    for content in contents:
        (tmp_path / "x.pkl").write_bytes(content)
        refused(read_pickled_arrays, tmp_path / "x.pkl")


@cases(
    "reference",
    """os system, builtins getattr, numpy fromfile, numpy._core.multiarray frombuffer,
    _codecs decode, numpy ndarray.tofile""",
)
def test_references_are_refused_before_they_are_called(reference: str, tmp_path: Path) -> None:
    """With every opcode that can call something: REDUCE, INST, OBJ, NEWOBJ, and the protocol-4 reference."""
    module, name = reference.split()
    call = f"c{module}\n{name}\n".encode()
    argument = text(f"touch {tmp_path}/pwned")
    unread(
        tmp_path,
        *(call + b"(" + argument + b"tR.", b"(" + argument + f"i{module}\n{name}\n.".encode()),
        *(b"(" + call + argument + b"o.", b"\x80\x02" + call + b"(" + argument + b"t\x81."),
        *(b"\x80\x04" + text(module) + text(name) + b"\x93(" + argument + b"tR.", call + b"."),
    )
    assert not (tmp_path / "pwned").exists()


def test_what_is_allowed_cannot_be_given_attributes(tmp_path: Path) -> None:
    """BUILD with a state or with slots would set attributes of a function for the whole process."""
    function = NUMERIC._frombuffer
    before = (function.__defaults__, dict(function.__dict__))
    arrays = ("numpy\ndtype", "numpy._core.multiarray\nscalar")
    for reference in ("numpy._core.numeric\n_frombuffer", "_codecs\nencode", *arrays):
        for name in ("__defaults__", "anything"):
            head = b"\x80\x02" + f"c{reference}\n".encode()
            ends = b"}" + text(name) + b"K\x01sb.", b"N}" + text(name) + b"K\x01s\x86b."
            unread(tmp_path, *(head + end for end in ends))
    assert before == (function.__defaults__, dict(function.__dict__))


def nested(depth: int) -> list[Any]:
    return [nested(depth - 1)] if depth else []


OWN: list[Any] = []
OWN.append(OWN)
RECORD = np.zeros(2, dtype=[("a", np.int64), ("b", object)])
HUGE = b"\x8a\x08" + struct.pack("<q", 2**60)
MIXED = {"x": (np.array(["a", b"b"], dtype=object),)}
NO_DATA = (
    *(b"", b"not a pickle", b"\x80\x09.", b"P1\n."),
    *(pickle.dumps(other, protocol=2) for other in (Path("x"), {"data": {1, 2}})),
    # a reference alone, and within a list and a dictionary
    *(b"cnumpy\nndarray\n.", b"(cnumpy\nndarray\nl."),
    b"(K\x01cnumpy._core.numeric\n_frombuffer\nd.",
    *(pickle.dumps(other) for other in (OWN, nested(50), RECORD, MIXED)),
    b"\x80\x02cnumpy\nndarray\n(" + HUGE + b"\x85tR.",  # more memory than there is
)


def test_what_is_no_data_ends_in_one_line(tmp_path: Path) -> None:
    unread(tmp_path, *NO_DATA)


def test_any_cut_or_flipped_byte_gives_data_or_one_line(tmp_path: Path) -> None:
    content = {"data": np.arange(6, dtype=np.uint8), "labels": [1, 2], "n": np.float64(2)}
    whole = pickle.dumps(content, protocol=2)
    path = tmp_path / "x.pkl"
    generator = np.random.default_rng(0)
    outcomes = set()
    for place in range(len(whole)):
        drawn = bytes([generator.integers(256)])
        for changed in (whole[:place], whole[:place] + drawn + whole[place + 1 :]):
            path.write_bytes(changed)
            try:
                read_pickled_arrays(path)
                outcomes.add("data")
            except FlrayError as error:
                assert str(path) in str(error)
                outcomes.add("refused")
    assert outcomes == {"data", "refused"}


def test_plain_values_come_back(tmp_path: Path) -> None:
    values, path = [np.float32(1.5), None, True, 2.5, "t", b"b"], tmp_path / "x.pkl"
    content = {"a": values, 3: (np.array(["x", "yz"]), np.zeros((0, 2)))}
    for protocol in range(6):
        path.write_bytes(pickle.dumps(content, protocol=protocol))
        found = read_pickled_arrays(path)
        assert found["a"] == values
        assert found[3][0].tolist() == ["x", "yz"] and found[3][1].shape == (0, 2)
    path.unlink()
    refused(read_pickled_arrays, path)
