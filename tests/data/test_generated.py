"""The generated sets of the other tasks: what they promise, whatever the seed."""

from __future__ import annotations

import numpy as np

from flray.data import load_dataset
from flray.data.datasets.fundus import SOURCES


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
    # images of a class are alike: each class's mean is nearer to its own images than chance
    images = domain.train_x.reshape(49, -1).astype(float)
    means = np.stack([images[domain.train_y == c].mean(0) for c in sorted(seen)])
    nearest = ((images[:, None] - means) ** 2).sum(2).argmin(1)
    assert (np.array(sorted(seen))[nearest] == domain.train_y).mean() > 0.6


def test_eeg_synthetic() -> None:
    data = load_dataset("eeg-synthetic", {"samples": 40})
    assert data.task == "binary" and len(data.domains) == 4
    for domain, channels in zip(data.domains, (8, 11, 15, 7), strict=True):
        assert domain.train_x.shape == (32, 120) and domain.train_x.dtype == np.float32
        length = channels * (channels + 1) // 2
        assert not domain.train_x[:, length:].any() and domain.train_x[:, :length].all(1).all()
        assert set(domain.train_y.tolist()) == {0, 1}
