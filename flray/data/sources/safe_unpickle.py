"""Pickled arrays, read without running anything: some archives of research data exist in no other form."""

import importlib
import io
import pickle
from pathlib import Path
from typing import Any

import numpy as np

from flray.errors import DataError
from flray.files.border import open_file

_CORE = importlib.import_module("numpy._core.multiarray")
_FROM_BUFFER = importlib.import_module("numpy._core.numeric")._frombuffer
_DEEPEST = 20  # containers within containers


class _Encode:
    """How Python 3 writes bytes in old protocols. Without attributes, so that a pickle cannot set any."""

    __slots__ = ()

    def __call__(self, text: str, encoding: str) -> bytes:
        if encoding != "latin1":
            raise pickle.UnpicklingError(f"it encodes to {encoding!r}")
        return text.encode("latin1")


class _NoBytes:
    """How old protocols write an empty array's bytes."""

    __slots__ = ()

    def __call__(self) -> bytes:
        return b""


class _FromBuffer:
    """How protocol 5 writes arrays. Without attributes, too."""

    __slots__ = ()

    def __call__(self, *arguments: Any) -> Any:
        return _FROM_BUFFER(*arguments)


# What a pickle of arrays, numbers, texts, tuples, lists and dicts refers to, by whatever numpy
# wrote it. None of these can be given attributes or another state: a function of Python could, and
# would then be altered for everyone.
_ALLOWED: dict[tuple[str, str], Any] = {
    **{
        (f"numpy.{core}.multiarray", name): getattr(_CORE, name)
        for core in ("core", "_core")
        for name in ("_reconstruct", "scalar")
    },
    **{(f"numpy.{core}.numeric", "_frombuffer"): _FromBuffer() for core in ("core", "_core")},
    ("_codecs", "encode"): _Encode(),
    ("__builtin__", "bytes"): _NoBytes(),
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
}


class _ArraysOnly(pickle.Unpickler):
    """Builds arrays and plain containers; any other reference ends it before anything is called."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in _ALLOWED:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}")
        return _ALLOWED[module, name]


def read_pickled_arrays(path: Path, content: bytes | None = None) -> Any:
    """Return the content of a pickle of arrays and plain containers, without executing any of it.

    Parameters
    ----------
    path : Path
        May come from Python 2; its byte strings are read as Latin-1.
    content : bytes, optional
        The file's content, if it lies in an archive.

    Raises
    ------
    DataError
        If the file is missing, truncated, or holds anything but arrays of numbers or texts,
        numbers, texts, and tuples, lists and dicts of these.
    """
    try:
        with open_file(path) if content is None else io.BytesIO(content) as file:
            found = _ArraysOnly(file, encoding="latin1").load()
    except DataError:
        raise
    except OSError as error:
        raise DataError(f"{path}: cannot be read: {error.strerror}") from None
    except Exception as error:
        raise DataError(
            f"{path}: not a pickle of plain arrays: {' '.join(str(error).split())}; nothing in it "
            "was run. Fetch the file again from its source"
        ) from None
    _check(path, found, 0)
    return found


def _check(path: Path, content: Any, depth: int) -> None:
    """Refuse values that are not plain: for example unresolved references, and containers that contain themselves."""
    if depth > _DEEPEST:
        raise DataError(
            f"{path}: more than {_DEEPEST} containers within each other; arrays of numbers are needed"
        )
    if type(content) is np.ndarray:
        if content.dtype.hasobject and any(type(one) is not str for one in content.ravel()):
            raise DataError(f"{path}: an array of objects; arrays of numbers or texts are needed")
    elif type(content) in (list, tuple, dict):
        parts = [*content.keys(), *content.values()] if isinstance(content, dict) else content
        for part in parts:
            # Labels and names, of which there are many.
            if type(part) not in (int, float, str, bytes):
                _check(path, part, depth + 1)
    elif not (
        content is None
        or type(content) in (int, float, complex, bool, str, bytes)
        or (isinstance(content, np.generic) and not content.dtype.hasobject)
    ):
        raise DataError(f"{path}: holds a {type(content).__name__}; arrays of numbers are needed")
