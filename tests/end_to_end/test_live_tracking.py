"""What MLflow shows while a run or a sweep goes on."""

import time
from pathlib import Path
from typing import Any

import pytest

from flray import api
from flray.runs import runner
from flray.runs.loop import NullProgress


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


class Watched(NullProgress):
    """Holds the run up after each round until MLflow shows the round."""

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.rounds: list[int] = []

    def round(self, finished: Any, label: str, done: int = 0, *more: Any) -> None:
        number = done or finished.number
        deadline = time.monotonic() + 300
        while number not in seen(self.uri, "train/loss"):
            assert time.monotonic() < deadline, f"round {number} is not in MLflow"
            time.sleep(0.1)
        self.rounds.append(number)


def watched(tmp_cwd: Path, digits: dict[str, Any]) -> tuple[dict[str, Any], Watched]:
    uri = f"sqlite:///{tmp_cwd}/mlflow.db"
    inline = {"rounds": 2, "tracking": {"uri": uri}, "resources": {"executor": "inline"}}
    return {**digits, **inline}, Watched(uri)


def test_every_round_of_a_run_is_seen_while_it_goes_on(
    tmp_cwd: Path, digits: dict[str, Any]
) -> None:
    experiment, progress = watched(tmp_cwd, digits)
    runner.run({"experiment": experiment}, progress=progress)
    assert progress.rounds == [1, 2]


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
def test_every_round_of_a_sweep_is_seen_while_it_goes_on(
    tmp_cwd: Path, digits: dict[str, Any], ray_here: dict[str, float]
) -> None:
    experiment, progress = watched(tmp_cwd, digits)
    space = {"local.lr": {"grid": [0.02]}}
    api.tune({"experiment": experiment, "space": space}, progress=progress)
    assert progress.rounds == [1, 2]
