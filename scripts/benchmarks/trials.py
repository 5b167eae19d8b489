"""What a trial costs its sweep, from few to many: the driver's memory and seconds, and the seconds of a report.

Trials are as small as they can be (a linear model, 2 rounds, 40 images a domain), so that what is measured is the
driver: following Tune, journals, MLflow, tables, figures. A sweep of each size runs in a process of its own.
"""

import contextlib
import subprocess
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
from runner import MIB, flray, option, processor_seconds, show

SWEEP = """
experiment:
  name: trials
  rounds: 2
  data: {name: digits-sklearn, samples: 40}
  partition: domains
  model: linear
  algorithm: fedavg
  local: {lr: 0.05, batch_size: 16}
  resources: {executor: inline}
space: {local.lr: {loguniform: [0.001, 0.5]}, local.momentum: {uniform: [0.0, 0.9]}}
sweep: {seeds: [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]}
"""


@dataclass
class Options:
    trials: Sequence[int] = option((20, 100, 1000))


def measured(trials: int) -> tuple[object, ...]:
    """Return the row of a sweep of so many trials, whose driver is looked at once a second."""
    held: list[float] = []
    seen: list[tuple[int, float]] = []  # how many trials have ended, and what the driver holds
    ended_at = 0.0
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "sweep.yaml").write_text(SWEEP)
        sweep = folder / "runs" / "trials" / "001"
        begun = time.perf_counter()
        nothing = subprocess.DEVNULL
        command = flray("tune", "sweep.yaml", f"sweep.samples={trials // 10}")
        with subprocess.Popen(command, cwd=folder, stdout=nothing, stderr=nothing) as process:
            driver = psutil.Process(process.pid)
            while process.poll() is None:
                with contextlib.suppress(psutil.NoSuchProcess):
                    held.append(driver.memory_info().rss / MIB)
                if not ended_at:
                    files = list(sweep.glob("trials/*/run.json"))
                    ended = sum('"sha256"' in file.read_text() for file in files)
                    if ended:
                        seen.append((ended, held[-1]))
                    if ended and ended == len(files):
                        ended_at = time.perf_counter()
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(1)
        end = time.perf_counter()
        if process.returncode or not ended_at:
            raise SystemExit(f"the sweep of {trials} trials failed: exit code {process.returncode}")
        report_begun = time.perf_counter()
        cpu = processor_seconds(flray("report", str(sweep)), folder)
        reported = time.perf_counter() - report_begun
    return (
        *(trials, ended_at - begun, end - ended_at),
        *(seen[0][1], seen[-1][1], max(held), reported, cpu),
    )


def main(options: Options) -> None:
    show(
        "sweeps of small trials",
        "trials :, | s until the last ended :.0f | s after it :.0f | driver MiB: first ended :.0f"
        " | last ended :.0f | most :.0f | report s :.1f | its CPU s :.1f",
        [measured(trials) for trials in options.trials],
    )
