"""A real store, a real server, the runs to send there, and what arrived."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

from mlflow import MlflowClient

from flray.records.journal import JOURNAL, Journal
from flray.tracking import client
from flray.tracking.exporter import MlflowExporter
from tests.helpers import free_port

Point = tuple[int, float, int]
"""Step, value, time [ms]."""
PATIENCE = 120
"""Seconds on a busy machine."""


def wait(until: Callable[[], bool], why: Callable[[], str] = str) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + PATIENCE
    while not until():
        assert time.monotonic() < deadline, why()
        time.sleep(0.01)


def tracking_threads() -> list[str]:
    """Return the names of the threads of trackers that run."""
    return [thread.name for thread in threading.enumerate() if thread.name == "flray-tracking"]


def recorded(journal: Journal, metric: str) -> list[Point]:
    """Return all points of a metric that a journal holds."""
    return sorted((one["round"], one["metrics"][metric], one["time"]) for one in journal.rounds())


class Sending:
    """Runs in a test's folder, and the store to which they are sent."""

    def __init__(self, folder: Path, uri: str) -> None:
        self.folder, self.uri = folder, uri

    def start(self, name: str = "run", **start: Any) -> Journal:
        """Start the journal of a run in a new folder."""
        journal = Journal(self.folder / name / JOURNAL)
        own = {"uid": f"{self.folder.name}-{name}", "experiment": self.folder.name, "name": name}
        journal.start(**(own | start))
        return journal

    def exporter(self, name: str = "run", **more: Any) -> MlflowExporter:
        """Return what sends a run."""
        return MlflowExporter(self.folder / name, self.uri, **more)

    def send(self, name: str = "run") -> MlflowExporter:
        """Send all of a run."""
        exporter = self.exporter(name)
        assert exporter.flush() == 0
        return exporter

    @property
    def client(self) -> MlflowClient:
        """The store, as MLflow reads it."""
        return MlflowClient(tracking_uri=self.uri)

    def run_id(self, name: str = "run") -> str:
        """Return the id under which a run was sent."""
        found = client.read_cursor(self.folder / name)
        assert found is not None and found.run_id is not None
        return found.run_id

    def sent(self, name: str = "run") -> Any:
        """Return MLflow's run."""
        return self.client.get_run(self.run_id(name))

    def runs(self) -> list[Any]:
        """Return MLflow's runs of this test."""
        experiment = self.client.get_experiment_by_name(self.folder.name)
        return list(self.client.search_runs([experiment.experiment_id]))

    def points(self, metric: str, name: str = "run") -> list[Point]:
        """Return all points of a metric that MLflow holds."""
        history = self.client.get_metric_history(self.run_id(name), metric)
        return sorted((point.step, point.value, point.timestamp) for point in history)


class Server:
    """An `mlflow server` process on a fixed port, to be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.folder.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "mlflow", "server", "--workers", "1"]
        command += ["--backend-store-uri", f"sqlite:///{self.folder / 'server.db'}"]
        command += ["--artifacts-destination", str(self.folder / "artifacts")]
        command += ["--host", "127.0.0.1", "--port", str(self.port)]
        quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        with (self.folder / "log.txt").open("ab") as log:
            self._process = process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=os.environ | quiet,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

        def healthy() -> bool:
            assert process.poll() is None, (self.folder / "log.txt").read_text()
            with contextlib.suppress(OSError):
                urllib.request.urlopen(f"{self.uri}/health", timeout=2).close()
                return True
            return False

        wait(healthy, (self.folder / "log.txt").read_text)

    def kill(self) -> None:
        """Kill the server and its workers, all of one process group, and wait until the port is silent."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)
        self._process = None

        def silent() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) != 0

        wait(silent)
