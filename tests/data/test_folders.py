"""Sets of folders, written here in the exact layout: classes, domains, split, and one clear message for each flaw."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flray.config.loader import load as load_config
from flray.data.datasets.class_folders import OFFICE_CALTECH10
from flray.data.loading import load_dataset
from flray.data.types import DataSet
from flray.records import directory
from flray.runs import resume_checks
from tests.data.pictures import office, picture, pixels_of, trees, zipped
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
        assert np.bincount(domain.test_y).tolist() == [1] * 10
        assert np.bincount(domain.train_y).tolist() == [4] * 10
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
            assert len(train) + len(test) == 250
            assert not set(train) & set(test)


def test_samples_are_a_subset_that_alone_is_decoded(tmp_path: Path) -> None:
    path = office(tmp_path)
    everything = load(tmp_path, path)
    small, less = (load(tmp_path, path, samples=n, domains=["webcam", "amazon"]) for n in (12, 6))
    assert [(d.name, len(d.train_y), len(d.test_y)) for d in small.domains] == [
        ("amazon", 12, 10),
        ("webcam", 12, 10),
    ]
    trains = [set(numbers(dataset, "train")) for dataset in (less, small, everything)]
    assert trains[0] < trains[1] < trains[2]
    assert set(numbers(small, "test")) < set(numbers(everything, "test"))
    files = {tuple(np.load(f).shape) for f in (tmp_path / "office-caltech10").rglob("x.npy")}
    assert files == {(200, 8, 8, 3), (44, 8, 8, 3), (32, 8, 8, 3)}


def test_it_is_decoded_once_and_again_when_a_file_changes(tmp_path: Path) -> None:
    path = office(tmp_path)
    before = load(tmp_path, path)
    (cache,) = (tmp_path / "office-caltech10").iterdir()
    made = (cache / "x.npy").stat().st_mtime_ns
    assert load(tmp_path, path).fingerprint == before.fingerprint
    assert (cache / "x.npy").stat().st_mtime_ns == made
    picture(path / "dslr" / "mug" / "000.png", 399)
    after = load(tmp_path, path)
    assert after.fingerprint != before.fingerprint
    assert 399 in numbers(after, "train") + numbers(after, "test")


def test_a_run_that_began_with_a_former_option_continues(tmp_path: Path) -> None:
    content = {"data": "vlcs", "model": "lenet", "algorithm": "fedavg", "tracking": {"uri": None}}
    resume_checks.begin(tmp_path, "run", load_config(content), {})
    file, former = (
        tmp_path / directory.CONFIG,
        "name: vlcs\n    rename: {}\n    incomplete: false\n",
    )
    file.write_text(file.read_text().replace("name: vlcs\n", former, 1))
    held = directory.read(tmp_path)["settings"] | {"data.rename": "{}"}
    for value in ("False", "True"):
        directory.update(tmp_path, settings=held | {"data.incomplete": value})
        config = resume_checks.load_config(tmp_path)
        if value == "False":
            resume_checks.check_unchanged(tmp_path, config)
        else:
            refused(resume_checks.check_unchanged, tmp_path, config)
    assert "rename" not in config.experiment.data.options


@pytest.mark.parametrize("damage", ["cut", "changed"])
def test_a_truncated_or_damaged_archive_is_named(damage: str, tmp_path: Path) -> None:
    archive = zipped(office(tmp_path), tmp_path / "o.zip")
    raw = bytearray(archive.read_bytes())
    raw[raw.index(b"IDAT") + 6] ^= 0xFF
    archive.write_bytes(raw if damage == "changed" else raw[: len(raw) // 2])
    refused(load, tmp_path, archive)


def test_litter_of_operating_systems_is_no_flaw(tmp_path: Path) -> None:
    path = office(tmp_path)
    before = load(tmp_path, path).fingerprint
    for litter in (".DS_Store", "dslr/Thumbs.db", "dslr/mug/._000.png", "__MACOSX/dslr/mug/x.png"):
        (path / litter).parent.mkdir(parents=True, exist_ok=True)
        (path / litter).write_bytes(b"junk")
    assert load(tmp_path, path).fingerprint == before


def test_a_loop_of_links_ends(tmp_path: Path) -> None:
    path = office(tmp_path)
    (path / "dslr" / "again").symlink_to(path)
    refused(load, tmp_path, path)


def test_another_set_in_its_place_is_shown(tmp_path: Path) -> None:
    path = trees(tmp_path / "x", {"train": {"n01": 1}, "val": {"n01": 1}})
    refused(load, tmp_path, path)


@pytest.mark.parametrize(
    "options",
    [
        {"domains": ["dsl"]},
        {"domains": []},
        {"domains": ["dslr", "dslr"]},
        {"samples": 0},
        {"rename": {"cup": "mug"}},
        {"size": 4},
        {"test": 1.0},
    ],
)
def test_wrong_options_say_what_is_allowed(options: dict[str, Any], tmp_path: Path) -> None:
    refused(load, tmp_path, office(tmp_path, 2), **options)
