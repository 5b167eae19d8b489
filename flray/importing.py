"""What a command costs beside its work: modules are imported, and looked through when the process ends."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Look for no garbage while modules are imported, nor ever again among what they made.

    An import makes millions of objects and next to no garbage; Python would look through all of them again and again.
    """
    outermost = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if outermost:
            gc.freeze()
            gc.enable()


def leave_garbage() -> None:
    """Let the process end without looking through all objects once more: a second or two with torch, Ray and MLflow."""
    gc.freeze()
