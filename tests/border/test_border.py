"""What the border gives out, and what it refuses."""

import os
import subprocess
from pathlib import Path

import pytest
from rich.table import Table

from flray.cli import display
from flray.cli.main import invoke
from flray.files import border
from flray.records import directory
from tests.messages import refused


@pytest.mark.parametrize("name", ["a", "a/b.c", "..a/b..", "Tromsø/日本", "a b", "-x", "ab:c"])
def test_names_below_a_folder(name: str) -> None:
    assert border.check_name(name, "s3://b") == name


@pytest.mark.parametrize(
    "name", ["", "/a", "a/", "a//b", "..", "a/../b", "a\\b", "C:a", "a\nb", "\x9b", "\ud800"]
)
def test_names_that_may_lead_elsewhere(name: str) -> None:
    refused(border.check_name, name, "s3://b")


def test_numbers_are_sorted_and_others_left_out() -> None:
    assert border.numbered(["10", "9", "²", "٣", "1" * 19, "1.old-1", ""]) == ["9", "10"]


def test_files_of_other_kinds_and_sizes_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("/dev/zero")
    with (tmp_path / "huge").open("wb") as file:
        file.truncate(2**37)
    (tmp_path / "small").write_bytes(b"abc")
    for name in ("pipe", "link", "huge"):
        refused(border.read, tmp_path / name)
    refused(border.read, tmp_path / "small", 2)
    assert border.read(tmp_path / "small") == b"abc"


def test_another_user_s_run_is_foreign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.chdir(tmp_path)
    mine = tmp_path.stat().st_uid
    for user, expected in ((mine, False), (mine + 1, True), (0, False)):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user)
        assert border.foreign(tmp_path) is expected
    monkeypatch.setattr(os, "geteuid", lambda: mine + 1)
    refused(border.own_tracking, tmp_path, "http://h:1")
    assert border.own_tracking(tmp_path, "sqlite:///mlflow.db") == "sqlite:///mlflow.db"
    assert border.own_tracking(tmp_path, None) is None
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:word@h:1")
    assert border.own_tracking(tmp_path, "http://me:***@h:1") == "http://me:***@h:1"
    monkeypatch.setattr(os, "geteuid", lambda: mine)
    (trial := tmp_path / "trials" / "0000").mkdir(parents=True)
    assert not border.foreign(trial)
    (tmp_path / border.FETCHED_MARK).touch()
    assert border.foreign(trial)


def test_git_s_word_on_a_folder(tmp_cwd: Path) -> None:
    """As git itself says, in a folder of a repository and in a work tree of its own."""

    def git(*arguments: str) -> str:
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        command = ["git", *who, *arguments]
        return subprocess.run(
            command, check=True, timeout=60, capture_output=True, text=True
        ).stdout

    def source() -> tuple[str | None, ...]:
        directory.source.cache_clear()
        found = directory.source()
        return tuple(found.get(name) for name in ("commit", "branch"))

    assert source() == (None, None)
    git("init", "-q", "-b", "trunk", "one")
    os.chdir("one")
    assert source() == (None, None)
    Path("sub").mkdir()
    Path("sub/a.txt").write_text("a")
    git("add", ".")
    git("commit", "-qm", "x")
    commit = git("rev-parse", "HEAD").strip()
    assert source() == (commit, "trunk")
    os.chdir("sub")
    assert source() == (commit, "trunk")
    git("worktree", "add", "-q", "-b", "other", "../../two")
    os.chdir("../../two")
    assert source() == (commit, "other")
    directory.source.cache_clear()


def test_the_console_shows_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    escapes = "\x1b[2J\x9b\u202e[b]x[/b]"
    table = Table("a", title=escapes)
    table.add_row(escapes)
    display.console.print(table)
    display.console.print(f"{escapes}\nsecond line")
    display.print_json({"a": [escapes]})
    shown = capsys.readouterr().out
    assert "\x1b" not in shown and "\x9b" not in shown and "\u202e" not in shown
    assert shown.count(r"\x1b[2J\x9b\u202e[b]x[/b]") == 3 and "\nsecond line\n" in shown
    assert r'"\u001b[2J\u009b\u202e[b]x[/b]"' in shown


def test_a_file_that_cannot_be_is_one_line(
    tmp_cwd: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("flray.cli.runs.show_runs", lambda *_: Path("x" * 300).read_bytes())
    assert invoke(["ls"]) == 1
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("flray: a file: OSError: [Errno 36]")
