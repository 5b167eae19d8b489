"""DomainNet, Tiny-ImageNet, Camelyon17 and the fundus sources, written here in the exact layout."""

from __future__ import annotations

import csv
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from flray.data.domainnet import TEN
from flray.data.federate import federate, load_dataset
from flray.data.types import DataSet
from flray.errors import FlrayError
from tests.data.pictures import picture, pixels_of, trees, zipped

STYLES = ("clipart", "infograph", "painting", "quickdraw", "real", "sketch")
WNIDS = tuple(f"n{10 * i + 3:08d}" for i in range(200))


def found(domain: Any, part: str, numbers: int = 2500) -> dict[int, int]:
    """Return the label of each written image in a part, by its number."""
    known = {pixels_of(n).tobytes(): n for n in range(numbers)}
    return {known[np.moveaxis(x, 0, -1).tobytes()]: int(y)
            for x, y in zip(getattr(domain, f"{part}_x"), getattr(domain, f"{part}_y"), strict=True)}


def net(root: Path, lists: bool, classes: tuple[str, ...] = (*TEN, "aircraft_carrier")) -> Path:
    """Write three pictures of each class of each domain, numbered through; the first of each is the official test."""
    path = trees(root / "domainnet", {style: dict.fromkeys(classes, 3) for style in STYLES})
    order = sorted(classes)
    for style in STYLES if lists else ():
        for part, kept in (("test", (0,)), ("train", (1, 2))):
            (path / f"{style}_{part}.txt").write_text("".join(
                f"{style}/{c}/{i:03d}.png {order.index(c)}\n" for c in classes for i in kept))
    return path


def load_net(root: Path, path: Path, **options: Any) -> DataSet:
    return load_dataset("domainnet", {"path": str(path), "size": 8, **options}, root)


def test_domainnet_takes_fedbns_ten_with_the_official_split(tmp_path: Path) -> None:
    dataset = load_net(tmp_path, net(tmp_path, lists=True))
    assert dataset.classes == ("bird", "feather", "headphones", "ice_cream", "teapot", "tiger", "whale", "windmill",
                               "wine_glass", "zebra")
    assert [d.name for d in dataset.domains] == list(STYLES)
    for k, domain in enumerate(dataset.domains):
        assert found(domain, "test") == {33 * k + 3 * c: c for c in range(10)}
        assert found(domain, "train") == {33 * k + 3 * c + i: c for c in range(10) for i in (1, 2)}


def test_domainnet_without_lists_is_split_by_the_seed(tmp_path: Path) -> None:
    path = net(tmp_path, lists=False)
    first, again, other = (load_net(tmp_path, path, seed=seed) for seed in (0, 0, 1))
    assert first.fingerprint == again.fingerprint != other.fingerprint
    for k, domain in enumerate(first.domains):
        train, test = found(domain, "train"), found(domain, "test")
        assert not set(train) & set(test)
        assert train | test == {33 * k + 3 * c + i: c for c in range(10) for i in range(3)}
        assert sorted(test.values()) == list(range(10))


def test_all_of_domainnet_is_every_folder_in_order(tmp_path: Path) -> None:
    path = net(tmp_path, lists=True)
    dataset = load_net(tmp_path, path, classes="all", incomplete=True)
    assert dataset.classes == ("aircraft_carrier", *TEN)
    assert found(dataset.domains[0], "test") == {30: 0} | {3 * c: c + 1 for c in range(10)}
    with pytest.raises(FlrayError, match=r"11 folders of classes in .*expected 345"):
        load_net(tmp_path, path, classes="all")


def edit(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))


@pytest.mark.parametrize(("damage", "words"), [
    (lambda p: edit(p / "real_train.txt", "tiger/001.png 6", "tiger/001.png 5"),
     ["real_train.txt, line 11", "label 5 for the class tiger", "6"]),
    (lambda p: edit(p / "real_train.txt", "tiger/001.png 6", "tiger/009.png 6"), ["line 11", "real/tiger/009.png"]),
    (lambda p: edit(p / "real_train.txt", "tiger/001.png 6", "tiger/000.png 6"),
     ["real_test.txt, line 6", "tiger/000.png", "twice"]),
    (lambda p: edit(p / "real_train.txt", "tiger/001.png 6", "tiger"), ["line 11", "'real/tiger'"]),
    (lambda p: shutil.rmtree(p / "sketch"), ["domain sketch has no images"]),
    (lambda p: shutil.rmtree(p / "sketch" / "whale"), ["domain sketch", "no images of whale"])])
def test_domainnets_flaws_are_named(damage: Callable[[Path], None], words: list[str], tmp_path: Path) -> None:
    path = net(tmp_path, lists=True)
    damage(path)
    with pytest.raises(FlrayError) as error:
        load_net(tmp_path, path)
    assert "\n" not in str(error.value)
    assert all(word in str(error.value) for word in words), str(error.value)


def test_lists_that_give_two_classes_one_label_are_refused(tmp_path: Path) -> None:
    path = net(tmp_path, lists=True)
    for file in path.glob("*.txt"):
        file.write_text("".join(f"{line[:-2]} 6\n" if "/teapot/" in line else f"{line}\n"
                                for line in file.read_text().splitlines()))
    with pytest.raises(FlrayError, match="label 6 to the classes teapot and tiger"):
        load_net(tmp_path, path)


def tiny(root: Path, folded: bool, images: str = "images") -> Path:
    """Write two training images 2c, 2c + 1 and the validation image 400 + c of each class c."""
    path = root / "tiny-imagenet-200"
    lines = []
    for label, wnid in enumerate(WNIDS):
        for i in range(2):
            picture(path / "train" / wnid / images / f"{wnid}_{i}.png", 2 * label + i)
        (path / "train" / wnid / f"{wnid}_boxes.txt").write_text("boxes")
        name = f"val_{199 - label}.png"  # not in the order of the classes
        picture(path / "val" / (wnid if folded else "images") / name, 400 + label)
        lines.append(f"{name}\t{wnid}\t0\t0\t7\t7\n")
    picture(path / "test" / "images" / "test_0.png", 700)
    if not folded:
        (path / "val" / "val_annotations.txt").write_text("".join(lines))
    return path


def load_tiny(root: Path, path: Path, **options: Any) -> DataSet:
    return load_dataset("tiny-imagenet", {"path": str(path), "size": 8, **options}, root)


@pytest.mark.parametrize(("folded", "images"), [(False, "images"), (True, "images"), (True, "")])
def test_both_layouts_of_tiny_imagenet_are_the_same_data(folded: bool, images: str, tmp_path: Path) -> None:
    path = tiny(tmp_path, folded, images)
    for source in (path, zipped(path, tmp_path / "tiny.zip")):
        dataset = load_tiny(tmp_path, source)
        (domain,) = dataset.domains
        assert dataset.classes == WNIDS
        assert found(domain, "train") == {n: n // 2 for n in range(400)}
        assert found(domain, "test") == {400 + c: c for c in range(200)}


@pytest.mark.parametrize(("damage", "words"), [
    (lambda p: edit(p / "val/val_annotations.txt", WNIDS[5], "n99999999"),
     ["val_annotations.txt, line 6", "n99999999"]),
    (lambda p: edit(p / "val/val_annotations.txt", "val_194.png", "val_999.png"),
     ["line 6", "val_999.png is not there"]),
    (lambda p: edit(p / "val/val_annotations.txt", f"val_194.png\t{WNIDS[5]}\t0\t0\t7\t7\n", ""),
     ["val_194.png", "not in val_annotations.txt"]),
    (lambda p: (p / "val/val_annotations.txt").unlink(), ["val/images/val_0.png", "none of the classes"]),
    (lambda p: shutil.rmtree(p / "train" / WNIDS[7]), ["199 folders of classes", "expected 200"]),
    (lambda p: shutil.rmtree(p / "val"), [f"class {WNIDS[0]} has no images in the val folder"]),
    (lambda p: (p / "train" / WNIDS[3] / "images" / f"{WNIDS[3]}_1.png").write_bytes(b"\x89PNG"),
     [f"{WNIDS[3]}_1.png", "cannot be decoded"]),
    (lambda p: picture(p / "train" / "lost.png", 3), ["train/lost.png"])])
def test_tiny_imagenets_flaws_are_named(damage: Callable[[Path], None], words: list[str], tmp_path: Path) -> None:
    path = tiny(tmp_path, folded=False)
    damage(path)
    with pytest.raises(FlrayError) as error:
        load_tiny(tmp_path, path)
    assert "\n" not in str(error.value)
    assert all(word in str(error.value) for word in words), str(error.value)


def tissue(root: Path, per_slide: int = 10) -> Path:
    """Write patches of two slides (patients) at each centre, every second one with tumour, numbered through."""
    home = root / "camelyon17_v1.0"
    home.mkdir(parents=True)
    number = 0
    with (home / "metadata.csv").open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(["", "patient", "node", "x_coord", "y_coord", "tumor", "slide", "center", "split"])
        for slide in range(10):
            for i in range(per_slide):
                table.writerow([number, f"{slide:03d}", 4, i, 32 * i, i % 2, slide, slide // 2, 0])
                who = f"patient_{slide:03d}_node_4"
                picture(home / "patches" / who / f"patch_{who}_x_{i}_y_{32 * i}.png", number)
                number += 1
    return home


def load_tissue(root: Path, path: Path, **options: Any) -> DataSet:
    return load_dataset("camelyon17", {"path": str(path), "size": 8, **options}, root)


def test_camelyons_centres_are_its_clients(tmp_path: Path) -> None:
    dataset = load_tissue(tmp_path, tissue(tmp_path))
    assert (dataset.task, dataset.classes) == ("binary", ("normal", "tumour"))
    assert [d.name for d in dataset.domains] == [f"centre{k}" for k in range(5)]
    for k, domain in enumerate(dataset.domains):
        train, test = found(domain, "train"), found(domain, "test")
        assert not set(train) & set(test)
        assert train | test == {n: n % 2 for n in range(20 * k, 20 * k + 20)}
        assert sorted(test.values()) == [0, 0, 1, 1]
    data = federate(dataset, "domains", {}, 0)
    assert [c.name for c in data.clients] == [f"centre{k}" for k in range(5)]
    other = load_tissue(tmp_path, tmp_path, seed=1)
    assert other.fingerprint != dataset.fingerprint == load_tissue(tmp_path, tmp_path).fingerprint


def test_by_slide_no_patient_is_in_both_parts(tmp_path: Path) -> None:
    dataset = load_tissue(tmp_path, tissue(tmp_path), by="slide", test=0.5)
    for domain in dataset.domains:
        slides = [{n // 10 for n in found(domain, part)} for part in ("train", "test")]
        assert len(slides[0]) == len(slides[1]) == 1
        assert slides[0] != slides[1]


@pytest.mark.parametrize(("damage", "words"), [
    (lambda p: edit(p / "metadata.csv", "3,000,4,3,96,1,0,0,0", "3,000,4,3,96,2,0,0,0"),
     ["metadata.csv, line 5", "'2'"]),
    (lambda p: edit(p / "metadata.csv", "3,000,4,3,96,1,0,0,0", "3,000,4,3,96,1,0,5,0"), ["line 5", "center '5'"]),
    (lambda p: edit(p / "metadata.csv", "3,000,4,3,96,1", "3,../x,4,3,96,1"), ["line 5", "no number"]),
    (lambda p: edit(p / "metadata.csv", "3,000,4,3,96,1", "3,000,4,2,64,1"),
     ["line 5", "_x_2_y_64.png is there twice"]),
    (lambda p: edit(p / "metadata.csv", "tumor", "label"), ["no column tumor"]),
    (lambda p: edit(p / "metadata.csv", (p / "metadata.csv").read_text().split("\n", 81)[81], ""),
     ["centre4 has 0 patches"]),
    (lambda p: (p / "patches/patient_002_node_4/patch_patient_002_node_4_x_1_y_32.png").unlink(),
     ["patch_patient_002_node_4_x_1_y_32.png", "No such file"])])
def test_camelyons_flaws_are_named(damage: Callable[[Path], None], words: list[str], tmp_path: Path) -> None:
    path = tissue(tmp_path)
    damage(path)
    with pytest.raises(FlrayError) as error:
        load_tissue(tmp_path, path)
    assert "\n" not in str(error.value)
    assert all(word in str(error.value) for word in words), str(error.value)


def eye(number: int, white: bool = True) -> NDArray[np.uint8]:
    """Return a mask 16x16: a disc of 8x8 at (4 + number % 4, 4) and in it a cup of 4x4."""
    mask = np.zeros((16, 16), np.uint8)
    top = 4 + number % 4
    mask[top:top + 8, 4:12] = 128
    mask[top + 2:top + 6, 6:10] = 255
    return 255 - mask if white else mask


def retina(root: Path, white: bool = True) -> Path:
    path = root / "Fundus"
    number = 0
    for k in range(1, 7):
        for part, count in (("train", 3), ("test", 2)):
            for _ in range(count):
                home = path / f"Domain{k}" / part / "ROIs"
                picture(home / "image" / f"g{number:03d}.png", number, 16)
                (home / "mask").mkdir(exist_ok=True)
                Image.fromarray(eye(number, white)).save(home / "mask" / f"g{number:03d}.png")
                number += 1
    return path


def load_retina(root: Path, path: Path, **options: Any) -> DataSet:
    return load_dataset("fundus", {"path": str(path), "size": 16, **options}, root)


@pytest.mark.parametrize("white", [True, False])
def test_fundus_images_have_their_own_masks(white: bool, tmp_path: Path) -> None:
    dataset = load_retina(tmp_path, retina(tmp_path, white))
    assert (dataset.task, dataset.classes) == ("segmentation", ("disc", "cup"))
    assert [(d.name, len(d.train_x), len(d.test_x)) for d in dataset.domains] == [
        (f"domain{k}", 3, 2) for k in range(1, 7)]
    known = {pixels_of(n, 16).tobytes(): n for n in range(30)}
    seen = []
    for domain in dataset.domains:
        for part in ("train", "test"):
            x, y = getattr(domain, f"{part}_x"), getattr(domain, f"{part}_y")
            assert (y.dtype, y.shape) == (np.uint8, (len(x), 2, 16, 16))
            for image, masks in zip(x, y, strict=True):
                number = known[np.moveaxis(image, 0, -1).tobytes()]
                seen.append((number, part))
                assert np.array_equal(masks[0], eye(number, False) >= 128)
                assert np.array_equal(masks[1], eye(number, False) == 255)
    assert sorted(seen) == [(n, "train" if n % 5 < 3 else "test") for n in range(30)]


def test_masks_are_resized_without_new_values_and_stay_with_their_image(tmp_path: Path) -> None:
    dataset = load_retina(tmp_path, retina(tmp_path), size=32, samples=2, domains=["domain3"])
    (domain,) = dataset.domains
    assert (domain.train_y.shape, domain.test_y.shape) == ((2, 2, 32, 32), (2, 2, 32, 32))
    known = {np.asarray(Image.fromarray(pixels_of(n, 16)).resize((32, 32), Image.Resampling.BILINEAR)).tobytes(): n
             for n in range(30)}
    for image, masks in zip(domain.train_x, domain.train_y, strict=True):
        number = known[np.moveaxis(image, 0, -1).tobytes()]
        assert np.array_equal(masks[0], (eye(number, False) >= 128).repeat(2, 0).repeat(2, 1))
        assert np.array_equal(masks[1], (eye(number, False) == 255).repeat(2, 0).repeat(2, 1))


@pytest.mark.parametrize(("damage", "words"), [
    (lambda p: (p / "Domain2/test/ROIs/mask/g008.png").unlink(), ["Domain2/test/ROIs/image/g008.png", "has no mask"]),
    (lambda p: (p / "Domain2/test/ROIs/image/g008.png").unlink(), ["Domain2/test/ROIs/mask/g008.png", "has no image"]),
    (lambda p: Image.fromarray(np.full((16, 16), 255, np.uint8)).save(p / "Domain2/test/ROIs/mask/g008.png"),
     ["mask/g008.png", "shows no disc"]),
    (lambda p: Image.fromarray(np.full((16, 16), 120, np.uint8)).save(p / "Domain2/test/ROIs/mask/g008.png"),
     ["mask/g008.png", "grey value 120 in the corners"]),
    (lambda p: picture(p / "Domain2/test/lost.png", 0), ["Domain2/test/lost.png", "out of place"]),
    (lambda p: shutil.rmtree(p / "Domain6"), ["domain6 has no images"]),
    (lambda p: shutil.rmtree(p / "Domain6/test"), ["domain6 has no test images"])])
def test_fundus_flaws_are_named(damage: Callable[[Path], None], words: list[str], tmp_path: Path) -> None:
    path = retina(tmp_path)
    damage(path)
    with pytest.raises(FlrayError) as error:
        load_retina(tmp_path, path)
    assert "\n" not in str(error.value)
    assert all(word in str(error.value) for word in words), str(error.value)
