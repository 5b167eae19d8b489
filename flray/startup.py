"""Start-up: environment variables, and functions imported at their first call."""

import contextlib
import importlib
import os
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any


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
