"""The memory of this process: how much it holds, and what becomes of what is freed."""

from __future__ import annotations

import contextlib
import ctypes
import resource
import sys
from pathlib import Path

import psutil
import torch


def resident_bytes() -> int:
    """Return the resident memory of this process."""
    return int(psutil.Process().memory_info().rss)


def peak_bytes() -> int:
    """Return the most resident memory this process has ever held.

    Notes
    -----
    Linux hands ``ru_maxrss`` on to a started program, which would then count what the process that
    started it held; the kernel's high-water mark of the address space begins anew.
    """
    with contextlib.suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return int(peak) if sys.platform == "darwin" else int(peak) * 1024


def gpu_peak_bytes(device: torch.device) -> int:
    """Return the most memory that this process's tensors have ever held on a GPU; 0 on another device."""
    return int(torch.cuda.max_memory_allocated(device)) if device.type == "cuda" else 0


def keep_freed_memory() -> None:
    """Let the C library reuse what a training step frees instead of giving it back to the system after each one.

    A step's activations come and go by the megabyte. By default glibc maps each of them anew, and a
    turn then spends a fifth of its time on page faults. Does nothing where the C library has no
    such setting.
    """
    trim_threshold, mmap_threshold = -1, -3  # malloc.h
    with contextlib.suppress(OSError, AttributeError):
        libc = ctypes.CDLL(None)
        libc.mallopt(mmap_threshold, 32 << 20)  # the largest value glibc takes
        libc.mallopt(trim_threshold, 512 << 20)
