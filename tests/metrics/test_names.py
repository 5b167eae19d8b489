"""Names reach MLflow in a form that it takes."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from flray.cli.main import invoke
from flray.metrics.names import check_clients, clean_name
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
