"""Pickled arrays, read without running anything: some archives of research data exist in no other form."""

from __future__ import annotations

import importlib
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from flray.errors import DataError

# What a pickle of arrays, numbers, texts, tuples, lists and dicts refers to, by whatever numpy wrote it.
_ALLOWED: dict[tuple[str, str], Any] = {
    **{(f"numpy.{core}.multiarray", name): getattr(importlib.import_module("numpy._core.multiarray"), name)
       for core in ("core", "_core") for name in ("_reconstruct", "scalar")},
    **{(f"numpy.{core}.numeric", "_frombuffer"): importlib.import_module("numpy._core.numeric")._frombuffer
       for core in ("core", "_core")},
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class _ArraysOnly(pickle.Unpickler):
    """Builds arrays and plain containers; any other reference ends it before anything is called."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("_codecs", "encode"):
            return _encode
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}")
        return _ALLOWED[module, name]


def _encode(text: str, encoding: str) -> bytes:
    if encoding != "latin1":
        raise pickle.UnpicklingError(f"it encodes to {encoding!r}")
    return text.encode("latin1")


def read_pickled_arrays(path: Path) -> Any:
    """Return what a pickle of arrays and plain containers holds; nothing in it is executed.

    Parameters
    ----------
    path : Path
        May come from Python 2; its byte strings are read as Latin-1.

    Raises
    ------
    DataError
        If the file is missing, truncated, or refers to anything but numeric arrays.
    """
    try:
        with path.open("rb") as file:
            content = _ArraysOnly(file, encoding="latin1").load()
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except Exception as error:
        raise DataError(f"{path}: not a pickle of plain arrays: {error}; nothing in it was run. Fetch the file again "
                        "from its source") from None
    _refuse_objects(path, content)
    return content


def _refuse_objects(path: Path, content: Any) -> None:
    if isinstance(content, np.ndarray) and content.dtype.hasobject:
        raise DataError(f"{path}: an array of objects; arrays of numbers are needed")
    parts = content.values() if isinstance(content, dict) else content if isinstance(content, (list, tuple)) else ()
    for part in parts:
        if isinstance(part, (np.ndarray, dict, list, tuple)):
            _refuse_objects(path, part)
