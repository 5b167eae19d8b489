"""Run FedAvg and FedProx with PFLlib and with flray on the same split, and compare their accuracies over seeds.

    python scripts/checks/pfllib.py PFLLIB [--rounds R] [--times N]

PFLLIB is a checkout of TsingZ0/PFLlib, whose packages are installed beside flray's (h5py, ujson, calmsize, cvxpy).
flray makes the split, this script writes it as a file for flray and as samples for PFLlib: the same clients, training
and test samples, network, batches and rates. Initial values and the order of batches are each tool's. Exit code 1 if
the 95 % interval of a difference of means (Welch) excludes zero.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
from scipy import stats

import flray
from flray.config.loader import load
from flray.federation.manifest import divide

NAME = "Cifar10-flray"  # by this beginning PFLlib knows 3x32x32 inputs
METHODS: dict[str, tuple[Any, list[str]]] = {
    "FedAvg": ("fedavg", []),
    "FedProx": ({"name": "fedprox", "mu": 0.1}, ["-mu", "0.1"]),
}
NETWORK = """
from torch import nn
from flray import register_model
from flray.models import SplitModel

@register_model("fedavg-cnn")
def fedavg_cnn(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    first = [nn.Conv2d(shape[0], 32, 5), nn.ReLU(), nn.MaxPool2d(2)]
    second = [nn.Conv2d(32, 64, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()]
    features = nn.Sequential(*first, *second, nn.Linear(1600, 512), nn.ReLU())
    return SplitModel(features, nn.Linear(512, num_classes))
"""
RUN = "import flray, runpy, sys; sys.argv[0] = 'main.py'; runpy.run_path('main.py', run_name='__main__')"


def experiment(rounds: int) -> dict[str, Any]:
    """Return the experiment in flray's words."""
    return {
        "name": "pfllib",
        "rounds": rounds,
        "data": {"name": "digits-sklearn", "samples": 300},
        "partition": {"name": "dirichlet", "clients": 10, "alpha": 0.3, "min_size": 20, "seed": 0},
        "model": "fedavg-cnn",  # PFLlib's DNN and MLR take a log_softmax of the features where it splits off a head
        "plugins": ["fedavg_cnn.py"],
        "algorithm": "fedavg",
        "local": {"epochs": 2, "lr": 0.005, "batch_size": 10, "drop_last": True},
        "evaluation": {"every": rounds},
        "resources": {"executor": "inline"},
        "tracking": {"uri": None},
    }


def write(data: Any, folder: Path) -> None:
    """Write each client's samples in PFLlib's form, normalised as flray does."""
    mean, std = (np.array(one, np.float32)[:, None, None] for one in (data.mean, data.std))
    for part in ("train", "test"):
        (folder / part).mkdir(parents=True, exist_ok=True)
        for number, client in enumerate(data.clients):
            rows = getattr(client, part)
            x = (data.x[rows].astype(np.float32) / 255 - mean) / std
            samples = np.array({"x": x, "y": data.y[rows]}, dtype=object)
            np.savez_compressed(folder / part / f"{number}.npz", data=samples)


def theirs(root: Path, method: str, rounds: int, times: int, more: list[str]) -> list[float]:
    """Return PFLlib's test accuracies after the last round, one for each repetition."""
    import h5py

    words = f"-dev cpu -data {NAME} -ncl 10 -m CNN -algo {method} -nc 10 -ls 2 -lbs 10 -lr 0.005"
    words += f" -gr {rounds} -eg {rounds} -t {times}"
    command = [sys.executable, "-c", RUN, *words.split(), *more]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    with (root / f"{method}.log").open("w") as log:
        how: dict[str, Any] = {"cwd": root / "system", "env": environment, "stdout": log}
        subprocess.run(command, **how, stderr=log, check=True)
    found = []
    for time in range(times):
        with h5py.File(root / "results" / f"{NAME}_{method}_test_{time}.h5") as file:
            found.append(float(file["rs_test_acc"][-1]))
    return found


def main() -> int:
    """Print both tools' accuracies and their difference with its interval."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pfllib", type=Path)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--times", type=int, default=5)
    given = parser.parse_args()
    Path("fedavg_cnn.py").write_text(NETWORK)
    settings = experiment(given.rounds)
    data = divide(load({"experiment": settings}).experiment)
    split = {c.name: {"train": c.train.tolist(), "test": c.test.tolist()} for c in data.clients}
    Path("split.json").write_text(json.dumps({"clients": split}))
    write(data, given.pfllib / "dataset" / NAME)
    differ = False
    for method, (algorithm, more) in METHODS.items():
        other = theirs(given.pfllib, method, given.rounds, given.times, more)
        changed = {"partition": {"name": "file", "path": "split.json"}, "algorithm": algorithm}
        runs = [
            flray.run({"experiment": {**settings, **changed, "seed": seed}})
            for seed in range(given.times)
        ]
        own = [run.metrics["global/common/accuracy"] for run in runs]
        welch = stats.ttest_ind(own, other, equal_var=False).confidence_interval(0.95)
        differ |= not welch.low <= 0 <= welch.high
        shown = [
            f"{100 * statistics.fmean(one):.2f} ± {100 * statistics.stdev(one):.2f} %"
            for one in (own, other)
        ]
        apart = 100 * (statistics.fmean(own) - statistics.fmean(other))
        print(
            f"{method}: flray {shown[0]}, PFLlib {shown[1]}, difference {apart:.2f} "
            f"points (95 % {100 * welch.low:.2f} to {100 * welch.high:.2f}, {given.times} seeds each)",
            flush=True,
        )
    return int(differ)


if __name__ == "__main__":
    sys.exit(main())
