"""Which way is better."""

from __future__ import annotations

import pytest

from flray.metrics.direction import is_share, lower_is_better, measure_name


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
        ("own/train/loss", "loss", True),
    ],
)
def test_measure_and_direction(metric: str, measure: str, lower: bool) -> None:
    assert measure_name(metric) == measure
    assert lower_is_better(metric) is lower


@pytest.mark.parametrize(
    ("metric", "share"),
    [
        ("global/common/accuracy", True),
        ("personal/local/own_measure", True),
        ("own/accuracy", True),
        ("own/accuracy | pooled/accuracy", True),
        ("others/dice_cup", True),
        ("global/common/accuracy or personal/local/accuracy", True),
        ("train/accuracy", True),
        ("top5", True),
        ("global/common/loss", False),
        ("own/train/loss", False),
        ("train/lgmix/lambda", False),
        ("train/seconds", False),
        ("time/round", False),
        ("time/samples_per_second", False),
        ("fedskc/e_k", False),
        ("global/common/accuracy >= 60", False),
    ],
)
def test_only_shares_are_shown_in_percent(metric: str, share: bool) -> None:
    assert is_share(metric) is share
