"""Which way is better, and numbers that describe a metric's course."""

import math
from typing import Any

import pandas as pd
import pytest

from flray.metrics.names import is_share, lower_is_better, measure_name
from flray.metrics.summary import (
    MetricTrajectory,
    rounds_to_target,
    summarise_history,
    trajectory,
    validation_metric,
)
from tests.messages import refused


@pytest.mark.parametrize(
    ("metric", "measure", "lower"),
    [
        ("global/common/accuracy", "accuracy", False),
        ("personal/local/hausdorff95_cup/worst", "hausdorff95_cup", True),
        ("train/loss/client/loss", "loss", True),
        ("train/seconds", "seconds", True),
        ("own/hausdorff", "hausdorff", True),
        ("others/accuracy", "accuracy", False),
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
        ("own/accuracy | pooled/accuracy", True),
        ("global/common/accuracy or personal/local/accuracy", True),
        ("top5", True),
        ("global/common/loss", False),
        ("own/train/loss", False),
        ("train/lgmix/lambda", False),
        ("train/seconds", False),
        ("time/samples_per_second", False),
        ("fedskc/e_k", False),
        ("global/common/accuracy >= 60", False),
    ],
)
def test_only_shares_are_shown_in_percent(metric: str, share: bool) -> None:
    assert is_share(metric) is share


HISTORY = pd.DataFrame({"round": [1, 2, 3, 4, 5], "a": [0.1, 0.5, math.nan, 0.5, 0.3]})


def test_course() -> None:
    assert trajectory(HISTORY, "a", 2) == MetricTrajectory(
        last=0.3, mean_of_last=0.4, rounds=2, best=0.5, best_round=2
    )
    assert trajectory(HISTORY, "a", 99).rounds == 4
    refused(trajectory, HISTORY, "b", 2)


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


ACCURACY, LOSS, CLIENT = (f"personal/local/{n}" for n in ("accuracy", "loss", "accuracy/client/a"))


@pytest.mark.parametrize(
    ("metric", "which", "count", "text", "values"),
    [
        (ACCURACY, "last", 2, "after 6 rounds", {ACCURACY: 0.7, "time/round": 6}),
        # of validation, not of the test, and the first of two equals
        (
            ACCURACY,
            "best",
            2,
            "round 2 of 6, best on validation",
            {ACCURACY: 0.5, CLIENT: 1, LOSS: 0.3},
        ),
        (LOSS, "best", 2, "round 4 of 6, best on validation", {LOSS: 0.2}),
        (ACCURACY, "mean-last", 2, "mean of the last 2 evaluations", {ACCURACY: 0.8, CLIENT: 2.5}),
        (ACCURACY, "mean-last", 9, "mean of the last 3 evaluations", {ACCURACY: 0.7}),
        ("time/round", "best", 2, "after 6 rounds", {"time/round": 6}),  # it is never validated
    ],
)
def test_which_rounds_are_reported(
    metric: str, which: Any, count: int, text: str, values: dict[str, float]
) -> None:
    reported = summarise_history(VALIDATED, metric, which, count)
    assert reported.text == text
    assert {name: reported.values[name] for name in values} == pytest.approx(values)


def test_what_was_never_measured_is_left_out() -> None:
    assert summarise_history(VALIDATED.iloc[:1], ACCURACY, "best", 2).values == {"time/round": 1.0}
    nothing = pd.DataFrame({"round": pd.Series(dtype="int64")})
    assert summarise_history(nothing, "a", "mean-last", 2).values == {}


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
