"""Graceful stops: SIGTERM and SIGHUP act like Ctrl-C."""

import contextlib
import os
import shlex
import signal
import threading
import types
from collections.abc import Iterator
from pathlib import Path

from flray.errors import FlrayError

SIGNALS = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals of batch systems, Kubernetes and closed terminals; by default they end a process at once."""


class InterruptedRunError(FlrayError):
    """The run was stopped; progress is saved, and the message says how to resume.

    Parameters
    ----------
    text : str
        The message.
    code : int
        Exit code of the command line: 130 if the user stopped it.
    """

    def __init__(self, text: str = "", code: int = 130) -> None:
        super().__init__(text)
        self.code = code


class RayLostError(KeyboardInterrupt):
    """Ray's node process on this machine died: a stop as by Ctrl-C, from outside, in the thread that uses Ray."""

    def __str__(self) -> str:
        """Return the message for the user."""
        return "stopped: Ray's node process (raylet) on this machine was killed, as happens when memory runs out"


class StopSignal:
    """Whether this process received a signal to end, and which one.

    Attributes
    ----------
    number : int or None
        The signal that was received.
    """

    number: int | None = None

    def code(self, code: int) -> int:
        """Return the exit code of a command that ended with `code`: 128 plus the signal's number if one ended it."""
        return code if self.number is None or code == 0 else 128 + self.number


@contextlib.contextmanager
def signals_as_interrupt() -> Iterator[StopSignal]:
    """Treat `SIGNALS` as Ctrl-C in the block, except for those that the caller ignores (nohup) or handles.

    Yields
    ------
    StopSignal
        The signal received, if any.
    """
    stop = StopSignal()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    terminals = [number for number in (1, 2) if os.isatty(number)]

    def handle(number: int, frame: types.FrameType | None) -> None:
        stop.number = number
        if number == signal.SIGHUP:
            discard_output(terminals)
        interrupt = signal.getsignal(signal.SIGINT)  # Tune's own while a sweep runs
        if callable(interrupt):
            interrupt(signal.SIGINT, frame)
        else:  # a shell's background commands ignore Ctrl-C
            raise KeyboardInterrupt

    ours = [number for number in SIGNALS if signal.getsignal(number) is signal.SIG_DFL]
    for number in ours:
        signal.signal(number, handle)
    try:
        yield stop
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)


@contextlib.contextmanager
def preserve_handlers() -> Iterator[None]:
    """Restore the handlers of `SIGNALS` after the block: Ray sets one that ends the process at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        yield
    except SystemExit:  # raised by Ray's handler
        ours = before[signal.SIGTERM]
        if callable(ours):
            ours(signal.SIGTERM, None)
        raise
    finally:
        for number, handler in before.items():
            if callable(handler):
                signal.signal(number, handler)


@contextlib.contextmanager
def resume_hint(folder: Path) -> Iterator[None]:
    """Tell the user how to resume the run or sweep in `folder` if it is stopped anywhere in the block.

    Raises
    ------
    InterruptedRunError
        Instead of KeyboardInterrupt.
    """
    try:
        yield
    except KeyboardInterrupt as stop:
        lost = isinstance(stop, RayLostError)
        raise InterruptedRunError(
            f"{stop if lost else 'stopped'}; go on with: flray resume {shlex.quote(str(folder))}",
            code=1 if lost else 130,
        ) from None


def reader_gone() -> None:
    """Stop as SIGHUP does, after whoever read the output has gone; what follows is written nowhere."""
    discard_output([1])
    if callable(signal.getsignal(signal.SIGHUP)):
        signal.raise_signal(signal.SIGHUP)


def discard_output(terminals: list[int]) -> None:
    """Discard all further output to these files: writing to a closed terminal would be an error."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    for number in terminals:
        os.dup2(nothing, number)
    os.close(nothing)
