"""Sets that are drawn here, or come with a package: what they promise, whatever the seed; and a small part of one."""

from pathlib import Path

import numpy as np
import pytest
from sklearn.neighbors import KNeighborsClassifier

from flray.data import load_dataset
from flray.data.datasets.embedded import FONTS, _atlas, _ink, _paint
from flray.data.datasets.fundus import SOURCES
from flray.data.loading import take_subset

NOWHERE = Path("/nonexistent")


def test_random_has_the_shape_asked_for() -> None:
    dataset = load_dataset("random", {"samples": 1000, "shape": [1, 8, 8], "classes": 4})
    (domain,) = dataset.domains
    assert domain.train_x.shape == (1000, 1, 8, 8)
    assert domain.train_x.dtype == np.float32
    assert np.bincount(domain.train_y).tolist() == [250] * 4
    assert np.bincount(domain.test_y).tolist() == [50] * 4
    assert abs(float(domain.train_x.mean())) < 0.02
    assert float(domain.train_x.std()) == pytest.approx(1, abs=0.02)


def test_fundus_synthetic() -> None:
    data = load_dataset("fundus-synthetic", {"samples": 20, "size": 32})
    assert [d.name for d in data.domains] == list(SOURCES) == list("ABCDEF")
    assert data.task == "segmentation" and data.classes == ("disc", "cup")
    looks = []
    for domain in data.domains:
        assert domain.origin == "rendered"
        assert domain.train_x.shape == (16, 3, 32, 32) and domain.test_y.shape == (4, 2, 32, 32)
        disc, cup = domain.train_y[:, 0], domain.train_y[:, 1]
        assert (cup <= disc).all() and cup.any((1, 2)).all()
        areas = disc.mean((1, 2))
        assert areas.min() > 0.02 and areas.max() < 0.4
        looks.append(domain.train_x.mean((0, 2, 3)))
        # what is to be found can be seen: inside and outside differ more than the noise of a mean
        inside = (domain.train_x * disc[:, None]).sum((0, 2, 3)) / disc.sum()
        outside = (domain.train_x * (1 - disc[:, None])).sum((0, 2, 3)) / (1 - disc).sum()
        assert np.abs(inside - outside).max() > 20
        # The odd one: dark on a bright ground.
        assert (inside.mean() > outside.mean()) == (domain.name != "E")
    distances = [np.abs(a - b).max() for i, a in enumerate(looks) for b in looks[:i]]
    assert min(distances) > 5


def test_glyphs_have_other_classes_for_test() -> None:
    data = load_dataset("glyphs", {"classes": 12, "unseen": 5, "samples": 7, "size": 24})
    (domain,) = data.domains
    seen, unseen = set(domain.train_y.tolist()), set(domain.test_y.tolist())
    assert (len(seen), len(unseen), seen & unseen, len(data.classes)) == (7, 5, set(), 12)
    assert domain.train_x.shape == (49, 1, 24, 24) and len(set(data.classes)) == 12


def test_eeg_synthetic() -> None:
    data = load_dataset("eeg-synthetic", {"samples": 40})
    assert data.task == "binary" and len(data.domains) == 4
    for domain, channels in zip(data.domains, (8, 11, 15, 7), strict=True):
        assert domain.train_x.shape == (32, 120) and domain.train_x.dtype == np.float32
        length = channels * (channels + 1) // 2
        assert not domain.train_x[:, length:].any() and domain.train_x[:, :length].all(1).all()
        assert set(domain.train_y.tolist()) == {0, 1}


def test_every_font_has_ten_different_digits_of_one_height() -> None:
    tiles, widths = _atlas()
    assert tiles.shape[:2] == (len(FONTS), 10)
    for font in tiles:
        assert len({tile.tobytes() for tile in font}) == 10
        rows = (font > 0.5).any(axis=2).sum(axis=1)
        assert rows.min() >= 28
        assert rows.max() <= 38
    assert widths.min() >= 8
    assert widths.max() <= 40


def test_the_labelled_digit_is_the_one_in_the_middle() -> None:
    # Nearest neighbour on the middle columns tells it; neighbouring digits would not.
    labels = np.arange(2000) % 10
    ink = _ink(labels, np.random.default_rng(0))[:, 4:28, 8:24].reshape(len(labels), -1)
    found = KNeighborsClassifier(1).fit(ink[:1600], labels[:1600]).predict(ink[1600:])
    assert (found == labels[1600:]).mean() > 0.6


def test_ink_differs_from_paper_in_brightness() -> None:
    half = np.zeros((400, 32, 32), dtype=np.float32)
    half[:, 10:22, 10:22] = 1
    images = _paint(half, np.random.default_rng(0)).astype(float)
    brightness = np.einsum("c,nchw->nhw", [0.299, 0.587, 0.114], images)
    inside = brightness[:, 13:19, 13:19].mean((1, 2))
    outside = (brightness[:, 6:8].mean((1, 2)) + brightness[:, 24:26].mean((1, 2))) / 2
    assert np.quantile(np.abs(inside - outside), 0.05) > 25


def test_a_subset_is_small_has_every_class_and_is_always_the_same() -> None:
    whole = load_dataset("digits-sklearn")
    small, again = take_subset(whole, 30), take_subset(whole, 30)
    for domain, same in zip(small.domains, again.domains, strict=True):
        assert len(domain.train_y) == len(domain.test_y) == 30
        assert set(domain.train_y) == set(domain.test_y) == set(range(10))
        assert np.array_equal(domain.train_x, same.train_x)
    assert small.fingerprint != whole.fingerprint
    assert take_subset(whole, 10**6).fingerprint == whole.fingerprint
    for before, after in zip(whole.domains, small.domains, strict=True):
        known = {x.tobytes(): y for x, y in zip(before.train_x, before.train_y, strict=True)}
        labels = [known[x.tobytes()] for x in after.train_x]
        assert np.array_equal(labels, after.train_y)
