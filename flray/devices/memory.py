"""Memory of a process: its measurement, limits on a device, and a second try after running out of it."""

import contextlib
import ctypes
import gc
import math
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import psutil
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


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    return int(psutil.Process().memory_info().rss)


def peak_bytes() -> int:
    """Return this process's peak resident memory.

    Notes
    -----
    Linux passes ``ru_maxrss`` on to a started program, which would then include its parent's
    peak; the kernel's high-water mark of the address space starts anew.
    """
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak) if sys.platform == "darwin" else int(peak) * 1024


def keep_freed_memory(*, large: bool = False) -> None:
    """Let the C library reuse memory freed by a step or a reply instead of returning it to the system.

    A step's activations come and go by the megabyte. By default glibc maps each of them anew, and a
    task then spends a fifth of its time on page faults. Does nothing where the C library has no
    such setting.

    Parameters
    ----------
    large : bool
        Also reuse memory of pieces above 32 MiB, for processes that train: gradients and copies of
        a large model come and go with every step. Costs a tenth to a fifth more memory.
    """
    trim_threshold, mmap_threshold, mmap_max = -1, -3, -4  # malloc.h
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        if large:
            libc.mallopt(mmap_max, 0)
        else:
            libc.mallopt(mmap_threshold, 32 << 20)  # the largest value glibc takes
        libc.mallopt(trim_threshold, 512 << 20)
