"""Numbers that describe a metric's course, on a course that can be read off."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from flray.metrics.summary import Course, course, rounds_to_target

HISTORY = pd.DataFrame({"round": [1, 2, 3, 4, 5], "a": [0.1, 0.5, math.nan, 0.5, 0.3]})


def test_course() -> None:
    assert course(HISTORY, "a", 2) == Course(last=0.3, mean_of_last=0.4, rounds=2, best=0.5, best_round=2)
    assert course(HISTORY, "a", 99).rounds == 4


def test_a_metric_never_measured_is_named() -> None:
    with pytest.raises(ValueError, match="b was never measured"):
        course(HISTORY, "b", 2)


@pytest.mark.parametrize(("target", "round_"), [(0.1, 1), (0.4, 2), (0.51, None)])
def test_rounds_to_target(target: float, round_: int | None) -> None:
    assert rounds_to_target(HISTORY, "a", target) == round_


def test_a_distance_is_best_where_it_is_lowest() -> None:
    history = pd.DataFrame({"round": [1, 2, 3], "global/common/hausdorff95": [9.0, 2.0, 4.0]})
    went = course(history, "global/common/hausdorff95", 2)
    assert (went.best, went.best_round, went.mean_of_last) == (2.0, 2, 3.0)
    assert rounds_to_target(history, "global/common/hausdorff95", 5.0) == 2
