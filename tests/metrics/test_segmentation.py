"""Overlap and distance of masks: closed forms, and MONAI's own values."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from flray.tasks.segmentation import dice_coefficient, hausdorff_distance


def box(top: int, left: int, height: int, width: int, size: int = 24) -> np.ndarray:
    mask = np.zeros((size, size), dtype=np.uint8)
    mask[top : top + height, left : left + width] = 1
    return mask


def test_a_shifted_square() -> None:
    first, second = box(4, 4, 10, 10), box(4, 7, 10, 10)
    assert dice_coefficient(first[None, None], second[None, None])[0, 0] == 0.7
    assert hausdorff_distance(first, second).tolist() == [3.0]


def test_a_far_pixel_counts_at_100_percent_only() -> None:
    truth = box(2, 2, 20, 20)
    predicted = truth.copy()
    predicted[0, 0] = 1
    largest, most = hausdorff_distance(predicted, truth, (100.0, 95.0))
    assert largest == pytest.approx(np.sqrt(8))
    assert most == 0


def test_empty_masks() -> None:
    nothing, something = box(0, 0, 0, 0), box(3, 3, 4, 4)
    pairs = [(nothing, nothing), (nothing, something), (something, nothing)]
    dice = [float(dice_coefficient(a[None, None], b[None, None])[0, 0]) for a, b in pairs]
    assert dice == [1.0, 0.0, 0.0]
    distances = [float(hausdorff_distance(a, b)[0]) for a, b in pairs]
    assert np.isnan(distances[0]) and distances[1:] == [np.inf, np.inf]


def masks(generator: np.random.Generator) -> np.ndarray:
    """Return boxes at the image's rim and inside, some with scattered pixels, one empty."""
    made = np.stack(
        [box(*generator.integers(0, 12, 2), *generator.integers(1, 13, 2)) for _ in range(12)]
    )
    made[:6] |= generator.random(made[:6].shape) < 0.02
    made[11] = 0
    return made.reshape(6, 2, 24, 24)


def test_equals_monai() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from monai.metrics import compute_dice, compute_hausdorff_distance

        generator = np.random.default_rng(5)
        predicted, truth = masks(generator), masks(generator)[::-1].copy()
        p, t = torch.from_numpy(predicted).float(), torch.from_numpy(truth).float()
        dice = compute_dice(p, t, include_background=True, ignore_empty=False).numpy()
        distances = [
            compute_hausdorff_distance(p, t, include_background=True, percentile=percentile).numpy()
            for percentile in (None, 95)
        ]
    np.testing.assert_allclose(dice_coefficient(predicted, truth), dice, rtol=1e-6)
    mine = np.array(
        [
            [hausdorff_distance(predicted[i, k], truth[i, k], (100.0, 95.0)) for k in range(2)]
            for i in range(6)
        ]
    )
    assert np.isinf(mine).sum() == 4 and np.isfinite(mine).sum() == 20
    largest, most = distances
    np.testing.assert_allclose(mine[..., 0], largest, rtol=1e-5)
    # MONAI interpolates between infinities where one mask is empty, which gives NaN
    np.testing.assert_allclose(
        np.where(np.isinf(mine[..., 1]), np.nan, mine[..., 1]), most, rtol=1e-5
    )
