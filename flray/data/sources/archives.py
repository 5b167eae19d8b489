"""Data sets that come as a few files from their makers' sites: found, fetched if need be, decoded once, kept."""

import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, TypeVar

import numpy as np
from pydantic import Field

from flray.data.sources.cache import decoded
from flray.data.sources.download import Progress
from flray.data.types import Arrays
from flray.errors import DataError, brief
from flray.registry import datasets

Place = Annotated[
    str | None,
    Field(
        description="folder of the files, of most image sets their zip archive too, default "
        "DATA/archives/NAME (DATA: $FLRAY_DATA or the cache folder, see flray doctor)"
    ),
]


announce: ContextVar[Progress] = ContextVar("announce", default=lambda line: None)
"""Is told in one line when files are decoded."""


@dataclass(frozen=True)
class Source:
    """The origin of a data set that does not come with flray.

    Attributes
    ----------
    name : str
        The name of the data set.
    where : str
        The place to get the files from, which the message names.
    fetch : callable, optional
        Fetches it into a data cache; without, the user puts its files in place.
    there : callable, optional
        Whether it is in a data cache; without, whether something is at the usual place.
    """

    name: str
    where: str
    fetch: Callable[[Path, Progress], None] | None = field(default=None, kw_only=True)
    there: Callable[[Path], bool] | None = field(default=None, kw_only=True)

    @property
    def fetched(self) -> bool:
        """Whether `flray data get` downloads it."""
        return self.fetch is not None

    def present(self, root: Path) -> bool:
        """Whether it is at the usual place of a data cache."""
        if self.there is not None:
            return self.there(root)
        return (root / "archives" / self.name).exists()

    def get(self, root: Path, progress: Progress) -> None:
        """Fetch it if that is possible and need be, and decode it.

        Raises
        ------
        DataError
            If it is not there and cannot be fetched.
        """
        if self.fetch is not None:
            return self.fetch(root, progress)
        token = announce.set(progress)
        try:
            datasets.call(self.name, root)
        finally:
            announce.reset(token)


@dataclass(frozen=True)
class Files(Source):
    """A data set that is a few files.

    Attributes
    ----------
    layouts : sequence of sequence of str
        Sets of files, relative to the folder; the first set that is complete is read.
    decode : callable
        From the folder and the set of files to arrays: images ``PART_x`` and labels ``PART_y``.
    classes : int
        The number of classes; labels are 0 to ``classes - 1``.
    downloads : mapping of str to str
        Addresses that `flray data get` fetches, with their MD5, and unpacks if they are archives.
    elsewhere : sequence of Path
        Other folders to look in, such as a system package's.
    """

    layouts: Sequence[Sequence[str]]
    decode: Callable[[Path, Sequence[str]], Arrays]
    classes: int
    downloads: Mapping[str, str] = field(default_factory=dict)
    elsewhere: Sequence[Path] = ()

    def load(self, root: Path, path: str | None = None) -> Arrays:
        """Return the arrays, decoding the files at the first use and whenever they have changed.

        Raises
        ------
        DataError
            If files are missing or cannot be decoded.
        """
        folder, names = self._find(root, path)
        digest = hashlib.sha256()
        for name in names:
            facts = (folder / name).stat()
            digest.update(os.fsencode(f"{folder / name}|{facts.st_size}|{facts.st_mtime_ns}"))
        return decoded(
            root / self.name / digest.hexdigest()[:16],
            self.name,
            lambda _: self._decode(folder, names),
        )

    def _decode(self, folder: Path, names: Sequence[str]) -> Arrays:
        try:
            arrays = self.decode(folder, names)
            for name in [name for name in arrays if name.endswith("_x")]:
                x, y = arrays[name], arrays[name[:-1] + "y"]
                kind = f"{x.dtype} images {list(x.shape)} with {y.dtype} labels {list(y.shape)}"
                if x.dtype != np.uint8 or x.ndim != 4 or y.shape != x.shape[:1] or not len(y):
                    raise ValueError(f"{kind}, and a label each is needed")
                if y.dtype.kind not in "iufb" or not np.isin(y, np.arange(self.classes)).all():
                    raise ValueError(f"{kind} that are not all of 0 to {self.classes - 1}")
                arrays |= {name: np.ascontiguousarray(x), name[:-1] + "y": y.astype(np.int64)}
            return arrays
        except DataError:
            raise
        except Exception as error:
            raise DataError(
                f"{self.name}: the files in {folder} cannot be decoded ({brief(error)}); one of "
                f"{', '.join(names)} is damaged or of another data set; fetch them again"
            ) from error

    @property
    def fetched(self) -> bool:
        """Whether `flray data get` downloads it."""
        return bool(self.downloads)

    def present(self, root: Path) -> bool:
        """Whether the files are at one of the usual places."""
        try:
            self._find(root, None)
        except DataError:
            return False
        return True

    def get(self, root: Path, progress: Progress) -> None:
        """Fetch the files, unless they are there, and decode them."""
        if not self.present(root):
            self._download(root / "archives" / self.name, progress)
        self.load(root)

    def _download(self, folder: Path, progress: Progress) -> None:
        if not self.downloads:
            raise DataError(self._absent(folder))
        from torchvision.datasets.utils import download_and_extract_archive, download_url

        for url, md5 in self.downloads.items():
            progress(f"{self.name}: fetching {url}")
            unpacked = url.endswith((".tar.gz", ".zip"))
            try:
                (download_and_extract_archive if unpacked else download_url)(url, folder, md5=md5)
            except Exception as error:
                raise DataError(
                    f"{self.name}: {url} could not be fetched ({error}); fetch it elsewhere "
                    f"and put it into {folder}"
                ) from None

    def _find(self, root: Path, path: str | None) -> tuple[Path, Sequence[str]]:
        own = Path(path).expanduser() if path else root / "archives" / self.name
        for folder in (own, *(() if path else self.elsewhere)):
            for names in self.layouts:
                if all((folder / name).is_file() for name in names):
                    return folder, names
        raise DataError(self._absent(own))

    def _absent(self, folder: Path) -> str:
        missing = [name for name in self.layouts[0] if not (folder / name).is_file()]
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        how = f"`flray data get {self.name}` fetches it, or " if self.fetched else ""
        return (
            f"data set {self.name} is not there: {folder} lacks {', '.join(missing[:3])}{more}. It "
            f"comes from {self.where}; {how}put the files there (or give their folder as data.path)"
        )


FILES: dict[str, Source] = {}
"""Every data set of this kind by name; the modules that define them put them here."""
_Kind = TypeVar("_Kind", bound=Source)


def register_source(files: _Kind) -> _Kind:
    """Put a data set's files where `flray data get` and `flray data list` find them."""
    FILES[files.name] = files
    return files
