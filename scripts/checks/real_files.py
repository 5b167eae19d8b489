"""The real files, where this machine has them (in $FLRAY_DATA, see `flray data list`): published counts and labels.

Run by `scripts/check-data`, not by the tests: nothing is fetched, and a set that is not there is
skipped and named. The layouts are tested in tests/data all the same.
"""

from pathlib import Path

import numpy as np
import pytest

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
