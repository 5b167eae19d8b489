"""A command that is asked to end: one line, its exit code, nothing lost; and what Python's functions show meanwhile."""

import io
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import flray
from flray.cli.main import invoke
from flray.process import SIGNALS, preserve_handlers, signals_as_interrupt
from flray.runs import progress, runner
from flray.runs.progress import Progress, RunProgress, SweepProgress, shown
from tests.helpers import INLINE, Settings, small, told, written

ASKED = '''
import signal
from pathlib import Path

from flray import register_algorithm, registry

@register_algorithm("asked")
class Asked(registry.algorithms.get("scaffold")):
    """Its process is asked to end once, in the middle of round 3."""

    def train(self, client):
        mark = Path("asked")
        if (client.round, client.id) == (2, 1) and not mark.exists():
            mark.touch()
            signal.raise_signal({number})
        return super().train(client)
'''


@pytest.fixture(autouse=True)
def handlers() -> Iterator[None]:
    """No handlers but Python's own, as in a process that a shell started; they are there again afterwards."""
    before = {number: signal.signal(number, signal.SIG_DFL) for number in SIGNALS}
    before[signal.SIGINT] = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert [signal.getsignal(number) for number in SIGNALS] == [signal.SIG_DFL, signal.SIG_DFL]
    for number, handler in before.items():
        signal.signal(number, handler)


def prepared(tmp_cwd: Path, digits: Settings, number: int) -> dict[str, Any]:
    (tmp_cwd / "asked.py").write_text(ASKED.format(number=int(number)))
    own = {"rounds": 4, "plugins": ["asked.py"], "algorithm": "asked", "output": "runs of mine"}
    content = {**digits, **INLINE, **own}
    written(content)
    return content


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_run_asked_to_end_can_go_on(tmp_cwd: Path, digits: Settings, number: int) -> None:
    content = prepared(tmp_cwd, digits, number)
    whole = runner.run({"experiment": {**content, "algorithm": "scaffold", "plugins": []}})
    said = "stopped; go on with: flray resume 'runs of mine/digits/002'\n"
    assert told(128 + number, "run", "x.yaml") == said
    assert invoke(["resume", "digits", "--output", "runs of mine"]) == 0
    resumed = runner.resume(tmp_cwd / "runs of mine" / "digits" / "002")
    assert resumed.sha256 == whole.sha256 and list(resumed.history["round"]) == [1, 2, 3, 4]


def test_a_hangup_the_caller_ignores_is_ignored(tmp_cwd: Path, digits: Settings) -> None:
    """As under nohup."""
    prepared(tmp_cwd, digits, signal.SIGHUP)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    assert invoke(["run", "x.yaml"]) == 0 and (tmp_cwd / "asked").exists()
    assert signal.signal(signal.SIGHUP, signal.SIG_DFL) is signal.SIG_IGN


def test_a_signal_while_ray_starts_is_no_other() -> None:
    """Ray's handler, which is in place before `ray.init` returns, ends the process with exit code 15."""
    with signals_as_interrupt() as stop, pytest.raises(KeyboardInterrupt), preserve_handlers():
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))
        signal.raise_signal(signal.SIGTERM)
    assert stop.code(130) == 143


class AskingStream(io.StringIO):
    """A stream during whose first line the process is asked to end."""

    number: int | None

    def write(self, text: str) -> int:
        number, self.number = self.number, None
        if number is not None:
            signal.raise_signal(number)
        return super().write(text)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_a_command_asked_to_end_again_while_it_says_so_ends_with_the_same_code(
    tmp_cwd: Path, digits: Settings, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    prepared(tmp_cwd, digits, number)
    stream = AskingStream()
    stream.number = number
    monkeypatch.setattr(sys, "stderr", stream)
    assert invoke(["run", "x.yaml"]) == 128 + number


ASKED_EARLY = """
import signal

from flray import register_dataset

@register_dataset("early")
def early(options):
    signal.raise_signal(signal.SIGTERM)
"""


def test_ended_before_round_one_it_leaves_nothing(tmp_cwd: Path, digits: Settings) -> None:
    (tmp_cwd / "early.py").write_text(ASKED_EARLY)
    written({**digits, **INLINE, "plugins": ["early.py"], "data": "early"})
    assert told(143, "run", "x.yaml") == "stopped\n"
    left = {path.name for path in tmp_cwd.iterdir()} - {"__pycache__"}
    assert left == {"early.py", "x.yaml"}


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


UNASKED = [(Terminal, {}, True), (io.StringIO, {}, False)]
ASKED_FOR = [(Terminal, {"progress": False}, False), (io.StringIO, {"progress": True}, True)]


@pytest.mark.parametrize(("out", "asked", "seen"), UNASKED + ASKED_FOR)
def test_a_run_shows_its_rounds_on_a_terminal(
    tmp_cwd: Path, out: type[io.StringIO], asked: dict[str, Any], seen: bool
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "stdout", screen := out())
        patch.delenv("TTY_COMPATIBLE", raising=False)
        flray.run({"experiment": small()}, **asked)
    assert ("global/common/accuracy 0." in screen.getvalue()) == seen
    assert screen.getvalue() == "" or seen


def test_a_sweep_is_shown_and_the_callers_display_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Progress()
    assert shown(own, SweepProgress) is own and isinstance(shown(None, SweepProgress), Progress)
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
