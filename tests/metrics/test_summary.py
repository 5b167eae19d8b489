"""Numbers that describe a metric's course, on a course that can be read off."""

from __future__ import annotations

import math

import pandas as pd
import pytest

from flray.metrics.summary import (
    MetricTrajectory,
    rounds_to_target,
    summarise_history,
    trajectory,
    validation_metric,
)

HISTORY = pd.DataFrame({"round": [1, 2, 3, 4, 5], "a": [0.1, 0.5, math.nan, 0.5, 0.3]})


def test_course() -> None:
    assert trajectory(HISTORY, "a", 2) == MetricTrajectory(
        last=0.3, mean_of_last=0.4, rounds=2, best=0.5, best_round=2
    )
    assert trajectory(HISTORY, "a", 99).rounds == 4


def test_a_metric_never_measured_is_named() -> None:
    with pytest.raises(ValueError, match="b was never measured"):
        trajectory(HISTORY, "b", 2)


@pytest.mark.parametrize(("target", "round_"), [(0.1, 1), (0.4, 2), (0.51, math.inf)])
def test_rounds_to_target(target: float, round_: float) -> None:
    assert rounds_to_target(HISTORY.set_index("round")["a"].dropna(), target) == round_


NAN = math.nan
VALIDATED = pd.DataFrame(
    {
        "round": [1, 2, 3, 4, 5, 6],
        "time/round": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
        "personal/local/accuracy": [NAN, 0.5, NAN, 0.9, NAN, 0.7],
        "personal/local/accuracy/client/a": [NAN, 1, NAN, 2, NAN, 3],
        "personal/local/loss": [NAN, 0.3, NAN, 0.2, NAN, 0.1],
        "personal/validation/accuracy": [NAN, 0.8, NAN, 0.6, NAN, 0.8],
        "personal/validation/loss": [NAN, 3, NAN, 1, NAN, 2],
    }
)


def test_the_last_round_is_reported_for_each_metric() -> None:
    reported = summarise_history(VALIDATED, "personal/local/accuracy", "last", 2)
    assert reported.text == "after 6 rounds"
    assert reported.values["personal/local/accuracy"] == 0.7 and reported.values["time/round"] == 6


def test_the_best_round_is_chosen_on_validation_not_on_test() -> None:
    reported = summarise_history(VALIDATED, "personal/local/accuracy", "best", 2)
    assert reported.text == "round 2 of 6, best on validation"  # the first of two equals
    assert reported.values["personal/local/accuracy"] == 0.5
    assert reported.values["personal/local/accuracy/client/a"] == 1
    assert reported.values["personal/local/loss"] == 0.3
    by_loss = summarise_history(VALIDATED, "personal/local/loss", "best", 2)
    assert by_loss.text.startswith("round 4") and by_loss.values["personal/local/loss"] == 0.2


def test_the_mean_is_over_evaluated_rounds() -> None:
    reported = summarise_history(VALIDATED, "personal/local/accuracy", "mean-last", 2)
    assert reported.text == "mean of the last 2 evaluations"
    assert reported.values["personal/local/accuracy"] == pytest.approx(0.8)
    assert reported.values["personal/local/accuracy/client/a"] == 2.5
    assert summarise_history(VALIDATED, "personal/local/accuracy", "mean-last", 9).values[
        "personal/local/accuracy"
    ] == pytest.approx(0.7)


def test_what_was_never_measured_or_validated_is_reported_as_last() -> None:
    assert summarise_history(VALIDATED, "time/round", "best", 2).values["time/round"] == 6
    assert summarise_history(VALIDATED.iloc[:1], "personal/local/accuracy", "best", 2).values == {
        "time/round": 1.0
    }
    assert (
        summarise_history(
            pd.DataFrame({"round": pd.Series(dtype="int64")}), "a", "mean-last", 2
        ).values
        == {}
    )


@pytest.mark.parametrize(
    ("metric", "validation"),
    [
        ("global/common/accuracy", "global/validation/accuracy"),
        ("personal/others/loss", "personal/validation/loss"),
        ("global/common/accuracy/model/a", "global/validation/accuracy"),
        ("time/round", None),
        ("score", None),
    ],
)
def test_validation_metric(metric: str, validation: str | None) -> None:
    assert validation_metric(metric) == validation


def test_a_distance_is_best_where_it_is_lowest() -> None:
    history = pd.DataFrame({"round": [1, 2, 3], "global/common/hausdorff95": [9.0, 2.0, 4.0]})
    went = trajectory(history, "global/common/hausdorff95", 2)
    assert (went.best, went.best_round, went.mean_of_last) == (2.0, 2, 3.0)
    values = history.set_index("round")["global/common/hausdorff95"]
    assert rounds_to_target(values, 5.0, lower=True) == 2
