import shutil
from pathlib import Path

import numpy as np
import pytest

from flray.data import federate, get, load_dataset
from flray.data.datasets.digits5 import RECIPE, build_digits5
from flray.data.sources.cache import read_arrays
from flray.data.sources.images import resize
from flray.errors import DataError
from tests.data.conftest import N_MNIST, N_OPTDIGITS

Arrays = dict[str, np.ndarray]


@pytest.fixture
def sources(built: Path) -> dict[str, Arrays]:
    return {name: read_arrays(built / name, name) for name in ("mnist", "usps", "optdigits")}


def test_every_domain_has_as_many_samples_as_usps(built: Path) -> None:
    dataset = load_dataset("digits5-local", root=built)
    assert [(d.name, d.origin) for d in dataset.domains] == [
        ("mnist", "real"),
        ("usps", "real"),
        ("optdigits", "real"),
        ("synth", "rendered"),
        ("mnistm", "composed"),
    ]
    # 80 % and 20 % of the 50 samples in the small USPS archive; optdigits keeps its official parts.
    sizes = {d.name: (len(d.train_y), len(d.test_y)) for d in dataset.domains}
    assert sizes == {
        "mnist": (40, 10),
        "usps": (40, 10),
        "optdigits": (N_OPTDIGITS, 1797),
        "synth": (40, 10),
        "mnistm": (40, 10),
    }
    for domain in dataset.domains:
        assert domain.train_x.shape[1:] == domain.test_x.shape[1:] == (3, 32, 32)
        assert domain.train_x.dtype == domain.test_x.dtype == np.uint8
    assert dataset.public is not None
    assert dataset.public.shape == (5000, 3, 32, 32)
    assert len(federate(dataset, "domains", {}, 0).clients) == 5


def test_mnist_and_mnistm_have_different_digits(sources: dict[str, Arrays]) -> None:
    # Every digit is one grey level, which |crop - digit| shows at any place: the level is the
    # digit's number.
    for part, n in N_MNIST.items():
        sources["mnist"][f"{part}_x"] = np.repeat(np.arange(n, dtype=np.uint8), 784).reshape(
            n, 28, 28
        )
        sources["mnist"][f"{part}_y"] = np.arange(n) % 10
    arrays = build_digits5(sources, 0)
    sources["mnist"] = {
        name: values * (0 if name.endswith("x") else 1) for name, values in sources["mnist"].items()
    }
    crops = build_digits5(sources, 0)
    for part, n in (("train", 40), ("test", 10)):
        plain = arrays[f"mnist_{part}_x"][:, 0, 0, 0].astype(np.int64)
        assert len(set(plain.tolist())) == n
        assert np.array_equal(plain % 10, arrays[f"mnist_{part}_y"])
        # Where the crop is brighter than any number, crop minus composition is the number.
        background, composed = (x[f"mnistm_{part}_x"].astype(np.int64) for x in (crops, arrays))
        number = np.array(
            [
                np.median((b - c)[b > 130]) if (b > 130).any() else -1
                for b, c in zip(background, composed, strict=True)
            ]
        )
        seen = number[number >= 0].astype(np.int64)
        assert len(seen) > n / 2
        assert set(seen.tolist()).isdisjoint(plain.tolist())
        assert np.array_equal(seen % 10, arrays[f"mnistm_{part}_y"][number >= 0])


def test_usps_is_split_without_loss(sources: dict[str, Arrays]) -> None:
    arrays = build_digits5(sources, 0)
    pooled = np.concatenate([sources["usps"]["train_x"], sources["usps"]["test_x"]])
    made = np.concatenate([arrays["usps_train_x"], arrays["usps_test_x"]])
    assert {x.tobytes() for x in made[:, 1]} == {x.tobytes() for x in resize(pooled, 32)}
    assert len(made) == len(pooled) == 50


def test_the_seed_decides_and_is_kept(built: Path) -> None:
    first, again, other = (
        load_dataset("digits5-local", {"seed": seed}, built) for seed in (0, 0, 3)
    )
    assert first.fingerprint == again.fingerprint != other.fingerprint
    assert (built / "digits5-local" / f"recipe{RECIPE}-seed3" / "manifest.json").exists()
    for a, b in zip(first.domains, other.domains, strict=True):
        assert np.array_equal(a.train_x, b.train_x) == (a.name == "optdigits")


def test_domains_and_samples_choose_a_part(built: Path) -> None:
    dataset = load_dataset("digits5-local", {"domains": ["usps", "mnist"], "samples": 7}, built)
    assert [(d.name, len(d.train_y), len(d.test_y)) for d in dataset.domains] == [
        ("mnist", 7, 10),
        ("usps", 7, 10),
    ]
    pixels = np.concatenate([d.train_x for d in dataset.domains]) / 255
    assert dataset.mean == pytest.approx(pixels.mean((0, 2, 3)), abs=1e-6)


@pytest.mark.parametrize("name", ["digits5-local", "mnist", "usps"])
def test_a_loader_never_downloads(name: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"run `flray data get {name}`"):
        load_dataset(name, root=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_get_mends_what_a_loader_refuses(built: Path, tmp_path: Path) -> None:
    root = tmp_path / "cache"
    shutil.copytree(built, root)
    path = root / "digits5-local" / f"recipe{RECIPE}-seed0" / "synth_train_x.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 255
    path.write_bytes(content)
    with pytest.raises(
        DataError, match=r"synth_train_x\.npy was altered.*flray data get digits5-local"
    ):
        load_dataset("digits5-local", root=root)
    get("digits5-local", root, progress=lambda line: None)
    assert (
        load_dataset("digits5-local", root=root).fingerprint
        == load_dataset("digits5-local", root=built).fingerprint
    )


def test_too_few_mnist_digits_are_named(sources: dict[str, Arrays]) -> None:
    sources["mnist"]["train_y"] = sources["mnist"]["train_y"][:79]
    with pytest.raises(DataError, match="79 train samples of MNIST for two domains of 40"):
        build_digits5(sources, 0)
