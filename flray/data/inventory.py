"""All data sets: their origin and presence, and the download by ``flray data get NAME``."""

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from flray.data.datasets.digits5 import FETCHABLE as FETCHABLE
from flray.data.datasets.stand_in import FORMS
from flray.data.sources.archives import FILES, Progress
from flray.data.sources.cache import MANIFEST, data_root
from flray.errors import DataError, nearest
from flray.registry import datasets


def get(name: str, root: Path | None = None, progress: Progress = print) -> None:
    """Fetch a data set into the cache and build it; intact files that are there already stay.

    If a call is interrupted, or one of several files cannot be fetched, the next call continues with
    the missing files.

    Parameters
    ----------
    name : str
        One of `flray.data.sources.archives.FILES`.
    root : Path, optional
        Folder of the data cache, default `flray.data.sources.cache.data_root()`.
    progress : callable
        Called with a line on each step.

    Raises
    ------
    DataError
        If the name is unknown or a file cannot be fetched. The message names the remedy and every
        file that failed, because all files are tried first.
    """
    datasets.load()
    if name not in FILES:
        raise DataError(
            f"data set {name!r} cannot be fetched{nearest(name, FILES)}; one of {', '.join(sorted(FILES))}"
        )
    root = root or data_root()
    FILES[name].get(root, progress)
    progress(f"{name}: ready in {root}")


@dataclass(frozen=True)
class Entry:
    """A data set as a user has to see it.

    Attributes
    ----------
    name, what : str
        Registered name, and one sentence.
    source : str
        The origin of the data set.
    todo : str
        The steps to get it; empty for sets that come with flray.
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


def entry(name: str, root: Path, given: Collection[str] = ()) -> Entry:
    """Return one registered data set, by the folder of the data cache and the options that are given."""
    item = datasets.get(name)
    what = (item.__doc__ or "").strip().split("\n")[0]
    if files := FILES.get(name):
        by_hand = f"put it into DATA/archives/{name} (or data.path)"
        todo = f"flray data get {name}" if files.fetched else by_hand
        return Entry(name, what, files.where, todo, files.present(root))
    if name == "eeg":
        found = (root / name).glob(f"[!.]*/{MANIFEST}")  # of a source and a passband each
        kept = {path.parent.name.partition("-")[0] for path in found}
        source = "MOABB, which downloads the four sets at first use"
        return Entry(name, what, source, "pip install 'flray[eeg]'", len(kept) >= 4)
    options = datasets.params(name).model_fields.items()
    required = [one for one, field in options if field.is_required() and one not in given]
    if required:
        todo = f"give data.{' and data.'.join(required)}"
        return Entry(name, what, "a file of your own", todo, False)
    own = not getattr(item, "__module__", "").startswith("flray.")
    return Entry(name, what, "your own" if own else "comes with flray", "", True)


def stood_in_for(root: Path | None = None) -> set[str]:
    """Return the data sets that are not here and whose form ``stand-in`` has."""
    return {name for name in FORMS if not entry(name, root or data_root()).present}
