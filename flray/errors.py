"""Errors a user can act on. The command line prints them as one line; the exit code is 2, or 1 for a failed run."""

import contextlib
import difflib
import errno
import re
from collections.abc import Iterable, Iterator, Sequence

LONGEST = 4000
"""Characters of a line for the user; a file may hold a key or a value of any length."""

NO_TEXT = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""A character that ends a line, moves the cursor, turns the direction of writing, or is not in UTF-8."""


def one_line(text: str) -> str:
    """Return a text safe to print: control characters, which file names may have, are escaped as in Python.

    Parameters
    ----------
    text : str
        Text of a user or a file.
    """
    shown = NO_TEXT.sub(lambda found: repr(found[0])[1:-1], text[:LONGEST])
    return shown if len(text) <= LONGEST else f"{shown}... (cut, {len(text):,} characters)"


def brief(error: BaseException) -> str:
    """Return an exception of foreign code in one line: its type and the first line of its text."""
    try:
        text = str(error).strip()
    except Exception:  # a failing __str__ is the user's code, too
        text = ""
    first = text.splitlines()[0] if text else ""
    return one_line(f"{type(error).__name__}: {first}" if first else type(error).__name__)


class FlrayError(Exception):
    """An error that the user can fix; its text says how, in one line whatever names it contains.

    Parameters
    ----------
    text : str
        The problem and its remedy.
    """

    #: Whether line breaks in the text are meant: of a trace, or of several mistakes.
    several_lines = False

    def __init__(self, text: str = "") -> None:
        super().__init__(text if self.several_lines else one_line(text))


class RunFailedError(FlrayError):
    """A run that failed although its settings were valid: exit code 1 rather than 2."""


class RayNotStartedError(RunFailedError):
    """Ray did not start in time: nothing was computed, and the run or sweep can be resumed."""


class ConfigError(FlrayError):
    """A setting that cannot be used.

    Parameters
    ----------
    path : str
        Dotted path of the setting, for example ``experiment.local.lr``.
    found : str
        The value given.
    allowed : str
        The values allowed, and a remedy.
    """

    def __init__(self, path: str, found: str, allowed: str) -> None:
        self.path, self.found, self.allowed = path, found, allowed
        super().__init__(f"{path}: found {found}; {allowed}")

    def __reduce__(self) -> tuple[type["ConfigError"], tuple[str, str, str]]:
        return type(self), (self.path, self.found, self.allowed)


class ConfigErrors(FlrayError):
    """Several mistakes in one file: one line each."""

    several_lines = True

    def __init__(self, errors: Sequence[ConfigError]) -> None:
        self.errors = list(errors)
        super().__init__("\n".join(str(error) for error in errors))

    def __reduce__(self) -> tuple[type["ConfigErrors"], tuple[list[ConfigError]]]:
        return type(self), (self.errors,)


class DataError(FlrayError):
    """A data file that is missing, corrupted or laid out unexpectedly."""


@contextlib.contextmanager
def explained(
    errors: type[Exception] | tuple[type[Exception], ...],
    problem: str,
    remedy: str = "",
    kind: type[FlrayError] = DataError,
) -> Iterator[None]:
    """Raise an error for the user instead of others; flray's own pass.

    Parameters
    ----------
    errors : type or tuple of type
        The others. Of any `Exception`, which foreign code may raise, the traceback remains.
    problem, remedy : str
        The failure and its remedy; the reason stands between them in brackets.
    kind : type
        The error that the user sees.
    """
    try:
        yield
    except FlrayError:
        raise
    except errors as error:
        reason = getattr(error, "strerror", None) or brief(error)
        text = f"{problem} ({reason}){remedy and '; '}{remedy}"
        raise kind(text) from (error if errors is Exception else None)


class MethodError(RunFailedError):
    """A method's own code raised: a line with method, hook, exception, file and line, then the traceback."""

    several_lines = True


def disk_is_full(error: BaseException | None) -> bool:
    """Return whether an error means that a disk, a quota or the size allowed of a file is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def memory_is_short(error: BaseException | None) -> bool:
    """Return whether an error means that memory ran out: Python's error, or torch's for the CPU."""
    return isinstance(error, MemoryError) or (
        isinstance(error, RuntimeError) and "DefaultCPUAllocator" in str(error)
    )


def nearest(name: str, allowed: Iterable[str]) -> str:
    """Return ``"; did you mean 'x'?"`` for the closest allowed name, or an empty string.

    Parameters
    ----------
    name : str
        The user's text.
    allowed : iterable of str
        The valid names.
    """
    known = {str(one).lower(): one for one in allowed}
    close = difflib.get_close_matches(name.lower(), known, n=1, cutoff=0.5)
    return f"; did you mean {known[close[0]]!r}?" if close else ""
