from pathlib import Path

import numpy as np
import pytest

from flray.data import load_dataset
from flray.errors import ConfigError

NOWHERE = Path("/nonexistent")


def test_sklearn_digits_have_four_disjoint_domains() -> None:
    dataset = load_dataset("digits-sklearn", root=NOWHERE)
    assert [(d.name, len(d.train_y), len(d.test_y)) for d in dataset.domains] == [
        ("plain", 360, 90),
        ("inverted", 359, 90),
        ("rotated", 359, 90),
        ("photo", 359, 90),
    ]
    plain, inverted, rotated, photo = dataset.domains
    # Undone, the compositions are plain digits again, and no digit is in two domains.
    upright = [plain.train_x, 255 - inverted.train_x, np.rot90(rotated.train_x, -1, axes=(2, 3))]
    seen = {image.tobytes() for images in upright for image in images}
    assert len(seen) == 360 + 359 + 359
    for domain in dataset.domains:
        assert domain.train_x.shape[1:] == (3, 32, 32)
        assert domain.train_x.dtype == np.uint8
        assert np.bincount(domain.train_y, minlength=10).min() >= 20
    assert np.array_equal(plain.train_x[:, 0], plain.train_x[:, 2])
    assert not np.array_equal(photo.train_x[:, 0], photo.train_x[:, 2])
    assert plain.origin == "real"
    assert {d.origin for d in dataset.domains[1:]} == {"composed"}
    assert dataset.public is not None
    assert dataset.public.shape == (1000, 3, 32, 32)


def test_sklearn_digits_statistics_are_those_of_the_training_part() -> None:
    dataset = load_dataset("digits-sklearn", {"domains": ["photo", "plain"], "samples": 50})
    assert [d.name for d in dataset.domains] == ["plain", "photo"]
    pooled = np.concatenate([d.train_x for d in dataset.domains]) / 255
    assert pooled.shape[0] == 100
    assert dataset.mean == pytest.approx(pooled.mean((0, 2, 3)), abs=1e-6)
    assert dataset.std == pytest.approx(pooled.std((0, 2, 3)), abs=1e-6)


def test_a_smaller_cap_is_a_subset_of_a_larger_one() -> None:
    small, large = (load_dataset("digits-sklearn", {"samples": n}).domains[0] for n in (20, 60))
    assert np.array_equal(small.train_x, large.train_x[:20])
    assert np.array_equal(small.test_y, large.test_y)


def test_random_has_the_shape_asked_for() -> None:
    dataset = load_dataset("random", {"samples": 1000, "shape": [1, 8, 8], "classes": 4})
    (domain,) = dataset.domains
    assert domain.train_x.shape == (1000, 1, 8, 8)
    assert domain.train_x.dtype == np.float32
    assert np.bincount(domain.train_y).tolist() == [250] * 4
    assert np.bincount(domain.test_y).tolist() == [50] * 4
    assert abs(float(domain.train_x.mean())) < 0.02
    assert float(domain.train_x.std()) == pytest.approx(1, abs=0.02)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"domains": ["plane"]}, "found 'plane'.*did you mean 'plain'"),
        ({"domains": ["photo", "photo"]}, "found 'photo'.*at most once"),
        ({"domains": []}, "found an empty list"),
        ({"samples": 0}, r"dataset\.digits-sklearn\.samples: found 0"),
    ],
)
def test_wrong_options_say_what_is_allowed(options: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load_dataset("digits-sklearn", options)
