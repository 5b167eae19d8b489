"""Run a method's server hooks; their errors are reported in one line like a client's failure."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from flray.errors import FlrayError, MethodError, disk_is_full
from flray.federation.failures import MACHINE_ERRORS, describe_failure

Item = TypeVar("Item")


@contextlib.contextmanager
def method_hook(method: str, name: str, round_: int) -> Iterator[None]:
    """Run a hook of a method at the server.

    Parameters
    ----------
    method : str
        The registered name.
    name : str
        The hook's.
    round_ : int
        The round, from 1.

    Raises
    ------
    MethodError
        The first line names method, round, hook, exception, file and line; the traceback follows.
        An error of the machine is its cause.
    """
    try:
        yield
    except FlrayError:
        raise
    except Exception as error:
        if disk_is_full(error) or _of_ray(error):
            raise  # while the hook waited for client replies
        failure = describe_failure(error)
        where = f" at {failure.where}" if failure.where else ""
        line = f"{method} at the server, round {round_}, {name}: {failure.what}{where}"
        machine = error if isinstance(error, MACHINE_ERRORS) else None
        raise MethodError(f"{line}\n{failure.trace}".rstrip()) from machine


def iterate_hook(items: Iterable[Item], method: str, name: str, round_: int) -> Iterator[Item]:
    """Yield a hook's items; see `method_hook`."""
    left = iter(items)
    while True:
        with method_hook(method, name, round_):
            try:
                item = next(left)
            except StopIteration:
                return
        yield item


def _of_ray(error: BaseException) -> bool:
    ray = sys.modules.get("ray")
    return ray is not None and isinstance(error, ray.exceptions.RayError)
