"""Sets of image files: classes, domains and split, how each image is read, and where the large array lies."""

import contextlib
import os
import pickle
import shutil
import warnings
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import ExifTags, Image, ImageOps

from flray.config.loader import load as load_config
from flray.data.datasets.class_folders import OFFICE_CALTECH10, PACS, VLCS
from flray.data.federated import federate
from flray.data.loading import load_dataset
from flray.data.sources import image_sets
from flray.data.sources.archives import Source
from flray.data.sources.image_sets import Store, content_groups, decode_images
from flray.data.types import DataSet, Domain, Pooled, backing_file
from flray.records import directory
from flray.runs import resume_checks
from tests.data.pictures import office, picture, pixels_of, trees, zipped
from tests.helpers import cases, small
from tests.messages import refused


def load(root: Path, path: Path, **options: Any) -> DataSet:
    return load_dataset("office-caltech10", {"path": str(path), "size": 8, **options}, root)


def numbers(dataset: DataSet, part: str) -> list[int]:
    """Return which of the written images are in a part, found again by their pixels."""
    known = {pixels_of(n).tobytes(): n for n in range(400)}
    return [
        known[np.moveaxis(image, 0, -1).tobytes()]
        for domain in dataset.domains
        for image in getattr(domain, f"{part}_x")
    ]


def test_a_fifth_of_each_class_of_each_domain_is_for_test(tmp_path: Path) -> None:
    dataset = load(tmp_path, office(tmp_path))
    assert {d.origin for d in dataset.domains} == {"real"}
    for domain in dataset.domains:
        sizes = [np.bincount(y).tolist() for y in (domain.train_y, domain.test_y)]
        assert sizes == [[4] * 10, [1] * 10]
    half = load(tmp_path, tmp_path / "office_caltech_10", test=0.6)
    assert np.bincount(half.domains[2].test_y).tolist() == [3] * 10


def test_no_image_is_in_both_parts_even_if_it_is_there_twice(tmp_path: Path) -> None:
    path = office(tmp_path)
    for name in OFFICE_CALTECH10.classes:  # under other names some would fall into each part
        for i in range(5):
            place = path / "dslr" / name
            shutil.copy(place / f"{i:03d}.png", place / f"again{i}.png")
    shutil.copytree(path / "amazon" / "mug", path / "webcam" / "mug", dirs_exist_ok=True)
    for source in (path, zipped(path, tmp_path / "office.zip")):
        for seed in range(3):
            dataset = load(tmp_path, source, seed=seed)
            train, test = numbers(dataset, "train"), numbers(dataset, "test")
            assert len(train) + len(test) == 250 and not set(train) & set(test)


def test_samples_are_a_subset_that_alone_is_decoded(tmp_path: Path) -> None:
    path = office(tmp_path)
    everything = load(tmp_path, path)
    small, less = (load(tmp_path, path, samples=n, domains=["webcam", "amazon"]) for n in (12, 6))
    sizes = [(d.name, len(d.train_y), len(d.test_y)) for d in small.domains]
    assert sizes == [("amazon", 12, 10), ("webcam", 12, 10)]
    trains = [set(numbers(dataset, "train")) for dataset in (less, small, everything)]
    assert trains[0] < trains[1] < trains[2]
    assert set(numbers(small, "test")) < set(numbers(everything, "test"))
    files = {tuple(np.load(f).shape) for f in (tmp_path / "office-caltech10").rglob("x.npy")}
    assert files == {(200, 8, 8, 3), (44, 8, 8, 3), (32, 8, 8, 3)}


def test_it_is_decoded_once_and_again_when_a_file_changes_that_is_no_litter(tmp_path: Path) -> None:
    path = office(tmp_path)
    before = load(tmp_path, path)
    (cache,) = (tmp_path / "office-caltech10").glob("[!.]*")
    made = (cache / "x.npy").stat().st_mtime_ns
    assert load(tmp_path, path).fingerprint == before.fingerprint
    assert (cache / "x.npy").stat().st_mtime_ns == made
    picture(path / "dslr" / "mug" / "000.png", 399)
    after = load(tmp_path, path)
    assert after.fingerprint != before.fingerprint
    assert 399 in numbers(after, "train") + numbers(after, "test")
    for litter in (".DS_Store", "dslr/Thumbs.db", "dslr/mug/._000.png", "__MACOSX/dslr/mug/x.png"):
        (path / litter).parent.mkdir(parents=True, exist_ok=True)
        (path / litter).write_bytes(b"junk")
    assert load(tmp_path, path).fingerprint == after.fingerprint, "an operating system's litter"


def test_a_run_that_began_with_a_former_option_continues(tmp_path: Path) -> None:
    resume_checks.begin(tmp_path, "run", load_config({"experiment": small(data="vlcs")}), {})
    file = tmp_path / directory.CONFIG
    former = "name: vlcs\n    rename: {}\n    incomplete: false\n"
    file.write_text(file.read_text().replace("name: vlcs\n", former, 1))
    held = directory.read(tmp_path)["settings"] | {"data.rename": "{}"}
    directory.update(tmp_path, settings=held | {"data.incomplete": "False"})
    config = resume_checks.load_config(tmp_path)
    assert "rename" not in config.experiment.data.options
    resume_checks.check_unchanged(tmp_path, config)
    directory.update(tmp_path, settings=held | {"data.incomplete": "True"})
    refused(resume_checks.check_unchanged, tmp_path, resume_checks.load_config(tmp_path))


def test_damaged_archives_loops_of_links_and_other_sets_are_named(tmp_path: Path) -> None:
    path = office(tmp_path)
    archive = zipped(path, tmp_path / "o.zip")
    raw = bytearray(archive.read_bytes())
    raw[raw.index(b"IDAT") + 6] ^= 0xFF
    for damaged in (raw[: len(raw) // 2], raw):
        archive.write_bytes(damaged)
        refused(load, tmp_path, archive)
    (path / "dslr" / "again").symlink_to(path)
    refused(load, tmp_path, path)
    refused(load, tmp_path, trees(tmp_path / "x", {"train": {"n01": 1}, "val": {"n01": 1}}))


@cases(
    "options",
    """{domains: [dsl]}, {domains: []}, {domains: [dslr, dslr]}, {samples: 0}, {rename: {cup: mug}},
    {size: 4}, {test: 1.0}""",
)
def test_wrong_options_say_what_is_allowed(options: dict[str, Any], tmp_path: Path) -> None:
    refused(load, tmp_path, office(tmp_path, 2), **options)


def test_only_the_same_bytes_share_a_number_and_other_sizes_are_not_read(tmp_path: Path) -> None:
    home, long = tmp_path / "x", bytes(5000)
    home.mkdir()
    contents = (b"one", b"two", b"one", b"other", long + b"1", long + b"2", long + b"1", b"", b"")
    for name, content in zip("abcdefghi", contents, strict=True):
        (home / f"{name}.png").write_bytes(content)
    for store in (Store(home), Store(zipped(home, tmp_path / "x.zip"))):
        assert content_groups(store, store.items()).tolist() == [0, 1, 0, 3, 4, 5, 4, 7, 7]
    store = Store(home)
    some = [item for item in store.items() if item.path[0] in "bdf"]
    for path in home.iterdir():
        path.unlink()
    assert content_groups(store, some).tolist() == [0, 1, 2]


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
    source = Source("some", "a friend")
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / ".hidden").touch()
    (tmp_path / "odd.tar").write_bytes(b"not a zip archive")
    for name in ("nowhere", "empty", "odd.tar"):
        refused(image_sets.find_store, tmp_path, source, str(tmp_path / name), "CLASS/*.jpg")


def only(folder: Path, mode: str = "RGB", size: int = 8) -> NDArray[np.uint8]:
    """Return the one image of a folder, with warnings as errors."""
    store = Store(folder)
    with warnings.catch_warnings(action="error"):
        (image,) = decode_images(store, store.items(), size, mode)
    return image


RAMP = np.arange(64, dtype=np.uint8).reshape(8, 8) * 4
COLOURS = pixels_of(3)
FLAT = np.full((8, 8, 3), [200, 60, 30], np.uint8)


PICTURE, PALETTE = Image.fromarray(COLOURS), Image.fromarray(COLOURS).quantize(16)
DEEP = Image.fromarray(RAMP.astype(np.uint16) * 256 + 99)


def alpha(pixels: NDArray[np.uint8], opaque: NDArray[np.uint8]) -> Image.Image:
    return Image.fromarray(np.dstack([pixels, opaque]))


def turned(pixels: NDArray[np.uint8], orientation: int, path: Path) -> None:
    exif = Image.Exif()
    exif[ExifTags.Base.Orientation] = orientation
    Image.fromarray(pixels).save(path, exif=exif)


@pytest.mark.parametrize(
    ("image", "suffix", "expected", "saved"),
    [
        *((Image.fromarray(RAMP), "png", RAMP, {}), (alpha(RAMP, RAMP.T), "png", RAMP, {})),
        (Image.fromarray(RAMP > 100), "png", 255 * (RAMP > 100), {}),  # one bit
        *((DEEP, "png", RAMP, {}), (alpha(COLOURS, RAMP), "png", COLOURS, {})),
        *((PICTURE, "PNG", COLOURS, {}), (PICTURE, "webp", COLOURS, {"lossless": True})),
        *((PICTURE, "bmp", COLOURS, {}), (PALETTE, "gif", COLOURS, {})),
        (PALETTE, "png", COLOURS, {"transparency": bytes([0, 128, 255, 255])}),
        # damaged notes beside an image do not matter
        (PICTURE, "png", COLOURS, {"exif": b"Exif\0\0nonsense"}),
        # a JPEG in four printing inks
        (Image.fromarray(FLAT).convert("CMYK"), "JPG", FLAT, {"quality": 95}),
    ],
)
def test_every_kind_of_pixels_is_read_as_it_looks(
    image: Image.Image, suffix: str, expected: NDArray[np.uint8], saved: Any, tmp_path: Path
) -> None:
    image.save(tmp_path / f"x.{suffix}", **saved)
    wanted = expected if expected.ndim == 3 else np.repeat(expected[..., None], 3, 2)
    assert np.abs(only(tmp_path).astype(int) - wanted).max() <= (6 if suffix == "JPG" else 0)


@pytest.mark.parametrize("orientation", range(1, 9))
def test_photographs_stand_upright(orientation: int, tmp_path: Path) -> None:
    turned(COLOURS, orientation, tmp_path / "x.png")
    with Image.open(tmp_path / "x.png") as image:
        upright = np.asarray(ImageOps.exif_transpose(image))
    assert np.array_equal(upright, COLOURS) is (orientation == 1)
    assert np.array_equal(only(tmp_path), upright)


@pytest.mark.parametrize("orientation", [1, 3, 6])
def test_a_mask_lies_on_its_image_as_it_stands(orientation: int, tmp_path: Path) -> None:
    turned(COLOURS[:6], orientation, tmp_path / "a.png")  # 8 wide, 6 high
    size = (8, 6) if orientation < 5 else (6, 8)
    for name, other in ("b", size), ("c", (3 * size[0], 3 * size[1])), ("d", size[::-1]):
        Image.new("L", other).save(tmp_path / f"{name}.png")
    store = Store(tmp_path)
    image, same, larger, other = sorted(store.items(), key=lambda item: item.path)
    image_sets.check_proportions(store, [image, image], [same, larger])
    refused(image_sets.check_proportions, store, [image], [other])


@pytest.mark.parametrize("image", [Image.fromarray(RAMP).convert("RGB"), DEEP], ids=["RGB", "I;16"])
def test_masks_are_grey(image: Image.Image, tmp_path: Path) -> None:
    image.save(tmp_path / "x.png")
    assert np.array_equal(only(tmp_path, "L"), RAMP)


def test_names_may_be_of_any_letters_and_bytes(tmp_path: Path) -> None:
    place = tmp_path / "bücher 日本"
    trees(place, dict.fromkeys(VLCS.domains, dict.fromkeys(VLCS.classes, 2)))
    options = {"path": str(place), "size": 8}
    expected = load_dataset("vlcs", options, tmp_path)
    (place / "sun" / "dog" / "001.png").rename(place / "sun" / "dog" / "1 ünï 犬.PNG")
    cars = place / "sun" / "car"
    with contextlib.suppress(OSError):  # of a file system that takes UTF-8 alone
        (cars / "001.png").rename(cars / os.fsdecode(b"1\xff.Png"))
    assert load_dataset("vlcs", options, tmp_path).fingerprint == expected.fingerprint
    (place / "sun" / "dog" / "1 ünï 犬.PNG").write_bytes(b"junk")
    refused(load_dataset, "vlcs", options, tmp_path)


def one_domain(x: NDArray[Any]) -> DataSet:
    """Return a set of one domain and class, a third of it for test."""
    y, first = np.zeros(len(x), dtype=np.int64), len(x) * 2 // 3
    domain = Domain("a", "random", x[:first], y[:first], x[first:], y[first:])
    return DataSet("d", (domain,), ("0",), (0.0,), (1.0,))


def test_it_travels_out_of_band_and_arrives_as_it_was() -> None:
    images = np.random.default_rng(0).integers(0, 256, (12, 3, 4, 5), dtype=np.uint8)
    data = federate(one_domain(images), "domains", {}, seed=0)
    buffers: list[pickle.PickleBuffer] = []
    stream = pickle.dumps(data, protocol=5, buffer_callback=buffers.append)
    assert any(b.raw().nbytes == data.x.nbytes for b in buffers)
    arrived = pickle.loads(stream, buffers=buffers)
    assert np.array_equal(arrived.x, data.x) and arrived.x.strides == data.x.strides
    assert np.shares_memory(arrived.x, data.x)
    assert arrived.partition_fingerprint == data.partition_fingerprint


def test_features_that_are_no_images_stay_as_they_are() -> None:
    x = np.arange(12.0, dtype=np.float32).reshape(6, 2)
    pooled = Pooled.of(one_domain(x)).x
    assert np.array_equal(pooled, x) and pooled.flags.c_contiguous


@pytest.fixture
def pacs(tmp_path: Path) -> Path:
    return trees(tmp_path / "pacs", dict.fromkeys(PACS.domains, dict.fromkeys(PACS.classes, 4)))


def load_pacs(path: Path, root: Path, way: bool | None) -> DataSet:
    return load_dataset("pacs", {"path": str(path), "size": 8, "mapped": way}, root)


def mapped(x: NDArray[Any]) -> bool:
    return backing_file(np.moveaxis(x, 1, -1)) is not None


def test_mapped_or_not_data_are_the_same_and_not_copied(pacs: Path, tmp_path: Path) -> None:
    sets = [load_pacs(pacs, tmp_path, way) for way in (True, False)]
    assert sets[0].fingerprint == sets[1].fingerprint
    assert (sets[0].mean, sets[0].std) == (sets[1].mean, sets[1].std)
    for dataset, way in zip(sets, (True, False), strict=True):
        x = Pooled.of(dataset).x
        assert np.shares_memory(x, dataset.domains[0].train_x) and mapped(x) is way
        parts = [d.train_x for d in dataset.domains] + [d.test_x for d in dataset.domains]
        assert np.array_equal(x, np.concatenate(parts))


def test_parts_in_another_order_or_incomplete_are_copied(pacs: Path, tmp_path: Path) -> None:
    dataset = load_pacs(pacs, tmp_path, True)
    for domains in (dataset.domains[::-1], dataset.domains[:3]):
        parts = [d.train_x for d in domains] + [d.test_x for d in domains]
        x = Pooled.of(replace(dataset, domains=domains)).x
        assert np.array_equal(x, np.concatenate(parts))
        assert np.moveaxis(x, 1, -1).flags.c_contiguous
        assert not np.shares_memory(x, dataset.domains[0].train_x)


def test_mapped_images_travel_as_their_files_name(pacs: Path, tmp_path: Path) -> None:
    data = federate(load_pacs(pacs, tmp_path, True), "domains", {}, seed=0)
    for thing in (data, Pooled.of(load_pacs(pacs, tmp_path, True))):
        sent = pickle.dumps(thing)
        assert len(sent) < data.x.nbytes / 2
        arrived = pickle.loads(sent).x
        assert np.array_equal(arrived, data.x)
        there, here = (backing_file(np.moveaxis(x, 1, -1)) for x in (arrived, data.x))
        assert there == here
    (file,) = tmp_path.rglob("x.npy")
    file.unlink()
    refused(pickle.loads, sent)


def test_images_larger_than_a_quarter_of_the_free_memory_are_mapped(
    pacs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = 112 * 8 * 8 * 3
    for free, way in ((4 * size, False), (4 * size - 1, True)):
        memory = SimpleNamespace(available=free)
        monkeypatch.setattr("psutil.virtual_memory", lambda memory=memory: memory)
        assert mapped(Pooled.of(load_pacs(pacs, tmp_path, None)).x) is way


def test_an_altered_cache_is_decoded_anew(pacs: Path, tmp_path: Path) -> None:
    before = load_pacs(pacs, tmp_path, True).fingerprint
    (file,) = tmp_path.rglob("x.npy")
    raw = bytearray(file.read_bytes())
    raw[-1] ^= 1
    file.write_bytes(raw)
    assert load_pacs(pacs, tmp_path, True).fingerprint == before
