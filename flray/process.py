"""A process: its start, its environment, and graceful stops, because SIGTERM and SIGHUP act like Ctrl-C."""

import contextlib
import importlib
import logging
import os
import shlex
import signal
import sys
import threading
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

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


def own_version() -> str:
    """Return flray's version, or that it is not installed."""
    metadata = importlib.import_module("importlib.metadata")
    try:
        return str(metadata.version("flray"))
    except metadata.PackageNotFoundError:
        return "from source, not installed"


def usable_cpus() -> int:
    """Return the CPUs this process may use; macOS cannot restrict a process to some of them."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def make_callable(module: str, target: str, function: str) -> None:
    """Have a call of a module call a function that is imported then.

    So ``flray.run`` is one thing, whether ``flray.run`` was imported as a module before or not.

    Parameters
    ----------
    module : str
        The module's full name.
    target, function : str
        The module of the function, and its name.
    """

    class CallableModule(types.ModuleType):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            return getattr(importlib.import_module(target), function)(*args, **kwargs)

    sys.modules[module].__class__ = CallableModule


@contextlib.contextmanager
def environment(values: Mapping[str, str | None]) -> Iterator[None]:
    """Set environment variables, and restore them afterwards, without touching any other.

    Parameters
    ----------
    values : mapping
        Values by name. A variable with None keeps its value; changes of it in the block are
        undone.
    """
    before = {name: os.environ.get(name) for name in values}
    os.environ.update({name: value for name, value in values.items() if value is not None})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@contextlib.contextmanager
def quiet_logs(*names: str) -> Iterator[None]:
    """Keep logs of other packages off the terminal, by the names of their loggers."""
    with contextlib.ExitStack() as restored:
        for logger in map(logging.getLogger, names):
            restored.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.CRITICAL)
        yield
