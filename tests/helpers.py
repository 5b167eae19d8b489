"""Small experiments and commands in this process, files of settings, and Python in a process of its own."""

import contextlib
import io
import random
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from flray.cli.main import invoke
from flray.config.loader import load
from flray.federation import FederationSpec
from flray.federation.building import build_spec
from flray.runs.progress import Progress

Settings = dict[str, Any]  # as a user writes them in YAML
VARIES = ("time/", "memory/", "system/", "train/seconds")
"""Metrics of the machine, which are never the same twice."""
INLINE: Settings = {"resources": {"executor": "inline"}, "tracking": {"uri": None}}


def inline(settings: Settings, **changes: Any) -> dict[str, Any]:
    return {"experiment": {**settings, **INLINE, **changes}}


def small(**changes: Any) -> dict[str, Any]:
    named = {"data": "digits-sklearn", "model": "linear", "algorithm": "fedavg", "rounds": 1}
    return {**named, **INLINE, **changes}


def written(experiment: Settings, file: str = "x.yaml", **sections: Any) -> str:
    """Write the settings of an experiment into the current folder and return the file's name."""
    Path(file).write_text(yaml.safe_dump({"experiment": experiment, **sections}))
    return file


def built(experiment: Settings, **changes: Any) -> FederationSpec:
    return build_spec(load({"experiment": {**experiment, **changes}}).experiment)


def cases(names: str, rows: str) -> pytest.MarkDecorator:
    """Run a test with each of some settings, which are written as in a user's file: ``{}, {mu: 0.1}``."""
    return pytest.mark.parametrize(names, yaml.safe_load(f"[{rows}]"), ids=str)


def steady(metrics: Any) -> dict[str, Any]:
    """Return the metrics, or the columns of a history, that neither clock nor memory decides."""
    return {name: value for name, value in metrics.items() if not name.startswith(VARIES)}


def tracked(uri: str, experiment: str) -> list[Any]:
    """Return the runs of an experiment in a store of MLflow."""
    from flray.tracking.client import connect

    client = connect(uri)
    found = client.get_experiment_by_name(experiment)
    return list(client.search_runs([found.experiment_id])) if found else []


def printed(*command: str) -> str:
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert invoke([*command]) == 0
    return out.getvalue()


def told(code: int, *command: str) -> str:
    """Type a command that ends with an exit code, and return what it says to stderr."""
    err = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(err):
        assert invoke([*command]) == code, err.getvalue()
    return err.getvalue()


def free_port() -> int:
    """Return a port that nothing listens at, and that no process is given as the end of a connection."""
    for port in random.sample(range(20_000, 32_000), 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")


class Clock:
    """Seconds that pass only where a test says so, and a hundredth with each look."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        self.now += 0.01
        return self.now


class Said(Progress):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)

    def find(self, words: str) -> list[str]:
        return [line for line in self.lines if words in line]


class StopAfter(Said):
    def __init__(self, last: int) -> None:
        super().__init__()
        self.last = last

    def round(self, finished: Any, metric: str) -> None:
        if finished.number == self.last:
            raise KeyboardInterrupt


def ended(*words: str, timeout: float = 580, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run Python with some arguments in a fresh process that has to end well."""
    command = [sys.executable, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done


def python(code: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    return ended("-c", code, *arguments, **options)
