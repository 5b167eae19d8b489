"""Figures of a sweep's trials, drawn by several processes if there are many trials."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

from flray.records import directory
from flray.records.events import read_events
from flray.records.journal import Journal
from flray.runs.figures import draw_figures
from flray.runs.mlflow_model import save_mlflow_models
from flray.startup import usable_cpus
from flray.tuning.trial_store import TrialFolder, trial_folders

TRIALS_PER_PROCESS = 20
"""Trials whose figures take about ten times as long as starting a process for them."""


def draw_trials(folder: Path, notify: Callable[[str], None]) -> None:
    """Draw the figures of each trial that has none, as for a single run, and list them for MLflow.

    Parameters
    ----------
    folder : Path
        The sweep's folder.
    notify : callable
        Called with a line if the drawing takes long.
    """
    left = [trial.number for trial in trial_folders(folder) if not _is_listed(trial)]
    count = min(usable_cpus(), len(left) // TRIALS_PER_PROCESS)
    if count > 1:
        notify(f"the figures of {len(left)} trials are drawn, in {count} processes")
        root = str(Path(__file__).parents[2])
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, "-m", __name__, str(folder.resolve())]
        parts = [left[start::count] for start in range(count)]
        processes = [
            subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env=os.environ | {"PYTHONPATH": path},
            )
            for _ in parts
        ]
        try:
            for process, part in zip(processes, parts, strict=True):
                assert process.stdin is not None
                with contextlib.suppress(OSError), process.stdin as pipe:
                    pipe.write("\n".join(part).encode())
            for process in processes:
                process.wait()
        finally:
            for process in processes:
                process.kill()
                process.wait()
    _draw(folder, left)  # all of few, and what a process that failed left


def _draw(folder: Path, numbers: Sequence[str]) -> None:
    for trial in (TrialFolder(folder, number) for number in numbers):
        if _is_listed(trial):
            continue
        with Journal(trial.path / directory.JOURNAL) as journal:
            tracking = directory.read_config(trial.path)["experiment"].get("tracking") or {}
            if tracking.get("model") and trial.status == "finished":
                save_mlflow_models(trial.path, journal, logging.getLogger("flray").info)
            draw_figures(trial.path, journal, str(trial.identity.get("metric") or ""))


def _is_listed(trial: TrialFolder) -> bool:
    return any(
        event["type"] == "artifact" and event["path"] == directory.CONFIG
        for event in read_events(trial.path / directory.JOURNAL)
    )


if __name__ == "__main__":
    _draw(Path(sys.argv[1]), sys.stdin.read().split())
