"""What the functions of Python show while they run: something to a person who looks on, nothing to a file."""

import io
import sys
from pathlib import Path
from typing import Any

import pytest

import flray
from flray.runs import progress
from flray.runs.progress import Progress, RunProgress, SweepProgress, shown
from tests.helpers import small


class Terminal(io.StringIO):
    """An output that says that it is a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("out", "asked", "seen"),
    [
        (Terminal, {}, True),
        (io.StringIO, {}, False),
        (Terminal, {"progress": False}, False),
        (io.StringIO, {"progress": True}, True),
    ],
)
def test_a_run_shows_its_rounds_on_a_terminal(
    tmp_cwd: Path,
    monkeypatch: pytest.MonkeyPatch,
    out: type[io.StringIO],
    asked: dict[str, Any],
    seen: bool,
) -> None:
    monkeypatch.setattr(sys, "stdout", screen := out())
    monkeypatch.delenv("TTY_COMPATIBLE", raising=False)
    flray.run({"experiment": small()}, **asked)
    assert ("global/common/accuracy 0." in screen.getvalue()) == seen
    assert screen.getvalue() == "" or seen


def test_a_sweep_is_shown_as_a_run_and_the_callers_own_display_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    own = Progress()
    assert shown(own, SweepProgress) is own
    assert isinstance(shown(None, SweepProgress), Progress)
    monkeypatch.setattr(sys, "stdout", Terminal())
    assert isinstance(shown(None, SweepProgress), SweepProgress)


def test_in_a_notebook_one_line_changes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook = pytest.importorskip("IPython.display")
    lines: list[str] = []

    class Cell:
        def update(self, content: dict[str, str], raw: bool) -> None:
            lines.append(content["text/plain"])

    monkeypatch.setattr(notebook, "display", lambda *_, **__: Cell())
    monkeypatch.setattr(progress.console, "is_jupyter", True)
    display = shown(None, RunProgress)
    assert isinstance(display, RunProgress)
    display._show_bar("round", 3, 0)
    assert display._update(1, "accuracy 0.5\x1b") and display._update(2)
    assert lines == ["round 0/3  ", "round 1/3  accuracy 0.5\\x1b", "round 2/3  accuracy 0.5\\x1b"]
    assert capsys.readouterr().out == ""
