"""What a trial costs its sweep, from few to many: the driver's memory and seconds, and the seconds of a report.

Trials are as small as they can be (a linear model, 2 rounds, 40 images a domain), so that what is measured is the
driver: following Tune, journals, MLflow, tables, figures. A sweep of each size runs in a process of its own.
"""

import contextlib
import subprocess
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import yaml
from runner import MIB, flray, option, processor_seconds, show

SEEDS = 10


@dataclass
class Options:
    trials: Sequence[int] = option((20, 100, 1000))


def settings(trials: int) -> dict[str, Any]:
    """Return a sweep of so many trials."""
    return {
        "experiment": {
            "name": "trials",
            "rounds": 2,
            "data": {"name": "digits-sklearn", "samples": 40},
            "partition": "domains",
            "model": "linear",
            "algorithm": "fedavg",
            "local": {"lr": 0.05, "batch_size": 16},
            "resources": {"executor": "inline"},
        },
        "space": {
            "local.lr": {"loguniform": [0.001, 0.5]},
            "local.momentum": {"uniform": [0.0, 0.9]},
        },
        "sweep": {"samples": trials // SEEDS, "seeds": list(range(SEEDS))},
    }


class Watch(threading.Thread):
    """Looks at a process once a second: its resident memory, and how many trials have ended."""

    def __init__(self, process: subprocess.Popen[bytes], trials: Path) -> None:
        super().__init__(daemon=True)
        self._process, self._trials = psutil.Process(process.pid), trials
        self.most = 0.0
        self.seen: list[tuple[int, float]] = []
        self.ended_at = 0.0

    def run(self) -> None:
        """Go on until the process is gone."""
        while True:
            held = 0.0
            with contextlib.suppress(psutil.NoSuchProcess):
                held = self._process.memory_info().rss / MIB
            if not held:
                return
            self.most = max(self.most, held)
            if not self.ended_at:
                ended = sum('"sha256"' in file.read_text() for file in self._files())
                if ended:
                    self.seen.append((ended, held))
                if ended and ended == len(self._files()):
                    self.ended_at = time.perf_counter()
            time.sleep(1.0)

    def _files(self) -> list[Path]:
        return sorted(self._trials.glob("*/run.json"))


def measured(trials: int) -> tuple[object, ...]:
    """Return the row of a sweep of so many trials."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "sweep.yaml").write_text(yaml.safe_dump(settings(trials)))
        sweep = folder / "runs" / "trials" / "001"
        begun = time.perf_counter()
        nothing, command = subprocess.DEVNULL, flray("tune", "sweep.yaml")
        with subprocess.Popen(command, cwd=folder, stdout=nothing, stderr=nothing) as process:
            watch = Watch(process, sweep / "trials")
            watch.start()
            process.wait()
        watch.join()
        end = time.perf_counter()
        if process.returncode or not watch.ended_at:
            raise SystemExit(f"the sweep of {trials} trials failed: exit code {process.returncode}")
        ended = [held for count, held in watch.seen if count >= trials // 2]
        report_begun = time.perf_counter()
        cpu = processor_seconds(flray("report", str(sweep)), folder)
        reported = time.perf_counter() - report_begun
    return (
        *(trials, watch.ended_at - begun, end - watch.ended_at),
        *(watch.seen[0][1], ended[-1], watch.most, reported, cpu),
    )


def main(options: Options) -> None:
    show(
        "sweeps of small trials",
        "trials :, | s until the last ended :.0f | s after it :.0f | driver MiB: first ended :.0f"
        " | last ended :.0f | most :.0f | report s :.1f | its CPU s :.1f",
        [measured(trials) for trials in options.trials],
    )
