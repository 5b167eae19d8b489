"""Memory of this process: measurement, and reuse of freed memory."""

from __future__ import annotations

import contextlib
import ctypes
import resource
import sys
from pathlib import Path

import psutil


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
