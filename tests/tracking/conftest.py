"""A real store, a real server and the runs to send there."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from flray.records.events import JOURNAL
from flray.records.journal import Journal

Point = tuple[int, float, int]  # step, value, time [ms]


class Server:
    """An `mlflow server` process on a fixed port, to be killed and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.uri = f"http://127.0.0.1:{self.port}"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.folder.mkdir(exist_ok=True)
        options = {
            "--backend-store-uri": f"sqlite:///{self.folder / 'server.db'}",
            "--artifacts-destination": str(self.folder / "artifacts"),
            "--host": "127.0.0.1",
            "--port": str(self.port),
            "--workers": "1",
        }
        command = [
            sys.executable,
            "-m",
            "mlflow",
            "server",
            *(part for pair in options.items() for part in pair),
        ]
        with (self.folder / "log.txt").open("ab") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self.folder,
                env=os.environ
                | {
                    "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
                    "MLFLOW_DISABLE_TELEMETRY": "true",
                },
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + 120
        while True:
            try:
                with urllib.request.urlopen(f"{self.uri}/health", timeout=2):
                    return
            except OSError:
                assert self._process.poll() is None, (self.folder / "log.txt").read_text()
                assert time.monotonic() < deadline, (self.folder / "log.txt").read_text()
                time.sleep(0.2)

    def kill(self) -> None:
        """Kill the server and its workers, all of one process group, and wait until the port is silent."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(30)
        self._process = None
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) != 0:
                    return
            time.sleep(0.05)


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """A server that has not been started."""
    server = Server(tmp_path / "server")
    yield server
    server.kill()


@pytest.fixture(scope="session")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of one database for all tests; runs are told apart by experiment."""
    return f"sqlite:///{tmp_path_factory.mktemp('store') / 'mlflow.db'}"


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Journal]:
    """Start the journal of a run in a new directory."""

    def make(name: str = "run", **start: Any) -> Journal:
        journal = Journal(tmp_path / name / JOURNAL)
        journal.start(
            **(
                {"uid": f"{tmp_path.name}-{name}", "experiment": tmp_path.name, "name": name}
                | start
            )
        )
        return journal

    return make


@pytest.fixture
def points() -> Callable[[str, str, str], list[Point]]:
    """All points of a metric that MLflow holds, by address, run id and metric."""

    def points(uri: str, run_id: str, metric: str) -> list[Point]:
        from mlflow import MlflowClient

        history = MlflowClient(tracking_uri=uri).get_metric_history(run_id, metric)
        return sorted((point.step, point.value, point.timestamp) for point in history)

    return points


@pytest.fixture
def recorded() -> Callable[[Journal, str], list[Point]]:
    """All points of a metric that a journal holds."""

    def recorded(journal: Journal, metric: str) -> list[Point]:
        return sorted(
            (event["round"], event["metrics"][metric], event["time"]) for event in journal.rounds()
        )

    return recorded
