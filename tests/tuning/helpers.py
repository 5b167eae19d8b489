"""What the tests of sweeps share: trials of a file, a display that keeps its lines, a driver that is killed."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flray.config.experiment import Config
from flray.config.loader import load
from flray.records import directory
from flray.records.journal import read_events
from flray.results.sweep import SweepResult
from flray.runs.loop import NullProgress
from flray.tuning.space import TrialSpec, enumerate_settings, resolve_sweep, trial_specs
from flray.tuning.trial_store import trial_folders


def specs(source: Any, overrides: Sequence[Any] = ()) -> tuple[Config, list[TrialSpec]]:
    """Return a sweep's resolved configuration and its trials."""
    config = resolve_sweep(load(source, overrides))
    return config, trial_specs(config, enumerate_settings(config))


def begin(config: Config, folder: Path) -> None:
    """Write what a sweep's folder has before its trials."""
    folder.mkdir(exist_ok=True)
    directory.save_config(folder, config)
    directory.write(folder, "sweep", directory.new_identity())


class Seen(NullProgress):
    """Keeps the lines of a sweep, the trials that it started, and how it stood."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self.started: list[str] = []
        self.stood: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)

    def trial_started(self, number: str, label: str, rounds_done: int) -> None:
        self.started.append(label)

    def standing(self, line: str) -> None:
        self.stood.append(line)

    @property
    def tried_again(self) -> list[str]:
        return [line for line in self.lines if "tried again" in line]


def digests(result: SweepResult) -> list[str]:
    return list(result.results["sha256"])


def rounds_recorded(folder: Path, phase: str = "comparison") -> int:
    """Return how many rounds all trials of a phase have recorded so far."""
    return sum(
        event["type"] == "round"
        for trial in trial_folders(folder)
        if trial.identity["phase"] == phase
        for event in read_events(trial.path)
    )


def drive_and_kill(function: str, path: Path, when: Callable[[], bool]) -> None:
    """Call `flray.api` in a process of its own, and kill that with SIGKILL once `when` holds."""
    script = (
        f"import sys, pathlib; from flray import api; api.{function}(pathlib.Path(sys.argv[1]))"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", script, path], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    deadline = time.monotonic() + 240
    while not when():
        assert process.poll() is None, process.communicate()[0].decode()
        assert time.monotonic() < deadline
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait(timeout=30)
