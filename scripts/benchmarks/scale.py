"""How the server fares as the cohort grows: seconds per round, messages, bytes and memory of the server actor.

Each client has two samples and takes one step, so that what is measured is the way there and back and the reduction.
The server's memory must not grow with the cohort beyond a note per client: the mean streams.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from flray.federation.cluster import RayFederation, plan_for, ray_session
from flray.federation.world import make_world
from flray.functional.averaging import WeightedMean
from flray.loading import load


def experiment(clients: int, options: argparse.Namespace) -> dict[str, Any]:
    return {"experiment": {
        "rounds": 100000, "algorithm": options.algorithm,
        "data": {"name": "random", "samples": 2 * clients, "shape": [3, options.size, options.size], "classes": 10},
        "partition": {"name": "iid", "clients": clients}, "model": {"name": options.model},
        "local": {"epochs": 1, "batch_size": 2}, "evaluation": {"every": 100000}, "tracking": {"uri": None},
        "resources": {"actors": options.actors}}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--cohorts", type=int, nargs="+", default=[10, 100, 1000, 10000])
    parser.add_argument("--rounds", type=int, default=3, help="measured, after one of warm-up")
    parser.add_argument("--model", default="lenet", help="alexnet has 57 million parameters: use few clients")
    parser.add_argument("--size", type=int, default=32, help="of the images")
    parser.add_argument("--algorithm", default="fedavg")
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the numbers here too")
    options = parser.parse_args()
    console = Console(width=120)
    rows: list[dict[str, float]] = []
    for cohort in options.cohorts:
        begun = time.perf_counter()
        world = make_world(load(experiment(cohort, options)).experiment)
        with ray_session(None) as available:  # anew for each cohort, so that memory starts from the same point
            federation = RayFederation(world, plan_for(world, available), print)
            opened = federation.memory()["server"]
            started = time.perf_counter() - begun
            rounds = [federation.step().metrics for _ in range(options.rounds + 1)][1:]
            memory = federation.memory()
            federation.close()
        middle = {name: statistics.median(r[name] for r in rounds) for name in (
            "time/round", "time/train", "time/receive", "time/aggregate", "bytes/down", "bytes/up")}
        rows.append({"cohort": cohort, "start": started, **middle, "opened": opened, "server": memory["server"]})
        show(console, rows, options)
    one = reduction(world)
    console.print(f"reduction alone, one reply after another: {one * 1e6:.0f} us per client")
    if len(rows) > 1:
        low, high = rows[-2], rows[-1]  # the first ones still fill the working set
        clients = high["cohort"] - low["cohort"]
        seconds = (high["time/round"] - low["time/round"]) / clients
        memory_each = (high["server"] - low["server"]) / clients
        console.print(f"each further client: {seconds * 1e3:.2f} ms per round and {memory_each / 1024:.1f} KiB at the "
                      f"server; a reply has {high['bytes/up'] / high['cohort'] / 1024:.0f} KiB")
        console.print(f"10^6 clients a round, by these slopes: {seconds * 1e6 / 3600:.2f} h a round on "
                      f"{options.actors} actors, of which the server's reduction {one * 1e6 / 60:.0f} min; "
                      f"{memory_each * 1e6 / 2**30:.1f} GiB at the server; "
                      f"{high['bytes/up'] / high['cohort'] * 1e6 / 2**30:,.0f} GiB of replies")
    if options.json:
        options.json.write_text(json.dumps({"rows": rows, "reduction": one}, indent=1))


def reduction(world: Any) -> float:
    """Seconds to add one client's weights to the mean."""
    torch.set_num_threads(1)
    tree = world.build(next(iter(world.architectures))).state_dict()
    mean = WeightedMean()
    count = 20 if sum(v.numel() for v in tree.values()) > 10**7 else 500
    begun = time.perf_counter()
    for _ in range(count):
        mean.add(tree, 1.0)
    return (time.perf_counter() - begun) / count


def show(console: Console, rows: list[dict[str, float]], options: argparse.Namespace) -> None:
    table = Table("clients", "start s", "round s", "waiting s", "receive s", "aggregate s", "MiB down", "MiB up",
                  "server MiB: open", "after rounds",
                  title=f"{options.algorithm}, {options.model}, {options.actors} actors")
    for row in rows:
        table.add_row(f"{row['cohort']:,}", f"{row['start']:.1f}",
                      *(f"{row['time/' + n]:.3f}" for n in ("round", "train", "receive", "aggregate")),
                      *(f"{row['bytes/' + n] / 2**20:,.0f}" for n in ("down", "up")),
                      f"{row['opened'] / 2**20:.0f}", f"{row['server'] / 2**20:.0f}")
    console.print(table)


if __name__ == "__main__":
    main()
