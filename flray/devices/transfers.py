"""Tensors between host and device: without waiting on the way there, in one copy on the way back.

Copying ordinary memory to a device makes the host wait, and so does every single copy back.
"""

import functools
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

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
    warnings.filterwarnings("ignore", message=".*NumPy array is not writable.*")
    warnings.filterwarnings("ignore", message=".*given buffer is not writable.*")


def to_device(tensor: Tensor, device: torch.device) -> Tensor:
    """Return a tensor on a device; from the host it is sent through pinned memory, and nobody waits.

    Parameters
    ----------
    tensor : Tensor
        Where it already is on the device, it is returned itself.
    device : torch.device
        Where it is needed.
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
    sizes = [aligned(tensors[i]) for i in away]
    flat = torch.zeros(sum(sizes), dtype=torch.uint8, device=tensors[away[0]].device)
    offset = 0
    for i, size in zip(away, sizes, strict=True):
        view(flat, offset, tensors[i].dtype, tensors[i].shape).copy_(tensors[i])
        offset += size
    host, offset = flat.cpu(), 0
    for i, size in zip(away, sizes, strict=True):
        found[i] = view(host, offset, tensors[i].dtype, tensors[i].shape)
        offset += size
    return found


def aligned(tensor: Tensor) -> int:
    """Return the bytes that a tensor takes in a common buffer."""
    return -(-tensor.numel() * tensor.element_size() // ALIGN) * ALIGN


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
    count = 1
    for size in shape:
        count *= size
    return flat[offset : offset + count * dtype.itemsize].view(dtype).view(tuple(shape))
