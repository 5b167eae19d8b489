"""Servers of this machine that may be killed and started again: MLflow's, and one that is S3-compatible."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

from tests.helpers import free_port

PATIENCE = 300  # seconds on a busy machine until a server answers


class Service:
    """A server in a process group of its own, on a fixed port: a command of Python without the port.

    It is ready once it answers `health`, asked for by `method`; its log is in its folder.
    """

    def __init__(self, folder: Path, command: list[str], health: str, method: str = "GET") -> None:
        self.folder, self._command, self._health, self._method = folder, command, health, method
        self.port = free_port()
        self.uri = f"http://127.0.0.1:{self.port}"
        self.pid = 0
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, **environment: str) -> "Service":
        self.folder.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", *self._command, "--port", str(self.port)]
        quiet = {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
        log = self.folder / "log.txt"
        with log.open("ab") as file:
            how: dict[str, Any] = {"stdout": file, "stderr": file, "start_new_session": True}
            environment = {**os.environ, **quiet, **environment}
            process = subprocess.Popen(command, cwd=self.folder, env=environment, **how)
        self._process, self.pid = process, process.pid
        end = time.monotonic() + PATIENCE
        asked = urllib.request.Request(f"{self.uri}{self._health}", method=self._method)
        while True:
            with contextlib.suppress(OSError):
                urllib.request.urlopen(asked, timeout=30).close()
                return self
            assert process.poll() is None and time.monotonic() < end, log.read_text()
            time.sleep(0.1)

    def kill(self) -> None:
        """Kill all its processes, and wait until the port is silent."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._process.wait()
        self._process = None
        while True:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) != 0:
                    return
            time.sleep(0.05)


def tracking_server(folder: Path, store: str = "") -> Service:
    """Return MLflow's server with the settings of ``cluster/node/head``, not started; its files are in a folder."""
    command = ["mlflow", "server", "--host", "127.0.0.1", "--workers", "1"]
    command += ["--backend-store-uri", store or f"sqlite:///{folder / 'mlflow.db'}"]
    command += ["--artifacts-destination", str(folder / "artifacts")]
    return Service(folder, command, "/health")


def bucket_server(folder: Path, bucket: str) -> Service:
    return Service(folder, ["moto.server", "-H", "127.0.0.1"], f"/{bucket}", "PUT")
