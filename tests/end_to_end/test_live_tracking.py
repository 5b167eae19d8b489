"""What MLflow shows while a run or a sweep goes on."""

import time
from pathlib import Path
from typing import Any

import pytest

from flray import api
from flray.runs import runner
from flray.runs.progress import Progress


def seen(uri: str, experiment: str, metric: str) -> set[int]:
    """Return the rounds of a metric that MLflow holds now, over an experiment's runs."""
    from flray.tracking.client import connect

    client = connect(uri)
    found = client.get_experiment_by_name(experiment)
    runs = client.search_runs([found.experiment_id]) if found else []
    return {
        point.step for run in runs for point in client.get_metric_history(run.info.run_id, metric)
    }


class Watched(Progress):
    """Holds the run up after each round until MLflow shows the round."""

    def __init__(self, tracking: dict[str, str]) -> None:
        self.tracking = tracking
        self.rounds: list[int] = []

    def round(self, finished: Any, label: str, done: int = 0, *more: Any) -> None:
        number = done or finished.number
        deadline = time.monotonic() + 300
        while number not in seen(*self.tracking.values(), "train/loss"):
            assert time.monotonic() < deadline, f"round {number} is not in MLflow"
            time.sleep(0.1)
        self.rounds.append(number)


def watched(store: str, name: str, digits: dict[str, Any]) -> tuple[dict[str, Any], Watched]:
    tracking = {"uri": store, "experiment": name}
    inline = {"rounds": 2, "tracking": tracking, "resources": {"executor": "inline"}}
    return {**digits, **inline}, Watched(tracking)


def test_every_round_of_a_run_is_seen_while_it_goes_on(
    tmp_cwd: Path, digits: dict[str, Any], store: str
) -> None:
    experiment, progress = watched(store, "a run that goes on", digits)
    runner.run({"experiment": experiment}, progress=progress)
    assert progress.rounds == [1, 2]


@pytest.mark.slow
@pytest.mark.usefixtures("no_pictures")
def test_every_round_of_a_sweep_is_seen_while_it_goes_on(
    tmp_cwd: Path, digits: dict[str, Any], store: str, ray_here: dict[str, float]
) -> None:
    experiment, progress = watched(store, "a sweep that goes on", digits)
    space = {"local.lr": {"grid": [0.02]}}
    api.tune({"experiment": experiment, "space": space}, progress=progress)
    assert progress.rounds == [1, 2]
