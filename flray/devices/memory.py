"""Limits of a process's device memory, and a second try after running out of it."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable
from typing import TypeVar

import torch

T = TypeVar("T")


def capacity(device: torch.device, share: float = 1.0) -> float:
    """Return the bytes that a process may fill on a device; no limit on a CPU, where samples lie already.

    Parameters
    ----------
    device : torch.device
        Where it computes.
    share : float
        Its share of the device.
    """
    if device.type != "cuda":
        return math.inf
    return share * torch.cuda.get_device_properties(device).total_memory


def free_bytes(index: int) -> int:
    """Return the free memory of a GPU that this process sees, whoever holds the rest."""
    return int(torch.cuda.mem_get_info(index)[0])


def reserved_bytes(device: torch.device) -> int:
    """Return the most GPU memory that this process has held so far, used or not; 0 on another device.

    This is more than its tensors took, because the allocator rounds sizes up and keeps freed
    memory.
    """
    return int(torch.cuda.max_memory_reserved(device)) if device.type == "cuda" else 0


def again_without_cache(call: Callable[[], T]) -> T:
    """Return a call's result; if the device runs out of memory, empty its cache and call once more.

    Parameters
    ----------
    call : callable
        Must have no lasting effects before it succeeds.
    """
    try:
        return call()
    except torch.OutOfMemoryError:
        pass  # the failed call's memory is free only after this
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return call()
