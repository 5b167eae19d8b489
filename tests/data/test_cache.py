import json
import multiprocessing
from pathlib import Path

import numpy as np
import pytest

from flray.data.sources.cache import MANIFEST, data_root, read_arrays, write_arrays
from flray.errors import DataError

ARRAYS = {"x": np.arange(1000, dtype=np.uint8).reshape(10, 100), "y": np.arange(10)}


def test_what_was_written_is_read(tmp_path: Path) -> None:
    write_arrays(tmp_path / "set", ARRAYS)
    back = read_arrays(tmp_path / "set", "set")
    assert list(back) == ["x", "y"]
    for name, array in ARRAYS.items():
        assert np.array_equal(back[name], array)
        assert back[name].dtype == array.dtype


def test_writing_again_replaces_and_leaves_nothing_behind(tmp_path: Path) -> None:
    write_arrays(tmp_path / "set", ARRAYS)
    write_arrays(tmp_path / "set", {"z": np.ones(3)})
    assert list(read_arrays(tmp_path / "set", "set")) == ["z"]
    assert [p.name for p in tmp_path.iterdir()] == ["set"]


def test_a_failed_write_leaves_the_old_arrays(tmp_path: Path) -> None:
    write_arrays(tmp_path / "set", ARRAYS)
    with pytest.raises(ValueError, match="allow_pickle"):
        write_arrays(tmp_path / "set", {"x": np.array([{}], dtype=object)})
    assert list(read_arrays(tmp_path / "set", "set")) == ["x", "y"]
    assert [p.name for p in tmp_path.iterdir()] == ["set"]


def write_often(folder: Path, value: int) -> None:
    for _ in range(40):
        write_arrays(folder, {"x": np.full(1000, value)})


def test_two_writers_do_not_disturb_each_other(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [
        context.Process(target=write_often, args=(tmp_path / "set", value)) for value in (1, 2)
    ]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(timeout=60)
    assert [writer.exitcode for writer in writers] == [0, 0]
    assert len(set(read_arrays(tmp_path / "set", "set")["x"].tolist())) == 1
    assert [p.name for p in tmp_path.iterdir()] == ["set"]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"data set set is not in .*; run `flray data get set`"):
        read_arrays(tmp_path / "set", "set")
    write_arrays(tmp_path / "set", ARRAYS)
    (tmp_path / "set" / "y.npy").unlink()
    with pytest.raises(DataError, match=r"y\.npy is missing; run `flray data get set`"):
        read_arrays(tmp_path / "set", "set")


def test_a_truncated_file_is_named(tmp_path: Path) -> None:
    write_arrays(tmp_path / "set", ARRAYS)
    path = tmp_path / "set" / "x.npy"
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(DataError, match=r"x\.npy has 1121 bytes, expected 1128; run"):
        read_arrays(tmp_path / "set", "set")


def test_an_altered_file_is_named_with_both_checksums(tmp_path: Path) -> None:
    write_arrays(tmp_path / "set", ARRAYS)
    path = tmp_path / "set" / "x.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    expected = json.loads((tmp_path / "set" / MANIFEST).read_text())["files"]["x.npy"]["sha256"]
    with pytest.raises(
        DataError, match=rf"x\.npy was altered: sha256 is [0-9a-f]{{64}}, expected {expected}; run"
    ):
        read_arrays(tmp_path / "set", "set")


@pytest.mark.parametrize(
    "text", ["", "[]", '{"files": 3}', '{"files": {"x.npy": {"bytes": "many", "sha256": ""}}}']
)
def test_an_unreadable_manifest_is_named(tmp_path: Path, text: str) -> None:
    write_arrays(tmp_path / "set", ARRAYS)
    (tmp_path / "set" / MANIFEST).write_text(text)
    with pytest.raises(DataError, match=r"manifest\.json is not a readable manifest"):
        read_arrays(tmp_path / "set", "set")


def test_the_environment_sets_the_root(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FLRAY_DATA", str(tmp_path))
    assert data_root() == tmp_path
    monkeypatch.delenv("FLRAY_DATA")
    assert data_root() == Path.home() / ".cache" / "flray"
