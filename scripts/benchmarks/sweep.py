"""What a sweep costs beside the training of its trials, and its throughput against bare PyTorch, in one run.

The same trials (learning rates x seeds of FedAvg on the same network, images and rounds) are done by
a sweep and by two bare PyTorch processes of one thread, in turn: few short ones, more short ones,
long ones. The seconds of a sweep are then solved for three prices: of the sweep, of a trial and of
a bare second of training. "Shown" is when the sweep's values are on the screen; figures and report
follow.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

LIMIT = 0.85
SHOWN = "the values above are final"


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


def settings(size: Size, options: argparse.Namespace) -> dict[str, Any]:
    rates = [0.01 * 1.3**i for i in range(size.trials // 2)]
    return {
        "experiment": {
            "name": "sweep-benchmark",
            "rounds": size.rounds,
            "algorithm": "fedavg",
            "data": {
                "name": "random",
                "samples": options.clients * options.samples,
                "shape": [3, 32, 32],
                "classes": 10,
            },
            "partition": {"name": "iid", "clients": options.clients},
            "model": {"name": options.model},
            "local": {"epochs": 1, "batch_size": 64},
            "participation": {"clients": options.cohort},
            "evaluation": {"every": 100000},
            "resources": {"executor": options.executor},
        },
        "space": {"local.lr": {"grid": rates}},
        "sweep": {"seeds": [0, 1]},
    }


def flray(size: Size, options: argparse.Namespace) -> tuple[float, float]:
    """Return the seconds of the sweep until its values are shown, and until its end."""
    import pandas as pd
    import yaml

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sweep.yaml"
        file.write_text(yaml.safe_dump(settings(size, options)))
        begun, shown = time.perf_counter(), 0.0
        with subprocess.Popen(
            [
                sys.executable,
                "-m",
                "flray.tune",
                file,
                f"output={folder}/runs",
                f"tracking.uri=sqlite:///{folder}/mlflow.db",
            ],
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
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


def bare(size: Size, options: argparse.Namespace) -> tuple[float, float]:
    """Return the seconds that two processes that share the trials take to start, and to train."""
    content = settings(size, options)
    trials = [(rate, seed) for rate in content["space"]["local.lr"]["grid"] for seed in (0, 1)]
    spec = {
        "model": options.model,
        "shape": [3, 32, 32],
        "classes": 10,
        "clients": options.clients,
        "cohort": options.cohort,
        "samples": options.samples,
        "batch": 64,
        "channels_last": True,
    }
    begun = time.perf_counter()
    shares = [json.dumps([spec, size.rounds, trials[i::2]]) for i in range(2)]
    processes = [
        subprocess.Popen(
            [sys.executable, __file__, "--bare", share], stdout=subprocess.PIPE, text=True
        )
        for share in shares
    ]
    training = [float(process.communicate()[0] or "nan") for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit("a bare process failed")
    return time.perf_counter() - begun - max(training), max(training)


def bare_process(spec: dict[str, Any], rounds: int, trials: list[tuple[float, int]]) -> None:
    import torch
    from bare import OneProcess

    torch.set_num_threads(1)
    begun = time.perf_counter()
    for rate, seed in trials:
        torch.manual_seed(seed)
        worker = OneProcess({**spec, "lr": rate})
        for _ in range(rounds):
            worker.round()
    print(time.perf_counter() - begun)


def measure(sizes: list[Size], options: argparse.Namespace) -> list[Seconds]:
    """Return the mean seconds of each size; who goes first alternates, for a machine that changes its pace."""
    found: list[list[Seconds]] = [[] for _ in sizes]
    for number in range(options.passes):
        for size, seconds in zip(sizes, found, strict=True):
            if number % 2:
                sweep = flray(size, options)
                seconds.append(Seconds(*sweep, *bare(size, options)))
            else:
                alone = bare(size, options)
                seconds.append(Seconds(*flray(size, options), *alone))
    return [Seconds(*np.mean(seconds, axis=0)) for seconds in found]


def prices(sizes: list[Size], seconds: list[Seconds], of: str) -> np.ndarray:
    """Return the seconds of a sweep, of a trial, and of a bare second of training on each of two processes."""
    training = [one.training for one in seconds]
    equations = [[1.0, size.trials / 2, t] for size, t in zip(sizes, training, strict=True)]
    return np.linalg.solve(np.array(equations), [getattr(one, of) for one in seconds])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=8, help="long ones, an even number")
    parser.add_argument("--rounds", type=int, default=130, help="of the long trials")
    parser.add_argument(
        "--short", type=int, default=12, help="rounds of the short trials, of which 4 and 16 run"
    )
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--cohort", type=int, default=8)
    parser.add_argument("--samples", type=int, default=500, help="per client")
    parser.add_argument("--model", default="lenet")
    parser.add_argument(
        "--executor", choices=["ray", "inline"], default="ray", help="of the sweep's trials"
    )
    parser.add_argument("--passes", type=int, default=2)
    parser.add_argument("--bare", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bare:
        bare_process(*json.loads(options.bare))
        return
    sizes = [Size(4, options.short), Size(16, options.short), Size(options.trials, options.rounds)]
    seconds = measure(sizes, options)
    console = Console(width=110)
    table = Table("trials", "rounds", "bare PyTorch s", "values shown s", "whole sweep s", "ratio")
    for size, one in zip(sizes, seconds, strict=True):
        alone = one.start + one.training
        table.add_row(
            str(size.trials),
            str(size.rounds),
            f"{alone:.1f}",
            f"{one.shown:.1f}",
            f"{one.whole:.1f}",
            f"{alone / one.whole:.3f}",
        )
    console.print(table)
    for name, of in (("until the values are shown", "shown"), ("in all", "whole")):
        sweep, trial, slope = prices(sizes, seconds, of)
        console.print(
            f"{name}: a sweep costs {sweep:.1f} s, a trial {trial:.2f} s, a bare second {slope:.3f}"
        )
    ratio = (seconds[-1].start + seconds[-1].training) / seconds[-1].whole
    console.print(f"throughput of the long trials against bare: {ratio:.3f} (limit {LIMIT})")
    raise SystemExit(0 if ratio >= LIMIT else 1)


if __name__ == "__main__":
    main()
