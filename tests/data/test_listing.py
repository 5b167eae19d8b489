"""Every data set is listed with its source, what must be done for it, and whether it is there; each can be drawn."""

import re
from pathlib import Path

import pytest

from flray.data.inventory import Entry, list_datasets
from flray.data.sources.archives import FILES
from flray.registry import datasets
from tests.data.layouts import LAYOUTS
from tests.helpers import printed
from tests.messages import mistyped


def built_in(root: Path) -> dict[str, Entry]:
    """Return the entries of flray's own sets; other tests of this process may have registered some more."""
    return {
        entry.name: entry for entry in list_datasets(root) if entry.name not in datasets.added()
    }


def test_every_set_has_a_source_and_a_way_to_it(tmp_path: Path) -> None:
    entries = built_in(tmp_path)
    assert {entry.name for entry in list_datasets(tmp_path)} == set(datasets.names())
    for entry in entries.values():
        assert entry.what and entry.source
        assert entry.present is (entry.source == "comes with flray")
        assert bool(entry.todo) is not entry.present
    for name, files in FILES.items():
        assert entries[name].source == files.where
    assert entries["svhn"].todo == "flray data get svhn"
    assert entries["fc100"].todo == "flray data get fc100"
    assert entries["digits5-local"].todo == "flray data get digits5-local"
    assert entries["vlcs"].todo == "put it into DATA/archives/vlcs (or data.path)"
    assert "flray[eeg]" in entries["eeg"].todo
    assert entries["cifar10-jpeg"].todo == "give data.path"


@pytest.mark.parametrize(
    ("name", "files"),
    [
        ("office-home", ["Art/Bed/1.jpg"]),
        ("tiny-imagenet", ["train/n1/images/1.JPEG"]),
        ("camelyon17", ["metadata.csv"]),
        ("svhn", ["train_32x32.mat", "test_32x32.mat"]),
    ],
)
def test_what_is_there_is_said_to_be_there(name: str, files: list[str], tmp_path: Path) -> None:
    for file in files:
        path = tmp_path / "archives" / name / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    entries = built_in(tmp_path).values()
    present = [entry for entry in entries if entry.present and entry.source != "comes with flray"]
    assert [entry.name for entry in present] == [name]


def test_both_commands_list_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLRAY_DATA", str(tmp_path))
    shown = []
    for arguments in (["list", "datasets"], ["data", "list"]):
        shown.append(printed(*arguments))
    assert shown[0] == shown[1]
    assert all(re.search(rf"\b{name}\b", shown[0]) for name in datasets.names())
    assert "pip install 'flray[eeg]'" in shown[0]
    alone = " ".join(printed("list", "datasets", "vlcs").split())
    assert "put it into DATA/archives/vlcs" in alone and "mapped" in alone


def test_get_decodes_what_was_put_there_by_hand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLRAY_DATA", str(tmp_path))
    mistyped("data", "show", "vlcs")
    mistyped("data", "get", "vlcs")
    LAYOUTS["vlcs"](tmp_path)
    assert "vlcs: decoding 40 images" in printed("data", "get", "vlcs")
    assert len(list((tmp_path / "vlcs").rglob("x.npy"))) == 1
