"""A second try where a device had no memory left."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


def again_without_cache(call: Callable[[], T]) -> T:
    """Return what a call returns; if a device has no memory for it, empty its cache and call once more.

    Parameters
    ----------
    call : callable
        Without lasting effects before it succeeds.
    """
    try:
        return call()
    except torch.OutOfMemoryError:
        pass  # what the failed call held is free only after this
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return call()
