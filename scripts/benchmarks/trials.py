"""What a trial costs its sweep, from few to many: the driver's memory and seconds, and the seconds of a report.

Trials are as small as they can be (a linear model, 2 rounds, 40 images a domain), so that what is measured is the
driver: following Tune, journals, MLflow, tables, figures. A sweep of each size runs in a process of its own.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

SEEDS = 10


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
            try:
                held = self._process.memory_info().rss / 2**20
            except psutil.NoSuchProcess:
                return
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


def measured(trials: int) -> list[str]:
    """Return the row of a sweep of so many trials."""
    import yaml

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "sweep.yaml").write_text(yaml.safe_dump(settings(trials)))
        sweep = folder / "runs" / "trials" / "001"
        begun = time.perf_counter()
        with subprocess.Popen(
            [sys.executable, "-m", "flray", "tune", "sweep.yaml"],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        ) as process:
            watch = Watch(process, sweep / "trials")
            watch.start()
            process.wait()
        watch.join()
        end = time.perf_counter()
        if process.returncode or not watch.ended_at:
            raise SystemExit(f"the sweep of {trials} trials failed: exit code {process.returncode}")
        ended = [held for count, held in watch.seen if count >= trials // 2]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        report_begun = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "flray", "report", str(sweep)],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            check=True,
        )
        reported = time.perf_counter() - report_begun
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return [
        f"{trials:,}",
        f"{watch.ended_at - begun:.0f}",
        f"{end - watch.ended_at:.0f}",
        f"{watch.seen[0][1]:.0f}",
        f"{ended[-1]:.0f}",
        f"{watch.most:.0f}",
        f"{reported:.1f}",
        f"{cpu:.1f}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, nargs="+", default=[20, 100, 1000])
    options = parser.parse_args()
    table = Table(
        "trials",
        "s until the last ended",
        "s after it",
        "driver MiB: first ended",
        "last ended",
        "most",
        "report s",
        "its CPU s",
        title="sweeps of small trials",
    )
    for trials in options.trials:
        table.add_row(*measured(trials))
    Console().print(table)


if __name__ == "__main__":
    main()
