"""What MLflow shows while a run goes on."""

import time
from pathlib import Path
from typing import Any

from flray.runs import runner
from flray.runs.progress import Progress
from tests.helpers import inline


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


def test_every_round_of_a_run_is_seen_while_it_goes_on(
    tmp_cwd: Path, digits: dict[str, Any], store: str
) -> None:
    """Of a sweep: tests/tuning/test_sweep.py."""
    tracking = {"uri": store, "experiment": "a run that goes on"}
    progress = Watched(tracking)
    runner.run(inline(digits, rounds=2, tracking=tracking), progress=progress)
    assert progress.rounds == [1, 2]
