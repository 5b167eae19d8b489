"""A remedy is right: whoever follows it meets no next error, and what was meant by a value is not guessed."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import flray
from flray.cli.main import invoke
from flray.config.experiment import selects_on_test
from flray.config.loader import load
from flray.data.datasets.table import table
from flray.data.federated import federate
from flray.data.loading import load_dataset
from flray.records import directory
from flray.tracking.client import connect
from tests.helpers import built, printed, small, written
from tests.messages import mistyped, refused

BASE = {"experiment": small()}
DIGITS = {"name": "digits-sklearn", "samples": 40}


@pytest.mark.parametrize(
    "setting",
    [
        *("seed=010", "rounds=1:30", "sweep.seeds=[0, 012]", "sweep.seeds=0", "sweep.seeds=-1"),
        *("name=no", "tracking.uri=off", "output=", "name=1.5", "base=other.yaml"),
        *("split=0.8", "split=[0.8, 0.2]", "split=[0.5, 0.2, 0.1, 0.2]", "local.betas=0.9"),
        *("space={local.lr: {uniform: 3}}", "space={local.lr: {grid: [0.1], choice: [0.2]}}"),
        *("participation.unseen=client1", "local.augment=jitter", "local.augment=jiter"),
        *("resources.cpus_per_actor=0.00001", "resources.gpus_per_actor=0.00001"),
    ],
)
def test_a_value_is_not_guessed_and_what_it_needs_is_said(setting: str) -> None:
    refused(load, BASE, [setting])


def test_a_base_stands_in_a_file() -> None:
    refused(load, {"base": "other.yaml", "rounds": 3})


@pytest.mark.parametrize(("text", "value"), [("1e1", 10), ("007", 7), ("0", 0), ("0x10", 16)])
def test_numbers_that_mean_one_thing_are_taken(text: str, value: int) -> None:
    assert load(BASE, [f"local.epochs={text}"]).experiment.local.epochs == value


def test_validation_samples_are_asked_for_where_they_come_from() -> None:
    shares = small(data=DIGITS, split=[0.8, 0, 0.2])
    for change in ({"algorithm": "fedfomo"}, {"evaluation": {"protocol": "best"}}):
        refused(built, {**shares, **change})
        assert built({**shares, **change, "split": [0.6, 0.2, 0.2]}).data.validation.size
    stop = {"metric": "global/validation/accuracy", "patience": 3}
    refused(built, {**shares, "stop": stop})
    config = {"experiment": shares, "space": {"local.lr": {"grid": [1, 2]}}}
    assert "a second share of split" in selects_on_test(config)


def test_a_group_of_parameters_is_the_method_s_and_public_images_are_for_images_alone() -> None:
    refused(built, small(data=DIGITS, algorithm={"name": "fedper", "personal": "head"}))
    data = {"name": "random", "samples": 40}
    refused(built, small(data=data, algorithm="fcclplus", partition={"name": "iid", "clients": 2}))


@pytest.mark.parametrize("stop", [{"target": 90}, {"patience": 3, "min_delta": 2}], ids=str)
def test_a_share_to_stop_at_is_none_of_percent(stop: dict[str, Any]) -> None:
    refused(built, small(data=DIGITS, stop=stop))
    assert built(small(data=DIGITS, stop={**stop, "metric": "global/common/loss"})).config.stop


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("dirichlet", {"clients": 30, "alpha": 0.001}),
        ("dirichlet", {"clients": 30, "alpha": 0.001, "min_size": 2}),
        *(("quantity", {"clients": 3000}), ("domains", {"clients_per_domain": 10**9})),
        ("domain-dirichlet", {"parts": 10**9}),
    ],
)
def test_what_a_partition_cannot_give_is_refused(name: str, options: dict[str, Any]) -> None:
    refused(federate, load_dataset("digits-sklearn", {"samples": 40}), name, options, 0)


def test_a_table_may_be_called_so_in_capitals_and_says_what_counts_as_empty(tmp_cwd: Path) -> None:
    frame = pd.DataFrame({"x": np.arange(20) % 7, "y": ["None", "some"] * 10})
    frame.to_csv("T.CSV", index=False)
    refused(table, Path(), path="T.CSV", label="y")
    frame.replace("None", "no").to_csv("T.CSV", index=False)
    assert table(Path(), path="T.CSV", label="y").classes == ("no", "some")


def test_a_tilde_makes_no_folder(tmp_cwd: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_cwd / "home"))
    tracking, database = {"uri": "sqlite:///~/mlflow.db"}, f"sqlite:///{tmp_cwd}/home/mlflow.db"
    connect(database)  # which takes longer than a run waits if the machine is busy
    run = flray.run(small(data=DIGITS, output="~/runs", tracking=tracking)).folder
    assert run == tmp_cwd / "home/runs/experiment/001"
    assert f" of 1 run sent to {database}" in printed("sync", str(run)) and not Path("~").exists()
    assert directory.find("experiment", "~/runs") == run
    for start in (f"~/runs/experiment/{run.name}", "experiment/001"):
        assert load({"experiment": small(output="~/runs", start=start)}).experiment.start
    Path("home/own.py").touch()
    assert load(BASE, ["plugins=[~/own.py]"]).experiment.plugins == (str(tmp_cwd / "home/own.py"),)


def test_a_folder_that_cannot_be_written_is_said_with_the_option(tmp_cwd: Path) -> None:
    assert invoke(["run", written(small(data=DIGITS))]) == 0
    (run,) = Path("runs").glob("*/001")
    Path("file").touch()
    for command in (["export", str(run)], ["report", str(run)]):
        mistyped(*command, "--to", "file")
    mistyped("report", str(run), "--keep", "file/kept.csv")
    mistyped("report", str(run), "--reach", "200")
    mistyped("ls", "--output", "s3://bucket/runs")
