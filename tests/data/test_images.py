from itertools import product
from typing import Any

import numpy as np
import pytest

from flray.data import DataSet, Domain
from flray.data.loading import validate_dataset
from flray.data.sources.images import (
    bundled_photos,
    channel_statistics,
    over_photos,
    photo_crops,
    resize,
)
from tests.messages import refused


def test_resize_by_hand() -> None:
    image = np.array([[0, 100], [0, 100]])
    assert resize(image, 4).tolist() == [[0, 25, 75, 100]] * 4
    assert np.array_equal(resize(np.full((2, 3, 28, 28), 200), 32), np.full((2, 3, 32, 32), 200))


def test_crops_are_pieces_of_the_photos() -> None:
    crops = photo_crops(20, 16, np.random.default_rng(0), max_scale=1)
    assert crops.shape == (20, 3, 16, 16)
    windows = [
        np.lib.stride_tricks.sliding_window_view(photo[..., 1], (16, 16))
        for photo in bundled_photos()
    ]
    for crop in crops[:, 1]:
        found = 0
        for seen, window in product((crop, crop[:, ::-1]), windows):
            alike = (window[..., 0, 0] == seen[0, 0]) & (window[..., 8, 8] == seen[8, 8])
            found += sum(np.array_equal(one, seen) for one in window[alike])
        assert found >= 1


def test_crops_have_contrast_and_follow_the_generator() -> None:
    crops, again, other = (photo_crops(300, 28, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert np.array_equal(crops, again)
    assert not np.array_equal(crops, other)
    assert (crops.std(axis=(2, 3)).mean(1) >= 20).mean() > 0.95


def test_a_digit_over_a_photo_is_the_absolute_difference() -> None:
    crop = np.array([[[[10, 250]], [[0, 128]], [[255, 1]]]], dtype=np.uint8)
    digit = np.array([[[100, 255]]], dtype=np.uint8)
    assert over_photos(digit, crop).tolist() == [[[[90, 5]], [[100, 127]], [[155, 254]]]]


def test_statistics_agree_with_numpy() -> None:
    parts = np.random.default_rng(0).integers(0, 256, (2, 9, 3, 4, 4), dtype=np.uint8)
    mean, std = channel_statistics(parts)
    pooled = np.concatenate(parts) / 255
    assert mean == pytest.approx(pooled.mean((0, 2, 3)), abs=1e-6)
    assert std == pytest.approx(pooled.std((0, 2, 3)), abs=1e-6)


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int64, np.int8])
def test_statistics_of_a_table_are_of_its_columns(dtype: type) -> None:
    parts = [np.array([[0, 10, 5], [4, 30, 5]], dtype=dtype), np.array([[2, 20, 5]], dtype=dtype)]
    mean, std = channel_statistics(parts)
    assert mean == (2.0, 20.0, 5.0)
    # The square roots of 8/3 and 200/3; a column that never changes.
    assert std == (1.63299, 8.16497, 1.0)
    signals = np.stack([parts[0]] * 4, 2)
    assert channel_statistics([signals]) == ((2.0, 20.0, 5.0), (2.0, 10.0, 1.0))


@pytest.mark.parametrize(
    "part", [np.zeros(3), np.zeros((0, 3)), np.array([["a"]]), np.zeros((2, 3), np.uint8)]
)
def test_what_has_no_statistics_is_one_line(part: np.ndarray[Any, Any]) -> None:
    refused(channel_statistics, [part])
    refused(channel_statistics, [np.zeros((2, 3)), np.zeros((2, 4))])


@pytest.mark.parametrize(
    ("mean", "std"),
    [
        (0.5, (1.0,)),
        ((0.5,), 1.0),
        (("a",), (1.0,)),
        ((0.0, 0.0), (1.0, 1.0)),
        ((float("nan"),), (1.0,)),
        ((0.5,) * 3, (0.0,) * 3),
        (None, None),
    ],
)
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_a_wrong_mean_is_one_line(mean: Any, std: Any, dtype: type) -> None:
    x, y = np.zeros((2, 3, 4, 4), dtype=dtype), np.zeros(2, dtype=np.int64)
    own = DataSet("own", (Domain("d", "real", x, y, x, y),), ("a", "b"), mean, std)
    refused(validate_dataset, "own", own)


def test_a_sample_that_is_no_number_is_named() -> None:
    whole, y = np.ones((4, 3), dtype=np.float32), np.array([0, 1, 0, 1])
    holed = np.where(np.arange(12).reshape(4, 3) == 7, np.nan, whole)
    domain = Domain("d", "real", whole, y, holed.astype(np.float32), y)
    refused(validate_dataset, "own", DataSet("own", (domain,), ("a", "b"), (0.0,), (1.0,)))
