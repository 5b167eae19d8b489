"""Fetching data sets by name, as ``flray data get NAME`` does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from flray.data.datasets.digit_sources import SOURCES, Source, get_source
from flray.data.datasets.digits5 import DIGITS5_SOURCES, load_or_build_digits5
from flray.data.sources.archives import FILES
from flray.data.sources.cache import data_root
from flray.data.sources.download import Progress
from flray.errors import DataError, nearest

FETCHABLE: dict[str, tuple[str, ...]] = {
    "digits5-local": DIGITS5_SOURCES,
    "mnist": ("mnist",),
    "usps": ("usps",),
}


def get(
    name: str,
    root: Path | None = None,
    progress: Progress = print,
    sources: Mapping[str, Source] = SOURCES,
) -> None:
    """Fetch a data set into the cache and build it; what is already there and sound is kept.

    Interrupted, or without a network for one of several files, the next call goes on where this one
    stopped.

    Parameters
    ----------
    name : str
        One of `FETCHABLE` or `flray.data.sources.archives.FILES`.
    root : Path, optional
        Folder of the data cache, default `flray.data.sources.cache.data_root()`.
    progress : callable
        Told in one line each what is being done.
    sources : mapping of str to Source
        Where the parts come from.

    Raises
    ------
    DataError
        If the name is unknown or a file cannot be fetched; the message says what to do. All files
        are tried first, and each that fails is in the message.
    """
    root = root or data_root()
    if name in FILES:
        FILES[name].get(root, progress)
        progress(f"{name}: ready in {root}")
        return
    if name not in FETCHABLE:
        known = sorted([*FETCHABLE, *FILES])
        raise DataError(
            f"data set {name!r} cannot be fetched{nearest(name, known)}; one of {', '.join(known)}"
        )
    failures = []
    for source in FETCHABLE[name]:
        try:
            get_source(source, root, progress, sources)
        except DataError as error:
            failures.append(str(error))
    if failures:
        raise DataError("; ".join(failures))
    if name == "digits5-local":
        progress("digits5-local: building five domains")
        load_or_build_digits5(root, 0, mend=True)
    progress(f"{name}: ready in {root}")
