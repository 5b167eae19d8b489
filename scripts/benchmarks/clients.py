"""Many clients on few actors: seconds per task with 500 clients against 20, personalised, in one run."""

from __future__ import annotations

import argparse
import statistics
from typing import Any

from rich.console import Console
from rich.table import Table

from flray.config.loader import load
from flray.federation.building import build_spec
from flray.federation.ray_backend.handle import RayFederation
from flray.federation.ray_backend.placement import PoolPlanner
from flray.federation.ray_backend.session import ray_session


def experiment(clients: int, cohort: int, options: argparse.Namespace) -> dict[str, Any]:
    return {
        "experiment": {
            "rounds": 100000,
            "algorithm": options.algorithm,
            "data": {
                "name": "random",
                "samples": clients * options.samples,
                "shape": [3, 32, 32],
                "classes": 10,
            },
            "partition": {"name": "iid", "clients": clients},
            "model": {"name": options.model, "norm": "batch"},
            "local": {"epochs": 1, "batch_size": 50},
            "participation": {"clients": cohort},
            "evaluation": {"every": 100000},
            "tracking": {"uri": None},
            "resources": {"actors": options.actors},
        }
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--few", type=int, default=20)
    parser.add_argument("--many", type=int, default=500)
    parser.add_argument(
        "--fraction", type=float, default=0.05, help="share of the many clients in a round"
    )
    parser.add_argument("--samples", type=int, default=500, help="per client")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--algorithm", default="fedbn")
    parser.add_argument("--model", default="lenet")
    options = parser.parse_args()
    cohort = round(options.many * options.fraction)
    console = Console(width=110)
    seconds_per_task: dict[int, list[float]] = {options.few: [], options.many: []}
    memory: dict[int, dict[str, int]] = {}
    sizes = {options.few: min(cohort, options.few), options.many: cohort}
    with ray_session(None) as available:
        available = {**available, "CPU": available["CPU"] / 2}
        federations = {}
        for clients in seconds_per_task:
            content = experiment(clients, sizes[clients], options)
            content["experiment"]["resources"]["cpus_per_actor"] = (
                0.5  # both pools stay resident and take turns
            )
            spec = build_spec(load(content).experiment)
            federations[clients] = RayFederation(spec, PoolPlanner(spec, available).plan(), print)
        for number in range(options.rounds + 2):
            for clients, federation in federations.items():
                seconds = federation.step().metrics["time/round"] * options.actors / sizes[clients]
                if number >= 2:
                    seconds_per_task[clients].append(seconds)
        for clients, federation in federations.items():
            memory[clients] = federation.memory()
            federation.close()
    table = Table(
        "clients",
        "per round",
        "median s per task and actor",
        "server MiB",
        "largest client actor MiB",
        title=f"{options.algorithm}, {options.samples} images per client, {options.model}, "
        f"{options.actors} actors",
    )
    for clients, values in seconds_per_task.items():
        server = memory[clients].pop("server")
        table.add_row(
            str(clients),
            str(sizes[clients]),
            f"{statistics.median(values):.4f}",
            f"{server / 2**20:.0f}",
            f"{max(memory[clients].values()) / 2**20:.0f}",
        )
    console.print(table)
    ratio = statistics.median(
        m / f
        for m, f in zip(seconds_per_task[options.many], seconds_per_task[options.few], strict=True)
    )
    console.print(
        f"time per task, {options.many} clients against {options.few}: {ratio:.3f} (limit 1.15)"
    )


if __name__ == "__main__":
    main()
