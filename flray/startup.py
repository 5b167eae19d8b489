"""What a command costs beside its work: modules are imported, and looked through when the process ends."""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator


@contextlib.contextmanager
def gc_disabled(*modules: str) -> Iterator[None]:
    """Look for no garbage while modules are imported, nor ever again among what they made.

    An import makes millions of objects and next to no garbage; Python would look through all of
    them again and again.

    Parameters
    ----------
    *modules : str
        What is imported, by full name; nothing is done where all of it has been imported before.
    """
    if not gc.isenabled() or all(module in sys.modules for module in modules):
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


def freeze_gc() -> None:
    """Let the process end without looking through all objects once more: a second or two with torch, Ray and MLflow."""
    gc.freeze()
