import multiprocessing
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from flray.data.sources.cache import MANIFEST, data_root, read_arrays, write_arrays
from tests.messages import refused

ARRAYS = {"x": np.arange(1000, dtype=np.uint8).reshape(10, 100), "y": np.arange(10)}


def test_what_was_written_is_read(tmp_path: Path) -> None:
    refused(read_arrays, tmp_path / "set", "set")
    write_arrays(tmp_path / "set", ARRAYS)
    back = read_arrays(tmp_path / "set", "set")
    assert list(back) == ["x", "y"]
    for name, array in ARRAYS.items():
        assert np.array_equal(back[name], array)
        assert back[name].dtype == array.dtype


def test_writing_again_replaces_and_leaves_nothing_behind(tmp_path: Path) -> None:
    write_arrays(tmp_path / "set", ARRAYS)
    write_arrays(tmp_path / "set", {"z": np.ones(3)})
    refused(write_arrays, tmp_path / "set", {"x": np.array([{}], dtype=object)})
    assert list(read_arrays(tmp_path / "set", "set")) == ["z"]
    assert [p.name for p in tmp_path.iterdir()] == ["set"]


def write_often(folder: Path, value: int) -> None:
    for _ in range(40):
        write_arrays(folder, {"x": np.full(1000, value)})


def test_two_writers_do_not_disturb_each_other(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    place = tmp_path / "set"
    writers = [context.Process(target=write_often, args=(place, value)) for value in (1, 2)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(timeout=60)
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert len(set(read_arrays(tmp_path / "set", "set")["x"].tolist())) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["set"]


MANIFESTS = ("", "[]", '{"files": 3}', '{"files": {"x.npy": {"bytes": "many", "sha256": ""}}}')
DAMAGES = [
    ("y.npy", lambda _: None),
    ("x.npy", lambda raw: raw[:-7]),
    ("x.npy", lambda raw: raw[:-1] + b"\0"),
    *((MANIFEST, lambda _, t=t: t.encode()) for t in MANIFESTS),
]


@pytest.mark.parametrize(("file", "damage"), DAMAGES)
def test_what_is_damaged_is_named(
    tmp_path: Path, file: str, damage: Callable[[bytes], bytes | None]
) -> None:
    write_arrays(tmp_path / "set", ARRAYS)
    path = tmp_path / "set" / file
    content = damage(path.read_bytes())
    path.unlink()
    if content is not None:
        path.write_bytes(content)
    refused(read_arrays, tmp_path / "set", "set")


def test_the_environment_sets_the_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLRAY_DATA", str(tmp_path))
    assert data_root() == tmp_path
    monkeypatch.delenv("FLRAY_DATA")
    assert data_root() == Path.home() / ".cache" / "flray"
