"""What MLflow shows while a run or a sweep goes on."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from flray import api
from flray.runs import runner
from flray.runs.progress import NullProgress


def seen(uri: str, metric: str) -> set[int]:
    """Return the rounds of a metric that MLflow holds now, over all runs."""
    from flray.files.tracking_address import database_path
    from flray.tracking.client import connect

    database = database_path(uri)
    assert database is not None
    if not database.exists():
        return set()
    client = connect(uri)
    runs = client.search_runs([one.experiment_id for one in client.search_experiments()])
    return {
        point.step for run in runs for point in client.get_metric_history(run.info.run_id, metric)
    }


def wait_for(round_: int, uri: str) -> None:
    """Hold the run up until MLflow shows one of its rounds."""
    deadline = time.monotonic() + 60
    while round_ not in seen(uri, "train/loss"):
        assert time.monotonic() < deadline, f"round {round_} is not in MLflow while the run goes on"
        time.sleep(0.05)


@pytest.mark.parametrize("executor", ["inline", pytest.param("ray", marks=pytest.mark.slow)])
def test_every_round_of_a_run_is_seen_while_it_goes_on(
    tmp_cwd: Path, digits: dict[str, Any], executor: str, request: pytest.FixtureRequest
) -> None:
    if executor == "ray":
        request.getfixturevalue("ray_here")
    uri = f"sqlite:///{tmp_cwd}/mlflow.db"
    waited: list[int] = []

    class Watched(NullProgress):
        def round(self, finished: Any, metric: str) -> None:
            wait_for(finished.number, uri)
            waited.append(finished.number)

    runner.run(
        {
            "experiment": {
                **digits,
                "tracking": {"uri": uri},
                "resources": {"executor": executor, "actors": 1}
                if executor == "ray"
                else {"executor": executor},
            }
        },
        progress=Watched(),
    )
    assert waited == [1, 2, 3]


@pytest.mark.slow
def test_every_round_of_a_sweep_is_seen_while_it_goes_on(
    tmp_cwd: Path, digits: dict[str, Any], ray_here: dict[str, float]
) -> None:
    uri = f"sqlite:///{tmp_cwd}/mlflow.db"
    waited: list[int] = []

    class Watched(NullProgress):
        def round(
            self, number: str, label: str, done: int, rounds: int, score: float, left: float
        ) -> None:
            wait_for(done, uri)
            waited.append(done)

    content = {**digits, "tracking": {"uri": uri}, "checkpoint": {"min_seconds": 0}}
    api.tune({"experiment": content, "space": {"local.lr": {"grid": [0.02]}}}, progress=Watched())
    assert waited == [1, 2, 3]
