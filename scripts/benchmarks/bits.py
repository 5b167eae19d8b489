"""What do portable bits cost? Rounds with ``resources.bits: portable`` beside native ones, in alternating processes.

Prints by network the seconds per round, the best of all repetitions, and portable's ratio to
native. Each process runs one federation inline with one thread; its first round, in which memory
is fetched and kernels are made, does not count.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

from rich.console import Console
from rich.table import Table

from flray.bits import VARIABLES

NETWORKS = ("lenet", "mlp", "resnet8")


def time_rounds(network: str, precision: str, rounds: int, samples: int) -> None:
    """Print the seconds of the fastest round but the first."""
    from flray.config.loader import load
    from flray.federation.building import build_spec
    from flray.federation.executor import InlineExecutor
    from flray.federation.federation import Federation

    spec = build_spec(
        load(
            {
                "experiment": {
                    "rounds": rounds + 1,
                    "data": {"name": "digits-sklearn", "samples": samples},
                    "model": network,
                    "algorithm": "fedavg",
                    "local": {"batch_size": 32, "precision": precision},
                    "tracking": {"uri": None},
                    "evaluation": {"every": rounds + 1},
                }
            }
        ).experiment
    )
    federation = Federation(spec, InlineExecutor(spec))
    seconds = [federation.step().metrics["time/round"] for _ in range(rounds)]
    print(min(seconds[1:]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--samples", type=int, default=250, help="per client, of four")
    parser.add_argument(
        "--measure", nargs=2, metavar=("NETWORK", "PRECISION"), help=argparse.SUPPRESS
    )
    options = parser.parse_args()
    if options.measure:
        network, precision = options.measure
        time_rounds(network, precision, options.rounds, options.samples)
        return
    table = Table("network", "precision", "native s", "portable s", "ratio")
    for network, precision in [
        *((network, "float32") for network in NETWORKS),
        ("lenet", "float64"),
        ("lenet", "bfloat16"),
    ]:
        best = {"native": float("inf"), "portable": float("inf")}
        for _ in range(options.repetitions):
            for setting in best:
                environment = {
                    name: value for name, value in os.environ.items() if name not in VARIABLES
                }
                done = subprocess.run(
                    [
                        sys.executable,
                        __file__,
                        "--measure",
                        network,
                        precision,
                        "--rounds",
                        str(options.rounds),
                        "--samples",
                        str(options.samples),
                    ],
                    check=True,
                    capture_output=True,
                    text=True,
                    env={**environment, **(VARIABLES if setting == "portable" else {})},
                )
                best[setting] = min(best[setting], float(done.stdout))
        table.add_row(
            network,
            precision,
            *(f"{seconds:.3f}" for seconds in best.values()),
            f"{best['portable'] / best['native']:.2f}",
        )
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
