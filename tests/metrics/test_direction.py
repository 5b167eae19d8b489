"""Which way is better."""

from __future__ import annotations

import pytest

from flray.metrics.direction import lower_is_better, measure_name


@pytest.mark.parametrize(
    ("metric", "measure", "lower"),
    [
        ("global/common/accuracy", "accuracy", False),
        ("personal/local/dice_cup/client/A", "dice_cup", False),
        ("personal/local/hausdorff95_cup/worst", "hausdorff95_cup", True),
        ("train/loss/client/loss", "loss", True),
        ("train/seconds", "seconds", True),
        ("own/hausdorff", "hausdorff", True),
        ("others/accuracy", "accuracy", False),
        ("memory", "memory", True),
        ("hausdorff", "hausdorff", True),
        ("auc", "auc", False),
    ],
)
def test_measure_and_direction(metric: str, measure: str, lower: bool) -> None:
    assert measure_name(metric) == measure
    assert lower_is_better(metric) is lower
