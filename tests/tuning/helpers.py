"""What the tests of sweeps share: trials of a file, a display that keeps its lines, a driver that is killed."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from flray.config.experiment import Config
from flray.config.loader import load
from flray.records import directory, read_events
from flray.results.sweep import SweepResult
from flray.tuning.space import TrialSpec, enumerate_settings, resolve_sweep, trial_specs
from flray.tuning.trial_store import TrialFolder, trial_folders
from tests.helpers import Said


def specs(source: Any, overrides: Sequence[Any] = ()) -> tuple[Config, list[TrialSpec]]:
    config = resolve_sweep(load(source, overrides))
    return config, trial_specs(config, enumerate_settings(config))


def begin(config: Config, folder: Path) -> None:
    """Write what a sweep's folder has before its trials."""
    folder.mkdir(exist_ok=True)
    directory.save_config(folder, config)
    directory.write(folder, "sweep", directory.new_identity())


def begun(content: Any, folder: Path) -> tuple[Config, list[TrialSpec]]:
    """Begin a sweep, and return its configuration and trials."""
    config, made = specs(content)
    begin(config, folder)
    return config, made


def leave(
    folder: Path, point: TrialSpec, config: Config, metrics: Iterable[Any], **ended: Any
) -> TrialFolder:
    """Leave what a trial leaves that has recorded rounds, from the first on, and ended as is said."""
    trial = TrialFolder(folder, point.number)
    trial.create(point, config)
    session = trial.begin(point, directory.read(folder), config)
    for round_, values in enumerate(metrics, start=1):
        session.journal.record_round(round_, values)
    trial.end(session, **{"status": "finished", **ended})
    session.journal.close()
    return trial


class Seen(Said):
    """Keeps the lines of a sweep, the trials that it started, and how it stood."""

    def __init__(self) -> None:
        super().__init__()
        self.started: list[str] = []
        self.stood: list[str] = []

    def trial_started(self, number: str, label: str, rounds_done: int) -> None:
        self.started.append(label)

    def standing(self, line: str) -> None:
        self.stood.append(line)


def digests(result: SweepResult) -> list[str]:
    return list(result.results["sha256"])


def left(folder: Path) -> list[tuple[Any, ...]]:
    """Return of each trial its number, status, setting, seed, digest, and scores."""
    keys = ("setting", "seed", "sha256")
    trials = trial_folders(folder)
    return [(f.number, f.status, *map(f.identity.get, keys), f.scores()) for f in trials]


def rounds_recorded(folder: Path, phase: str = "comparison") -> int:
    """Return how many rounds all trials of a phase have recorded so far."""
    trials = (trial for trial in trial_folders(folder) if trial.identity["phase"] == phase)
    return sum(event["type"] == "round" for trial in trials for event in read_events(trial.path))


KILLED = """
import os
import signal
import sys
from pathlib import Path

from flray import api
from flray.records import listen
from tests.tuning.helpers import rounds_recorded

function, path, folder, phase, rounds = sys.argv[1:]

def look(_):
    if rounds_recorded(Path(folder), phase) >= int(rounds):
        os.kill(os.getpid(), signal.SIGKILL)

listen(look)
getattr(api, function)(Path(path))
"""


def drive_and_kill(
    function: str, path: Path, folder: Path, rounds: int, phase: str = "comparison"
) -> None:
    """Call `flray.api` in a process of its own, which SIGKILL ends once a phase has so many rounds."""
    command = [sys.executable, "-c", KILLED, function, path, folder, phase, str(rounds)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with tempfile.TemporaryFile() as said:  # not a pipe: what is left of its Ray would hold that
        code = subprocess.run(command, env=environment, stdout=said, stderr=said).returncode
        said.seek(0)
        assert code == -signal.SIGKILL, said.read().decode()
