"""Names of metrics: in a form that MLflow takes, which way is better, and numbers that describe a metric's course."""

import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from flray.cli.main import invoke
from flray.metrics.names import check_clients, clean_name, is_share, lower_is_better, measure_name
from flray.metrics.summary import (
    MetricTrajectory,
    rounds_to_target,
    summarise_history,
    trajectory,
    validation_metric,
)
from tests.messages import mistyped, refused


@pytest.mark.parametrize(
    ("name", "cleaned"),
    [
        ("global/common/accuracy", "global/common/accuracy"),
        ("time: a.b-c d_e", "time: a.b-c d_e"),
        ("/loss//x/./../y/", "loss/x/y"),
        ("worst 10 %", "worst 10 _"),
        ("accuracy@5\n", "accuracy_5_"),
    ],
)
def test_clean_name(name: str, cleaned: str) -> None:
    assert clean_name(name) == cleaned


def test_long_names_stay_different() -> None:
    one, other = clean_name("x" * 300 + "a"), clean_name("x" * 300 + "b")
    assert len(one) == len(other) == 250
    assert one != other


@settings(deadline=None, max_examples=50)  # the first call imports mlflow
@given(st.text(min_size=1, max_size=300))
def test_mlflows_own_check_takes_every_cleaned_name(name: str) -> None:
    from mlflow.utils.validation import _validate_metric_name

    try:
        cleaned = clean_name(name)
    except ValueError:
        return
    _validate_metric_name(cleaned)
    assert len(cleaned) <= 250
    assert clean_name(cleaned) == cleaned


@pytest.mark.parametrize(
    ("one", "other"), [("hospital(1)", "hospital[1]"), ("a\nb", "a_b"), ("x/./y", "x/y")]
)
def test_clients_that_mlflow_takes_for_one_are_named(one: str, other: str) -> None:
    refused(check_clients, ["fine", one, "fine too", other])
    check_clients([one, "fine"])


PLUGIN = """
import numpy as np
from flray.data import DataSet, Domain
from flray.registry import register_dataset

@register_dataset("hospitals")
def hospitals(root, *, seed: int = 0, names: str):
    x = np.random.default_rng(0).random((40, 6)).astype(np.float32)
    y = np.arange(40) % 2
    domains = tuple(Domain(name, "real", x, y, x[:10], y[:10]) for name in names.split(";"))
    return DataSet("hospitals", domains, ("a", "b"), (), ())
"""


def test_such_a_run_is_refused_before_the_first_round_and_odd_names_are_shown_in_one_line(
    tmp_cwd: Path, digits: dict[str, Any], capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_cwd / "plugin.py").write_text(PLUGIN)
    content = {**digits, "rounds": 1, "model": "linear", "resources": {"executor": "inline"}}
    content["plugins"] = ["plugin.py"]
    names = {"two": "hospital(1);hospital[1]", "odd": "[/x] hospital;a\nb\x85;=1+1"}
    for name, domains in names.items():
        content["data"] = {"name": "hospitals", "names": domains}
        (tmp_cwd / f"{name}.yaml").write_text(yaml.safe_dump({"experiment": content}))
    mistyped("run", "two.yaml")
    assert not (tmp_cwd / "runs").exists()
    assert invoke(["run", "odd.yaml"]) == 0
    assert invoke(["data", "show", "odd.yaml"]) == 0
    out, _ = capfd.readouterr()
    for shown in ("[/x] hospital", "a\\nb\\x85", "=1+1"):
        assert sum(shown in line for line in out.splitlines()) == 1  # the rows of who holds what


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
