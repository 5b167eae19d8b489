"""Sets of image files, written here in their exact layouts: their other forms, and one clear line for each flaw."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from flray.data.datasets.class_folders import TEN
from flray.data.loading import load_dataset
from flray.data.types import DataSet
from flray.errors import FlrayError
from tests.data.pictures import (
    WNIDS,
    edit,
    eye,
    found,
    net,
    office,
    picture,
    pixels_of,
    retina,
    tiny,
    tissue,
    zipped,
)

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
FLAWS: dict[str, list[tuple[Damage, str]]] = {
    "office-caltech10": [
        (cuts_short, f"{MUG}|cannot be decoded|fetch the file again"),
        (puts(MUG, EPS), f"{MUG}|it is no JPEG"),
        (puts("dslr/mug/notes.txt", b"x"), "dslr/mug/notes.txt|take it away"),
        (draws("dslr/lost.png"), "dslr/lost.png|dslr/CLASS/"),
        (draws("other/mug/lost.png"), "other/mug/lost.png|in no domain's folder"),
        (draws("dslr/keybord/0.png"), "dslr/keybord|did you mean 'keyboard'|data.rename"),
        (takes_away("dslr/mug"), "domain dslr|no images of mug|data.incomplete"),
        (empties, "domain dslr|has no images|data.domains"),
    ],
    "domainnet": [
        (edits(LIST, TIGER, "tiger/009.png 6"), "line 11|real/tiger/009.png"),
        (edits(LIST, TIGER, "tiger/000.png 6"), "line 6|tiger/000.png|twice"),
        (edits(LIST, TIGER, "tiger"), f"{LIST}, line 11|'real/tiger'"),
        (takes_away("sketch/whale"), "domain sketch|no images of whale"),
    ],
    "tiny-imagenet": [
        (edits(VAL, WNIDS[5], "n99999999"), "val_194.png|none of the classes"),
        (edits(VAL, "val_194.png", "val_999.png"), "val_194.png|none of the classes"),
        (edits(VAL, FIFTH, ""), "val_194.png|val_annotations.txt"),
        (takes_away(VAL), "val/images/val_0.png|none of the classes"),
        (takes_away(f"train/{WNIDS[7]}"), "199 folders of classes|expected 200"),
        (takes_away("val"), "no test images"),
    ],
    "camelyon17": [
        (edits(TABLE, f"{ROW},0,0", "3,000,4,3,96,2,0,0"), "metadata.csv, line 5|'tumor': '2'"),
        (edits(TABLE, f"{ROW},0,0", f"{ROW},0,5"), "line 5|'center': '5'"),
        (edits(TABLE, ROW, "3,../x,4,3,96,1"), "line 5|'patient': '../x'"),
        (edits(TABLE, ROW, "3,000,4,2,64,1"), "line 5|no patch twice"),
        (edits(TABLE, "tumor", "label"), "metadata.csv|'tumor'"),
        (cuts_off, "centre4 has no train images"),
        (takes_away(f"patches/patient_002_node_4/{PATCH}"), f"{PATCH}|No such file"),
    ],
    "fundus": [
        (takes_away(f"{EYE}/mask/g008.png"), f"{EYE}/image/g008.png|has no mask"),
        (takes_away(f"{EYE}/image/g008.png"), f"{EYE}/mask/g008.png|has no image"),
        (masks(np.full((16, 16), 255, np.uint8)), "mask/g008.png|shows no disc"),
        (masks(np.full((16, 16), 120, np.uint8)), "mask/g008.png|grey value 120 in the corners"),
        (draws(f"{EYE}/mask/g008.png", 16), "mask/g008.png|coloured, and a mask"),
        (masks(eye(8)[:12]), "mask/g008.png|the mask is 16x12 and its image 16x16"),
        (draws("Domain2/test/lost.png"), "Domain2/test/lost.png|out of place"),
        (takes_away("Domain6"), "domain6 has no train images"),
    ],
}
CASES = [(name, damage, words) for name, rows in FLAWS.items() for damage, words in rows]


@pytest.mark.parametrize(("name", "damage", "words"), CASES, ids=[f"{n}: {w}" for n, _, w in CASES])
def test_each_flaw_has_one_line_that_names_the_file(
    name: str, damage: Damage, words: str, tmp_path: Path
) -> None:
    path = WRITTEN[name](tmp_path)
    damage(path)
    packed = [zipped(path, tmp_path / "o.zip")] if name in ("office-caltech10", "fundus") else []
    for source in (path, *packed):
        with pytest.raises(FlrayError) as error:
            load(name, tmp_path, source)
        message = str(error.value)
        assert "\n" not in message
        assert all(word in message for word in (str(source), *words.split("|"))), message
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


def test_all_of_domainnet_is_every_folder_in_order(tmp_path: Path) -> None:
    path = net(tmp_path)
    dataset = load("domainnet", tmp_path, path, classes="all", incomplete=True)
    assert dataset.classes == ("aircraft_carrier", *TEN)
    assert found(dataset.domains[0], "test") == {30: 0} | {3 * c: c + 1 for c in range(10)}
    with pytest.raises(FlrayError, match=r"11 folders of classes in .*expected 345"):
        load("domainnet", tmp_path, path, classes="all")


def test_by_slide_no_patient_of_camelyon_is_in_both_parts(tmp_path: Path) -> None:
    home = tissue(tmp_path)
    assert load("camelyon17", tmp_path, home).task == "binary"
    for domain in load("camelyon17", tmp_path, home, by="slide", test=0.5).domains:
        slides = [{n // 10 for n in found(domain, part)} for part in ("train", "test")]
        assert len(slides[0]) == len(slides[1]) == 1
        assert slides[0] != slides[1]


@pytest.mark.parametrize("white", [True, False])
def test_masks_are_resized_without_new_values_and_stay_with_their_image(
    white: bool, tmp_path: Path
) -> None:
    dataset = load("fundus", tmp_path, retina(tmp_path, white), size=32)
    assert (dataset.task, dataset.classes) == ("segmentation", ("disc", "cup"))
    known = {}
    for n in range(30):
        image = Image.fromarray(pixels_of(n, 16)).resize((32, 32), Image.Resampling.BILINEAR)
        known[np.asarray(image).tobytes()] = n
    seen = []
    for part in ("train", "test"):
        for domain in dataset.domains:
            x, y = getattr(domain, f"{part}_x"), getattr(domain, f"{part}_y")
            assert (y.dtype, y.shape) == (np.uint8, (len(x), 2, 32, 32))
            for image, both in zip(x, y, strict=True):
                number = known[np.moveaxis(image, 0, -1).tobytes()]
                seen.append((number, part))
                mask = eye(number, False).repeat(2, 0).repeat(2, 1)
                assert np.array_equal(both, [mask >= 128, mask == 255])
    assert sorted(seen) == [(n, "train" if n % 5 < 3 else "test") for n in range(30)]
