"""Put a bad input to the command line, and say what was wrong with the answer."""

import contextlib
import io
import os
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from flray.cli.main import invoke

LIMIT, WAIT = 10, 240
"""Seconds of work, and seconds on a machine however busy, after which an answer counts as none."""


class LateError(BaseException):
    """No answer in time; no error of the system's, which commands turn into a line."""


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """Raise LateError after `LIMIT` seconds of this process's own time, or `WAIT` seconds."""

    def late(*_: object) -> None:
        raise LateError

    before = [(one, signal.signal(one, late)) for one in (signal.SIGPROF, signal.SIGALRM)]
    signal.setitimer(signal.ITIMER_PROF, LIMIT)
    signal.setitimer(signal.ITIMER_REAL, WAIT)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        for one, handler in before:
            signal.signal(one, handler)


def answer(arguments: Sequence[str]) -> tuple[int | str, str, str]:
    """Return a command line's exit code in this process, or what is wrong, with both outputs."""
    out, err = io.StringIO(), io.StringIO()
    code: int | str
    uncaught: list[str] = []
    before, threading.excepthook = threading.excepthook, lambda one: uncaught.append(repr(one))
    try:
        with limited(), contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = invoke(list(arguments))
    except LateError:
        code = f"no answer within {LIMIT} s"
    except BaseException:
        code = "a traceback: " + " | ".join(traceback.format_exc().strip().splitlines()[-3:])
    finally:
        threading.excepthook = before
    if uncaught:
        code = f"a traceback of a thread: {uncaught}"
    return code, out.getvalue(), err.getvalue()


def asked(arguments: Sequence[str], codes: tuple[int, ...] = (2,)) -> str:
    """Return what is wrong with how a bad command line ends in this process; empty if nothing is."""
    before = listing()
    code, _, err = answer(arguments)
    return judged(code, err, before, codes)


def started(arguments: Sequence[str]) -> str:
    """Return what is wrong with how a bad command line ends in a process of its own; empty if nothing is."""
    before = listing()
    command = [sys.executable, "-B", "-m", "flray", *arguments]
    how: dict[str, Any] = {"capture_output": True, "text": True, "stdin": subprocess.DEVNULL}
    try:
        ended = subprocess.run(command, timeout=2 * WAIT, **how)
    except subprocess.TimeoutExpired:
        return f"no answer within {2 * WAIT} s"
    return judged(ended.returncode, ended.stderr, before)


def judged(code: int | str, stderr: str, before: set[str], codes: tuple[int, ...] = (2,)) -> str:
    """Return what is wrong with an exit code, a text and what was left; empty if nothing is."""
    lines = stderr.removesuffix("\n").split("\n")
    if code not in codes:
        return f"{code}: {stderr[-300:]!r}"
    if len(lines) != 1 or not lines[0].strip() or not lines[0].isprintable():
        return f"{len(lines)} lines: {stderr[:600]!r}"
    left = listing() - before
    return f"left behind: {sorted(left)}" if left else ""


def listing() -> set[str]:
    walked = os.walk(".")
    return {str(Path(at, name)) for at, folders, files in walked for name in (*folders, *files)}
