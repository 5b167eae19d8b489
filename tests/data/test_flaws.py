"""Sets of image files, written here in their exact layouts: their other forms, and one clear line for each flaw."""

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
from tests.data.pictures import (
    WNIDS,
    edit,
    eye,
    found,
    net,
    office,
    picture,
    retina,
    tiny,
    tissue,
    zipped,
)
from tests.messages import refused

Damage = Callable[[Path], object]
WRITTEN: dict[str, Callable[[Path], Path]] = {
    "office-caltech10": office,
    "domainnet": net,
    "tiny-imagenet": tiny,
    "camelyon17": tissue,
    "fundus": retina,
}


def load(name: str, root: Path, path: Path, **options: Any) -> DataSet:
    size = 16 if name == "fundus" else 8
    return load_dataset(name, {"path": str(path), "size": size, **options}, root)


def edits(file: str, old: str, new: str) -> Damage:
    return lambda path: edit(path / file, old, new)


def takes_away(file: str) -> Damage:
    return lambda path: (
        shutil.rmtree(path / file) if (path / file).is_dir() else (path / file).unlink()
    )


def puts(file: str, content: bytes) -> Damage:
    return lambda path: (path / file).write_bytes(content)


def draws(file: str, side: int = 8) -> Damage:
    return lambda path: picture(path / file, 300, side)


def masks(pixels: NDArray[np.uint8]) -> Damage:
    return lambda path: Image.fromarray(pixels).save(path / "Domain2/test/ROIs/mask/g008.png")


def empties(path: Path) -> None:
    shutil.rmtree(path / "dslr")
    (path / "dslr").mkdir()


def cuts_short(path: Path) -> None:
    (path / MUG).write_bytes((path / MUG).read_bytes()[:60])


def cuts_off(path: Path) -> None:
    lines = (path / "metadata.csv").read_text().splitlines(keepends=True)
    (path / "metadata.csv").write_text("".join(lines[:81]))


MUG, EPS = "dslr/mug/001.png", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\nshowpage\n%%EOF\n"
FIFTH = f"val_194.png\t{WNIDS[5]}\t0\t0\t7\t7\n"
TIGER, VAL, ROW = "tiger/001.png 6", "val/val_annotations.txt", "3,000,4,3,96,1"
LIST, TABLE = "real_train.txt", "metadata.csv"
EYE, PATCH = "Domain2/test/ROIs", "patch_patient_002_node_4_x_1_y_32.png"
FLAWS: dict[str, list[Damage]] = {
    "office-caltech10": [
        cuts_short,
        puts(MUG, EPS),
        puts("dslr/mug/notes.txt", b"x"),
        draws("dslr/lost.png"),
        draws("other/mug/lost.png"),
        draws("dslr/keybord/0.png"),
        takes_away("dslr/mug"),
        empties,
    ],
    "domainnet": [
        edits(LIST, TIGER, "tiger/009.png 6"),
        edits(LIST, TIGER, "tiger/000.png 6"),
        edits(LIST, TIGER, "tiger"),
        takes_away("sketch/whale"),
    ],
    "tiny-imagenet": [
        edits(VAL, WNIDS[5], "n99999999"),
        edits(VAL, "val_194.png", "val_999.png"),
        edits(VAL, FIFTH, ""),
        takes_away(VAL),
        takes_away(f"train/{WNIDS[7]}"),
        takes_away("val"),
    ],
    "camelyon17": [
        edits(TABLE, f"{ROW},0,0", "3,000,4,3,96,2,0,0"),
        edits(TABLE, f"{ROW},0,0", f"{ROW},0,5"),
        edits(TABLE, ROW, "3,../x,4,3,96,1"),
        edits(TABLE, ROW, "3,000,4,2,64,1"),
        edits(TABLE, "tumor", "label"),
        cuts_off,
        takes_away(f"patches/patient_002_node_4/{PATCH}"),
    ],
    "fundus": [
        takes_away(f"{EYE}/mask/g008.png"),
        takes_away(f"{EYE}/image/g008.png"),
        masks(np.full((16, 16), 255, np.uint8)),
        masks(np.full((16, 16), 120, np.uint8)),
        draws(f"{EYE}/mask/g008.png", 16),
        masks(eye(8)[:12]),
        draws("Domain2/test/lost.png"),
        takes_away("Domain6"),
    ],
}
CASES = [(name, damage) for name, rows in FLAWS.items() for damage in rows]


@pytest.mark.parametrize(("name", "damage"), CASES)
def test_each_flaw_has_one_line_that_names_the_file(
    name: str, damage: Damage, tmp_path: Path
) -> None:
    path = WRITTEN[name](tmp_path)
    damage(path)
    packed = [zipped(path, tmp_path / "o.zip")] if name in ("office-caltech10", "fundus") else []
    for source in (path, *packed):
        refused(load, name, tmp_path, source)
        assert not [*(tmp_path / name).glob("*/manifest.json"), *(tmp_path / name).glob(".*")]


def test_domainnet_without_lists_is_split_by_the_seed(tmp_path: Path) -> None:
    path = net(tmp_path, lists=False)
    first, again, other = (load("domainnet", tmp_path, path, seed=seed) for seed in (0, 0, 1))
    assert first.fingerprint == again.fingerprint != other.fingerprint
    for k, domain in enumerate(first.domains):
        train, test = found(domain, "train"), found(domain, "test")
        assert not set(train) & set(test)
        assert train | test == {33 * k + 3 * c + i: c for c in range(10) for i in range(3)}
        assert sorted(test.values()) == list(range(10))
