"""What does LG-Mix cost? Seconds per round against FedAvg on the same work, in this process, in one run.

Both take the same steps on the same batches; they take turns, round by round, so that whatever else
the machine does hits both alike. Ratios are medians of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import statistics
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from flray.config.loader import load
from flray.federation.building import build_spec
from flray.federation.federation import inline_federation


def experiment(
    options: argparse.Namespace, model: str, algorithm: str, samples: int
) -> dict[str, Any]:
    return {
        "experiment": {
            "rounds": 100000,
            "algorithm": algorithm,
            "model": {"name": model, "norm": "batch"},
            "data": {
                "name": "random",
                "samples": options.clients * samples,
                "shape": [3, 32, 32],
                "classes": 10,
            },
            "partition": {"name": "iid", "clients": options.clients},
            "local": {"epochs": options.epochs, "batch_size": options.batch, "lr": 0.01},
            "evaluation": {"every": 100000},
            "tracking": {"uri": None},
            "resources": {"executor": "inline"},
        }
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=11, help="measured rounds of each method")
    parser.add_argument("--clients", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=1, help="the paper's setting is 1")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument(
        "--networks",
        nargs="+",
        default=["lenet:1000", "resnet8:100"],
        metavar="NAME:SAMPLES",
        help="networks with batch norm, and training samples per client",
    )
    parser.add_argument("--method", default="lgmix", help="another method to set beside fedavg")
    options = parser.parse_args()
    torch.set_num_threads(1)
    table = Table(
        "network",
        "samples per client",
        "fedavg, s/round",
        f"{options.method}, s/round",
        "ratio",
        title=f"{options.clients} clients, batch {options.batch}, epochs {options.epochs}, "
        f"medians of {options.rounds} rounds",
    )
    for network in options.networks:
        model, _, samples = network.partition(":")
        count = int(samples or 500)
        federations = [
            inline_federation(
                build_spec(load(experiment(options, model, name, count)).experiment), print
            )
            for name in ("fedavg", options.method)
        ]
        times: list[list[float]] = [[], []]
        for number in range(options.rounds + 2):
            for federation, seconds in zip(federations, times, strict=True):
                passed = federation.step().metrics["time/round"]
                if number >= 2:
                    seconds.append(passed)
        for federation in federations:
            federation.close()
        ratio = statistics.median(b / a for a, b in zip(*times, strict=True))
        table.add_row(
            model, str(count), *(f"{statistics.median(t):.4f}" for t in times), f"{ratio:.3f}"
        )
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
