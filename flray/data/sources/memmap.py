"""How large arrays lie in memory and in files."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import numpy as np

from flray.data.arrays import Array

_BLOCK = 2**26  # bytes that are read at a time


def backing_file(array: Array) -> str | None:
    """Return the file that holds exactly this memory-mapped array and no more, or None."""
    base: Any = array
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        base = base.base
    if (
        isinstance(base, np.memmap)
        and base.filename is not None
        and base.shape == array.shape
        and base.ctypes.data == array.ctypes.data
        and array.flags.c_contiguous
    ):
        return str(base.filename)
    return None


def join_parts(parts: Sequence[Array]) -> Array | None:
    """Return the array whose consecutive parts these are, if they are all there is of it."""
    base = parts[0].base
    if (
        not isinstance(base, np.ndarray)
        or base.dtype != parts[0].dtype
        or not base.flags.c_contiguous
        or base.nbytes != sum(part.nbytes for part in parts)
    ):
        return None
    place = base.ctypes.data
    for part in parts:
        if (
            part.base is not base
            or not part.flags.c_contiguous
            or (len(part) and part.ctypes.data != place)
        ):
            return None
        place += part.nbytes
    return np.asarray(base).reshape(-1, *parts[0].shape[1:])


def add_bytes(digest: hashlib._Hash, array: Array) -> None:
    """Add an array's bytes as if it were contiguous, without a copy of all of it."""
    step = max(1, _BLOCK // max(1, array[:1].nbytes))
    for start in range(0, len(array), step):
        digest.update(np.ascontiguousarray(array[start : start + step]).data)
