"""What do different networks in one federation cost? FCCL+ with a network per client on a few actors.

Prints the peak memory of the driver, the server and every client actor, and how many instances of
each network each actor holds: the one it trains and, once it has trained with it, a frozen one for
the teacher. Exits with 1 if there are more.
"""

from __future__ import annotations

import argparse
import statistics

from rich.console import Console
from rich.table import Table

from flray.config.loader import load
from flray.data.datasets.embedded import SKLEARN_DOMAINS
from flray.federation.building import build_spec
from flray.federation.memory import peak_bytes
from flray.federation.ray_backend.handle import RayFederation
from flray.federation.ray_backend.placement import PoolPlanner
from flray.federation.ray_backend.session import ray_session

INSTANCES = 2  # trained, and teacher


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument(
        "--networks",
        nargs=4,
        default=["resnet10", "resnet12", "efficientnet-b0", "mobilenetv2"],
        metavar="NAME",
        help="one for each of digits-sklearn's domains; default: Table VI of FCCL+",
    )
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--samples", type=int, default=64, help="per client")
    parser.add_argument("--public", type=int, default=64, help="public samples, in batches of 32")
    options = parser.parse_args()
    spec = build_spec(
        load(
            {
                "experiment": {
                    "rounds": options.rounds,
                    "data": {"name": "digits-sklearn", "samples": options.samples},
                    "algorithm": {
                        "name": "fcclplus",
                        "public_size": options.public,
                        "public_batch_size": 32,
                    },
                    "model": options.networks[0],
                    "models": dict(zip(SKLEARN_DOMAINS, options.networks, strict=True)),
                    "local": {"epochs": 1, "batch_size": 32, "optimizer": "adam", "lr": 0.001},
                    "tracking": {"uri": None},
                    "evaluation": {"every": options.rounds},
                    "resources": {"actors": options.actors},
                }
            }
        ).experiment
    )
    seconds = []
    with ray_session(None) as available:
        federation = RayFederation(spec, PoolPlanner(spec, available).plan(), print)
        for _ in range(options.rounds):
            metrics = federation.step().metrics
            seconds.append(metrics["time/round"])
        held = federation.networks()
        federation.close()
    console = Console(width=110)
    table = Table(
        "process",
        "peak MiB",
        "instances of each network",
        title=f"FCCL+, {', '.join(options.networks)}, {options.actors} actors, {options.rounds} rounds",
    )
    table.add_row("driver", f"{peak_bytes() / 2**20:.0f}", "")
    table.add_row("server", f"{metrics['memory/peak/server'] / 2**20:.0f}", "")
    for number, networks in enumerate(held):
        memory = metrics.get(f"memory/peak/actor/{number}", 0.0) / 2**20
        on_gpu = metrics.get(f"memory/peak/gpu/{number}")
        table.add_row(
            f"client actor {number}",
            f"{memory:.0f}" + (f", GPU {on_gpu / 2**20:.0f}" if on_gpu else ""),
            ", ".join(f"{name} {count}" for name, count in sorted(networks.items())),
        )
    console.print(table)
    most = max(count for networks in held for count in networks.values())
    console.print(
        f"median {statistics.median(seconds):.1f} s a round; most instances of a network in an "
        f"actor: {most} "
        f"(limit {INSTANCES}: trained and teacher)"
    )
    raise SystemExit(0 if most <= INSTANCES else 1)


if __name__ == "__main__":
    main()
