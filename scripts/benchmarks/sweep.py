"""Trials per hour of a sweep against the same trials by bare PyTorch processes, start-up included, in one run.

Both do the same trials (learning rates x seeds of FedAvg on the same network, images and rounds) on
two processes of one thread each; they run one after the other, twice, in the order bare, flray,
flray, bare, so that a machine that becomes slower or faster meanwhile favours nobody.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

LIMIT = 0.85


def settings(options: argparse.Namespace) -> dict[str, Any]:
    rates = [0.01 * 1.3**i for i in range(options.trials // 2)]
    return {
        "experiment": {
            "name": "sweep-benchmark",
            "rounds": options.rounds,
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


def flray(options: argparse.Namespace) -> tuple[float, float]:
    """Return the seconds of the sweep and the median trial's."""
    import pandas as pd
    import yaml

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "sweep.yaml"
        file.write_text(yaml.safe_dump(settings(options)))
        begun = time.perf_counter()
        subprocess.run(
            [
                sys.executable,
                "-m",
                "flray.tune",
                file,
                f"output={folder}/runs",
                f"tracking.uri=sqlite:///{folder}/mlflow.db",
            ],
            check=True,
            cwd=folder,
            stdout=subprocess.DEVNULL,
        )
        seconds = time.perf_counter() - begun
        table = pd.read_csv(next(Path(folder).glob("runs/*/001/results.csv")))
    if list(table["status"]) != ["finished"] * options.trials:
        raise SystemExit(f"trials did not finish: {list(table['status'])}")
    return seconds, float(table["seconds"].median())


def bare(options: argparse.Namespace) -> float:
    """Return the seconds of two processes that share the trials."""
    content = settings(options)
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
    shares = [json.dumps([spec, options.rounds, trials[i::2]]) for i in range(2)]
    processes = [subprocess.Popen([sys.executable, __file__, "--bare", share]) for share in shares]
    if any(process.wait() for process in processes):
        raise SystemExit("a bare process failed")
    return time.perf_counter() - begun


def bare_process(spec: dict[str, Any], rounds: int, trials: list[tuple[float, int]]) -> None:
    import torch
    from bare import OneProcess

    torch.set_num_threads(1)
    for rate, seed in trials:
        torch.manual_seed(seed)
        worker = OneProcess({**spec, "lr": rate})
        for _ in range(rounds):
            worker.round()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=8, help="an even number")
    parser.add_argument(
        "--rounds", type=int, default=130, help="with the other defaults 130 make a minute"
    )
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--cohort", type=int, default=8)
    parser.add_argument("--samples", type=int, default=500, help="per client")
    parser.add_argument("--model", default="lenet")
    parser.add_argument(
        "--executor", choices=["ray", "inline"], default="ray", help="of the sweep's trials"
    )
    parser.add_argument("--once", action="store_true", help="bare, flray; not again in reverse")
    parser.add_argument("--bare", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.bare:
        bare_process(*json.loads(options.bare))
        return
    console = Console(width=110)
    bare_seconds, flray_seconds, trial = [bare(options)], [], 0.0
    for _ in range(1 if options.once else 2):
        seconds, trial = flray(options)
        flray_seconds.append(seconds)
    if not options.once:
        bare_seconds.append(bare(options))
    table = Table(
        "contestant",
        "seconds",
        "trials per hour",
        title=f"{options.trials} trials of {trial:.0f} s, "
        f"{options.cohort} of {options.clients} clients x {options.samples} images, "
        f"{options.rounds} rounds",
    )
    for name, values in (
        ("bare PyTorch, two processes", bare_seconds),
        ("flray sweep", flray_seconds),
    ):
        table.add_row(
            name,
            ", ".join(f"{v:.0f}" for v in values),
            f"{options.trials * len(values) / sum(values) * 3600:.0f}",
        )
    console.print(table)
    ratio = sum(bare_seconds) / sum(flray_seconds)
    console.print(f"throughput against bare: {ratio:.3f} (limit {LIMIT})")
    raise SystemExit(0 if ratio >= LIMIT else 1)


if __name__ == "__main__":
    main()
