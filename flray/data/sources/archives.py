"""Data sets that come as a few files from their makers' sites: found, fetched if need be, decoded once, kept."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field

from flray.data.sources.cache import decoded
from flray.data.sources.download import Progress
from flray.data.types import Array, Arrays
from flray.errors import DataError
from flray.registry import datasets

Place = Annotated[
    str | None,
    Field(
        description="folder of the files, of most image sets their zip archive too, default "
        "DATA/archives/NAME (DATA: $FLRAY_DATA or the cache folder, see flray doctor)"
    ),
]


@dataclass(frozen=True)
class Download:
    """A file at its maker's site.

    Attributes
    ----------
    url, md5 : str
        Where, and its checksum.
    unpack : bool
        Whether it is an archive of the files.
    """

    url: str
    md5: str
    unpack: bool = False


announce: ContextVar[Progress] = ContextVar("announce", default=lambda line: None)
"""Is told in one line when files are decoded."""


@dataclass(frozen=True)
class Source:
    """The origin of a data set that does not come with flray; the user puts its files in place.

    Attributes
    ----------
    name : str
        The name of the data set.
    where : str
        The place to get the files from, which the message names.
    """

    name: str
    where: str

    @property
    def fetched(self) -> bool:
        """Whether `flray data get` downloads it."""
        return False

    def present(self, root: Path) -> bool:
        """Whether there is something at the usual place of a data cache."""
        return (root / "archives" / self.name).exists()

    def get(self, root: Path, progress: Progress) -> None:
        """Fetch it if that is possible and need be, and decode it.

        Raises
        ------
        DataError
            If it is not there and cannot be fetched.
        """
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
        From the folder and the set of files to the arrays.
    downloads : callable
        Returns the files that `flray data get` fetches; none for sets that must be fetched by hand.
    elsewhere : sequence of Path
        Other folders to look in, such as a system package's.
    """

    layouts: Sequence[Sequence[str]]
    decode: Callable[[Path, Sequence[str]], Arrays]
    downloads: Callable[[], Sequence[Download]] = tuple
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
            return self.decode(folder, names)
        except DataError:
            raise
        except Exception as error:
            raise DataError(
                f"{self.name}: the files in {folder} cannot be decoded ({type(error).__name__}: "
                f"{error}); one of {', '.join(names)} is damaged or of another data set; fetch "
                "them again"
            ) from error

    @property
    def fetched(self) -> bool:
        """Whether `flray data get` downloads it."""
        return self.downloads is not tuple

    def present(self, root: Path) -> bool:
        """Whether the files are at one of the usual places."""
        return self.has(root, None)

    def has(self, root: Path, path: str | None) -> bool:
        """Whether the files are at a place, or without one at a usual place."""
        try:
            self._find(root, path)
        except DataError:
            return False
        return True

    def get(self, root: Path, progress: Progress) -> None:
        """Fetch the files, unless they are there, and decode them."""
        if not self.has(root, None):
            self._download(root / "archives" / self.name, progress)
        self.load(root)

    def _download(self, folder: Path, progress: Progress) -> None:
        downloads = self.downloads()
        if not downloads:
            raise DataError(self._absent(folder))
        from torchvision.datasets.utils import download_and_extract_archive, download_url

        for one in downloads:
            progress(f"{self.name}: fetching {one.url}")
            try:
                if one.unpack:
                    download_and_extract_archive(one.url, str(folder), md5=one.md5)
                else:
                    download_url(one.url, str(folder), md5=one.md5)
            except Exception as error:
                raise DataError(
                    f"{self.name}: {one.url} could not be fetched ({error}); fetch it elsewhere "
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
        some = ", ".join(missing[:3]) + (
            f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        )
        how = (
            f"`flray data get {self.name}` fetches it, or put the files there"
            if self.fetched
            else "put the files there"
        )
        return (
            f"data set {self.name} is not there: {folder} lacks {some}. It comes from "
            f"{self.where}; {how} (or give their folder as data.path)"
        )


def expect(path: Path, holds: bool, found: str, allowed: str) -> None:
    """Refuse a file with unexpected content.

    Raises
    ------
    DataError
        Naming the file, the content found and the content allowed.
    """
    if not holds:
        raise DataError(f"{path}: {found}, expected {allowed}; fetch the file again")


def whole_numbers(path: Path, values: ArrayLike) -> NDArray[np.int64]:
    """Return labels as int64 of the same shape.

    Raises
    ------
    DataError
        If they are not whole numbers.
    """
    array = np.asarray(values)
    known = array.dtype.kind in "iufb" and bool(np.isfinite(array).all())
    expect(
        path,
        known and bool((array == np.rint(array)).all()),
        f"labels of {array.dtype} that are no whole numbers",
        "class numbers",
    )
    labels: NDArray[np.int64] = array.astype(np.int64)
    return labels


def labelled_images(
    path: Path, images: Array, labels: ArrayLike, shape: tuple[int, ...], classes: int
) -> tuple[Array, NDArray[np.int64]]:
    """Return a file's images and labels in one piece each.

    Parameters
    ----------
    path : Path
        The file, which messages name.
    images : ndarray [n, ...]
        The images as read from the file.
    labels : array_like [n]
        Numbers, or a column of them.
    shape : tuple of int
        The shape of an image.
    classes : int
        The number of classes; labels are 0 to ``classes - 1``.

    Raises
    ------
    DataError
        If images or labels do not have this form, or their numbers differ.
    """
    y = whole_numbers(path, labels)
    expect(
        path,
        images.dtype == np.uint8 and images.shape[1:] == shape and y.shape == images.shape[:1],
        f"images of {images.dtype} {list(images.shape)} and labels {list(y.shape)}",
        f"uint8 {['n', *shape]} and n labels".replace("'", ""),
    )
    check_labels(path, y, classes)
    return np.ascontiguousarray(images), y


def check_labels(path: Path, labels: Array, classes: int) -> None:
    """Refuse labels outside 0 to `classes` - 1, and files that lack a class.

    Raises
    ------
    DataError
        Naming the file and the label.
    """
    expect(path, bool(len(labels)), "no samples", "at least one")
    expect(
        path,
        int(labels.min()) >= 0 and int(labels.max()) < classes,
        f"a label {int(labels.min()) if labels.min() < 0 else int(labels.max())}",
        f"0 to {classes - 1}",
    )


FILES: dict[str, Source] = {}
"""Every data set of this kind by name; the modules that define them put them here."""
_Kind = TypeVar("_Kind", bound=Source)


def register_source(files: _Kind) -> _Kind:
    """Put a data set's files where `flray data get` and `flray data list` find them."""
    FILES[files.name] = files
    return files
