"""Accelerators: settings for the same bits every time, the identity of a GPU, memory, tensors there and back.

Copying ordinary memory to a device makes the host wait, and so does every single copy back: tensors are sent through
pinned memory, and come back in one copy.
"""

import contextlib
import ctypes
import functools
import gc
import math
import os
import re
import resource
import sys
import time
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
import psutil
import torch
from torch import Tensor

from flray.errors import ConfigError, FlrayError

T = TypeVar("T")
READ_SECONDS = 0.1
"""So often a process reads its own usage, which takes as long as a step of a small network."""


def capacity(device: torch.device, share: float = 1.0) -> float:
    """Return the bytes that a process may fill on a device; no limit on a CPU, where samples lie already.

    Parameters
    ----------
    device : torch.device
        The device that it computes on.
    share : float
        Its share of the device.
    """
    if device.type != "cuda":
        return math.inf
    return share * torch.cuda.get_device_properties(device).total_memory


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


def memory_lately() -> tuple[int, int]:
    """Return this process's resident memory and its peak, as they were a moment ago at most."""
    return _memory_at(math.floor(time.perf_counter() / READ_SECONDS))


@functools.lru_cache(maxsize=1)
def _memory_at(moment: int) -> tuple[int, int]:
    return resident_bytes(), peak_bytes()


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


GpuIdentity: TypeAlias = dict[str, str]
_DRIVER = Path("/proc/driver/nvidia/version")

MIXED = "client actors compute on several kinds of GPU, so that the last bits depend on which actor runs which client"
ADVICE = (
    "resources.gpu_model names one of the models, or is any where the last bits do not matter; of one "
    "model, the nodes need one driver and one build of torch"
)


FAST = (
    "resources.bits: fast: on a GPU other runs of this seed, this one after a kill, and flray verify may have other "
    "last bits"
)


def gpu_identity(device: torch.device) -> GpuIdentity | None:
    """Return the properties of a GPU that decide the last bits of results; None for a CPU.

    Parameters
    ----------
    device : torch.device
        The device that a process computes on.
    """
    if device.type != "cuda":
        return None
    properties = torch.cuda.get_device_properties(device)
    return {
        "model": properties.name,
        "capability": f"{properties.major}.{properties.minor}",
        "multiprocessors": str(properties.multi_processor_count),  # fewer in a part of a GPU
        "driver": _driver(),
        "cuda": str(torch.version.cuda),
        "cudnn": str(torch.backends.cudnn.version()),
    }


def distinct(found: Iterable[GpuIdentity | None]) -> list[GpuIdentity]:
    """Return each identity once, in a fixed order, without the CPUs among them."""
    unique = {tuple(sorted(one.items())) for one in found if one is not None}
    return [dict(one) for one in sorted(unique)]


def check_kinds(found: Sequence[GpuIdentity], gpu_model: str, precision: str, bits: str) -> str:
    """Refuse several kinds of GPU, unless they are allowed, and one that would emulate bfloat16, with other bits.

    Parameters
    ----------
    found : sequence of dict
        The kinds of GPU that a federation computes on, each once.
    gpu_model, precision, bits : str
        The settings ``resources.gpu_model``, ``local.precision`` and ``resources.bits``.

    Returns
    -------
    str
        A line on what fast bits give up; empty if nothing.

    Raises
    ------
    FlrayError
        Naming the GPUs.
    """
    if len(found) > 1 and gpu_model != "any":
        raise FlrayError(f"{MIXED}: {_words(found)}; {ADVICE}")
    for gpu in found if precision == "bfloat16" else ():
        if int(gpu["capability"].partition(".")[0]) < 8:
            raise ConfigError(
                "experiment.local.precision",
                precision,
                f"{gpu['model']} has compute capability {gpu['capability']}, and bfloat16 needs 8.0 (Ampere) or "
                "higher; write float32, or name another GPU in resources.gpu_model",
            )
    return FAST if found and bits == "fast" else ""


def difference(began: Sequence[GpuIdentity], here: Sequence[GpuIdentity]) -> str:
    """Describe how GPUs differ from those that a run began on, in a few words; empty if they do not."""
    if distinct(began) == distinct(here):
        return ""
    return f"began on {_words(began)}, and here computes on {_words(here)}"


def _words(gpus: Sequence[GpuIdentity]) -> str:
    return (
        " and ".join(
            f"{gpu.get('model')} (driver {gpu.get('driver')}, CUDA {gpu.get('cuda')}, cuDNN {gpu.get('cudnn')})"
            for gpu in gpus
        )
        or "no GPU"
    )


def _driver() -> str:
    """Return the version of the driver; where the system does not tell, that of the CUDA it supports."""
    with contextlib.suppress(OSError):
        if found := re.search(r"\s(\d+\.\d+(?:\.\d+)?)\s", _DRIVER.read_text()):
            return found[1]
    supported = getattr(torch._C, "_cuda_getDriverVersion", lambda: "unknown")()
    return f"CUDA {supported}"


CONTEXT_BYTES = 512 * 2**20
"""Bytes of a GPU that a process takes besides its tensors: CUDA's context and the libraries' workspaces."""


def make_repeatable(
    device: torch.device, *, tf32: bool = False, share: float = 1.0, fast: bool = False
) -> None:
    """Set up this process for repeatable results on a device; call it before the first computation there.

    Convolutions, products and every other operation that has a repeatable form take it. One that
    has none still runs, and torch says so in a warning. Does nothing on a CPU.

    Parameters
    ----------
    device : torch.device
        The device of this process.
    tf32 : bool
        Whether float32 products and convolutions may drop to 10 bits of mantissa.
    share : float
        Share of the GPU's memory that this process may fill. With a fixed share, a library's choice
        of algorithms does not depend on other processes.
    fast : bool
        Whether the fastest forms are taken instead, which are found by trying.
    """
    if device.type != "cuda":
        return
    # Read when cuBLAS is first used: it has no repeatable products without it, in a later run of this process either.
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(not fast, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.benchmark = fast
    torch.backends.cudnn.deterministic = not fast
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    if 0 < share < 1:
        total = torch.cuda.get_device_properties(device).total_memory
        fraction = max(share - CONTEXT_BYTES / total, share / 2)
        torch.cuda.set_per_process_memory_fraction(fraction, device)


ALIGN = 64
"""Alignment in bytes of tensors in a common buffer."""


def from_numpy(array: np.ndarray[Any, Any]) -> Tensor:
    """Return an array as a tensor in the same memory, without torch's warning if it is read-only.

    Parameters
    ----------
    array : ndarray
        Arrays from Ray's object store are read-only, so nobody may write to the tensor.
    """
    _accept_read_only_memory()
    return torch.from_numpy(array)


@functools.cache
def _accept_read_only_memory() -> None:
    warnings.filterwarnings("ignore", message=".*(NumPy array|given buffer) is not writable.*")


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device; from the host it is sent through pinned memory, and nobody waits.

    Parameters
    ----------
    tensor : Tensor
        If it is on the device already, it is returned itself.
    device : torch.device
        The device that needs it.
    """
    if device.type == "cpu" or tensor.device.type != "cpu":
        return tensor.to(device)
    return tensor.pin_memory().to(device, non_blocking=True)


def to_host(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Return tensors on the CPU; those of one device come in one copy.

    Parameters
    ----------
    tensors : sequence of Tensor
        Of any shapes and dtypes. Those of the CPU are returned themselves.
    """
    away = [i for i, tensor in enumerate(tensors) if tensor.device.type != "cpu"]
    found = list(tensors)
    if not away:
        return found
    bytes_of = [tensors[i].detach().reshape(-1).view(torch.uint8) for i in away]
    parts = torch.cat(bytes_of).cpu().split([len(part) for part in bytes_of])
    for i, part in zip(away, parts, strict=True):
        # A copy, because a part of the buffer may begin in the middle of a number.
        found[i] = part.clone().view(tensors[i].dtype).view(tensors[i].shape)
    return found


def view(flat: Tensor, offset: int, dtype: torch.dtype, shape: Sequence[int]) -> Tensor:
    """Return the part of a buffer of bytes that holds a tensor, as this tensor.

    Parameters
    ----------
    flat : Tensor of uint8
        The buffer.
    offset : int
        Where the tensor begins.
    dtype, shape : torch.dtype, sequence of int
        Of the tensor.
    """
    end = offset + math.prod(shape) * dtype.itemsize
    return flat[offset:end].view(dtype).view(tuple(shape))
