"""The runs to send to a real store, and what arrived."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlflow import MlflowClient

from flray.records import JOURNAL, Journal
from flray.tracking import client
from flray.tracking.background import Tracker
from flray.tracking.exporter import MlflowExporter

Point = tuple[int, float, int]  # step, value, time [ms]
PATIENCE = 120  # seconds on a busy machine


def wait(until: Callable[[], bool], why: Callable[[], str] = str) -> None:
    deadline = time.monotonic() + PATIENCE
    while not until():
        assert time.monotonic() < deadline, why()
        time.sleep(0.01)


def tracking_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "flray-tracking"]


def recorded(journal: Journal, metric: str) -> list[Point]:
    return sorted((one["round"], one["metrics"][metric], one["time"]) for one in journal.rounds())


class Sending:
    """Runs in a test's folder, and the store to which they are sent."""

    def __init__(self, folder: Path, uri: str) -> None:
        self.folder, self.uri = folder, uri

    def start(self, name: str = "run", **start: Any) -> Journal:
        journal = Journal(self.folder / name / JOURNAL)
        own = {"uid": f"{self.folder.name}-{name}", "experiment": self.folder.name, "name": name}
        journal.start(**(own | start))
        return journal

    def tracker(self, *names: str, uri: str = "") -> tuple[Tracker, list[str]]:
        """Return a tracker that has some runs, and what it will have said."""
        said: list[str] = []
        tracker = Tracker(uri or self.uri, said.append)
        for name in names:
            tracker.register(self.folder / name)
        return tracker, said

    def exporter(self, name: str = "run", **more: Any) -> MlflowExporter:
        return MlflowExporter(self.folder / name, self.uri, **more)

    def send(self, name: str = "run") -> MlflowExporter:
        exporter = self.exporter(name)
        assert exporter.flush() == 0
        return exporter

    @property
    def client(self) -> MlflowClient:
        return MlflowClient(tracking_uri=self.uri)

    def run_id(self, name: str = "run") -> str:
        found = client.read_cursor(self.folder / name)
        assert found is not None and found.run_id is not None
        return found.run_id

    def sent(self, name: str = "run") -> Any:
        return self.client.get_run(self.run_id(name))

    def runs(self) -> list[Any]:
        experiment = self.client.get_experiment_by_name(self.folder.name)
        return list(self.client.search_runs([experiment.experiment_id]))

    def points(self, metric: str, name: str = "run") -> list[Point]:
        history = self.client.get_metric_history(self.run_id(name), metric)
        return sorted((point.step, point.value, point.timestamp) for point in history)
