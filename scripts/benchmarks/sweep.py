"""What a sweep costs beside the training of its trials, and its throughput against bare PyTorch, in one run.

The same trials (learning rates x seeds of FedAvg on the same network, images and rounds) are done by
a sweep and by two bare PyTorch processes of one thread, in turn: few short ones, more short ones,
long ones. The seconds of a sweep are then solved for three prices: of the sweep, of a trial and of
a bare second of training. "Shown" is when the sweep's values are on the screen; figures and report
follow.
"""

import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import yaml
from bare import work
from runner import FOREVER, begin, experiment, flray, option, returned, show

LIMIT = 0.85
SHOWN = "the values above are final"
SEEDS = (0, 1)


@dataclass
class Options:
    trials: int = option(8, "long ones, an even number")
    rounds: int = option(130, "of the long trials")
    short: int = option(12, "rounds of the short trials, of which 4 and 16 run")
    clients: int = 20
    cohort: int = 8
    samples: int = option(500, "per client")
    model: str = "lenet"
    executor: str = option("ray", "of the sweep's trials", choices=("ray", "inline"))
    passes: int = 2


class Size(NamedTuple):
    """How many trials a sweep has, and how many rounds each."""

    trials: int
    rounds: int


class Seconds(NamedTuple):
    """Seconds of a sweep until its values are shown and until its end, and of bare PyTorch's start and training."""

    shown: float
    whole: float
    start: float
    training: float


def rates(size: Size) -> list[float]:
    """Return the learning rates of a sweep, each for two seeds."""
    return [0.01 * 1.3**i for i in range(size.trials // 2)]


def settings(size: Size, options: Options) -> dict[str, Any]:
    content = experiment(
        options.clients,
        options.samples,
        name="sweep-benchmark",
        rounds=size.rounds,
        model={"name": options.model},
        local={"epochs": 1, "batch_size": 64},
        participation={"clients": options.cohort},
        evaluation={"every": FOREVER},
        resources={"executor": options.executor},
    )
    content.pop("tracking")
    space = {"local.lr": {"grid": rates(size)}}
    return {"experiment": content, "space": space, "sweep": {"seeds": [*SEEDS]}}


def swept(size: Size, options: Options) -> tuple[float, float]:
    """Return the seconds of the sweep until its values are shown, and until its end."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sweep.yaml"
        file.write_text(yaml.safe_dump(settings(size, options)))
        given = (f"output={folder}/runs", f"tracking.uri=sqlite:///{folder}/mlflow.db")
        command = flray("tune", str(file), *given)
        begun, shown = time.perf_counter(), 0.0
        with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            for line in process.stdout:
                shown = time.perf_counter() - begun if SHOWN in line else shown
        whole = time.perf_counter() - begun
        if process.returncode or not shown:
            raise SystemExit(f"the sweep ended with {process.returncode}")
        table = pd.read_csv(next(Path(folder).glob("runs/*/001/results.csv")))
    if list(table["status"]) != ["finished"] * size.trials:
        raise SystemExit(f"trials did not finish: {list(table['status'])}")
    return shown, whole


def bare(size: Size, options: Options) -> tuple[float, float]:
    """Return the seconds that two processes that share the trials take to start, and to train."""
    trials = [(rate, seed) for rate in rates(size) for seed in SEEDS]
    spec = work(options, batch=64)
    begun = time.perf_counter()
    shares = [trials[i::2] for i in range(2)]
    processes = [begin("bare", "train_trials", spec, size.rounds, share) for share in shares]
    training = max([returned(process) for process in processes])
    return time.perf_counter() - begun - training, training


def measure(sizes: list[Size], options: Options) -> list[Seconds]:
    """Return the mean seconds of each size; who goes first alternates, for a machine that changes its pace."""
    found: list[list[Seconds]] = [[] for _ in sizes]
    for number in range(options.passes):
        for size, seconds in zip(sizes, found, strict=True):
            order = (swept, bare) if number % 2 else (bare, swept)
            took = {who: who(size, options) for who in order}
            seconds.append(Seconds(*took[swept], *took[bare]))
    return [Seconds(*np.mean(seconds, axis=0)) for seconds in found]


def prices(sizes: list[Size], seconds: list[Seconds], of: str) -> np.ndarray:
    """Return the seconds of a sweep, of a trial, and of a bare second of training on each of two processes."""
    training = [one.training for one in seconds]
    equations = [[1.0, size.trials / 2, t] for size, t in zip(sizes, training, strict=True)]
    return np.linalg.solve(np.array(equations), [getattr(one, of) for one in seconds])


def main(options: Options) -> bool:
    sizes = [Size(4, options.short), Size(16, options.short), Size(options.trials, options.rounds)]
    seconds = measure(sizes, options)
    alone = [one.start + one.training for one in seconds]
    show(
        None,
        "trials | rounds | bare PyTorch s :.1f | values shown s :.1f | whole sweep s :.1f | ratio :.3f",
        [
            (*size, by_hand, one.shown, one.whole, by_hand / one.whole)
            for size, one, by_hand in zip(sizes, seconds, alone, strict=True)
        ],
    )
    for name, of in (("until the values are shown", "shown"), ("in all", "whole")):
        sweep, trial, slope = prices(sizes, seconds, of)
        print(
            f"{name}: a sweep costs {sweep:.1f} s, a trial {trial:.2f} s, a bare second {slope:.3f}"
        )
    ratio = alone[-1] / seconds[-1].whole
    print(f"throughput of the long trials against bare: {ratio:.3f} (limit {LIMIT})")
    return bool(ratio >= LIMIT)
