"""How the server fares as the cohort grows: seconds per round, messages, bytes and memory of the server actor.

Each client has two samples and takes one step, so that what is measured is the way there and back
and the reduction. The server's memory must not grow with the cohort beyond a note per client: the
mean streams. With ``--block 0 25`` every cohort is measured twice: one reply per client, and one
sum per block of 25 clients.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil
import torch
from rich.console import Console
from rich.table import Table

from flray.config.loader import load
from flray.federation.building import build_spec
from flray.federation.ray_backend.handle import RayFederation
from flray.federation.ray_backend.placement import PoolPlanner
from flray.federation.ray_backend.session import ray_session
from flray.federation.spec import FederationSpec
from flray.functional.averaging import WeightedMean

Row = dict[str, float]


def experiment(clients: int, block: int, options: argparse.Namespace) -> dict[str, Any]:
    return {
        "experiment": {
            "rounds": 100000,
            "algorithm": options.algorithm,
            "data": {
                "name": "random",
                "samples": 2 * clients,
                "shape": [3, options.size, options.size],
                "classes": 10,
            },
            "partition": {"name": "iid", "clients": clients},
            "model": {"name": options.model},
            "local": {"epochs": 1, "batch_size": 2},
            "evaluation": {"every": 100000},
            "tracking": {"uri": None},
            "aggregation": {"block": block or None},
            "resources": {"actors": options.actors},
        }
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--cohorts", type=int, nargs="+", default=[10, 100, 1000, 10000])
    parser.add_argument(
        "--block",
        type=int,
        nargs="+",
        default=[0],
        help="clients per sum (aggregation.block); 0: none",
    )
    parser.add_argument("--rounds", type=int, default=3, help="measured, after one of warm-up")
    parser.add_argument(
        "--model", default="lenet", help="alexnet has 57 million parameters: use few clients"
    )
    parser.add_argument("--size", type=int, default=32, help="of the images")
    parser.add_argument(
        "--algorithm", default="fedavg", help="local keeps a whole model for every client"
    )
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--json", type=Path, help="write the numbers here too")
    options = parser.parse_args()
    console = Console(width=170)
    rows: list[Row] = []
    with ray_session(None) as available:
        for block in options.block:
            for cohort in options.cohorts:
                spec = build_spec(load(experiment(cohort, block, options)).experiment)
                rows.append(
                    {"block": block, "cohort": cohort, **measured(spec, available, options.rounds)}
                )
                show(console, rows, options)
    one = reduction(spec)
    console.print(f"reduction alone, one reply after another: {one * 1e6:.0f} us per client")
    if len(options.cohorts) > 1:
        extrapolate(console, rows, options)
    if options.json:
        options.json.write_text(json.dumps({"rows": rows, "reduction": one}, indent=1))


def measured(spec: FederationSpec, available: dict[str, float], rounds: int) -> Row:
    """Run rounds on actors of their own, so that memory starts from the same point every time."""
    begun = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        federation = RayFederation(spec, PoolPlanner(spec, available).plan(), print)
        federation.memory()  # waits until all have started
        started = time.perf_counter() - begun
        server = max(
            (
                process
                for process in psutil.Process().children(recursive=True)
                if " ".join(process.cmdline()).startswith("ray::ServerActor")
            ),
            key=psutil.Process.create_time,
        )
        opened = own_bytes(server)
        federation.step()
        busy = sum(server.cpu_times()[:2])
        finished = [federation.step().metrics for _ in range(rounds)]
        busy = (sum(server.cpu_times()[:2]) - busy) / rounds
        held = own_bytes(server)
        begun = time.perf_counter()
        federation.save(Path(folder), 1)
        saving = time.perf_counter() - begun
        begun = time.perf_counter()
        federation.restore(Path(folder))
        restoring = time.perf_counter() - begun
        kept = [file.stat().st_size for file in Path(folder).iterdir()]
        federation.close()
    middle = {
        name: statistics.median(r[name] for r in finished)
        for name in (
            "time/round",
            "time/train",
            "time/receive",
            "time/aggregate",
            "bytes/down",
            "bytes/up",
        )
    }
    return {
        "start": started,
        **middle,
        "busy": busy,
        "opened": opened,
        "server": held,
        "saving": saving,
        "restoring": restoring,
        "checkpoint": sum(kept),
        "files": len(kept),
        "journal": len(json.dumps(finished[-1])),
    }


def own_bytes(process: psutil.Process) -> float:
    """Return the memory that a process shares with no other: the object store's pages are not its own."""
    memory = process.memory_info()
    return float(memory.rss - memory.shared)


def reduction(spec: FederationSpec) -> float:
    """Seconds to add one client's weights to the mean."""
    torch.set_num_threads(1)
    tree = spec.build(next(iter(spec.architectures))).state_dict()
    mean = WeightedMean()
    count = 20 if sum(v.numel() for v in tree.values()) > 10**7 else 500
    begun = time.perf_counter()
    for _ in range(count):
        mean.add(tree, 1.0)
    return (time.perf_counter() - begun) / count


def extrapolate(console: Console, rows: list[Row], options: argparse.Namespace) -> None:
    """Show what a million clients a round would take, by the slopes between the two largest cohorts."""
    table = Table(
        "block",
        "h a round",
        "server CPU min",
        "server GiB",
        "GiB to the server",
        "checkpoint GiB",
        "files",
        "saving min",
        title=f"10^6 clients a round on {options.actors} actors, by the last slopes",
    )
    for block in options.block:
        low, high = [row for row in rows if row["block"] == block][
            -2:
        ]  # the first ones still fill the working set
        clients = high["cohort"] - low["cohort"]
        million = {name: max(0.0, high[name] - low[name]) / clients * 1e6 for name in high}
        table.add_row(
            str(block or "-"),
            f"{million['time/round'] / 3600:.2f}",
            f"{million['busy'] / 60:.1f}",
            *(f"{million[n] / 2**30:,.2f}" for n in ("server", "bytes/up", "checkpoint")),
            f"{million['files']:,.0f}",
            f"{million['saving'] / 60:.1f}",
        )
    console.print(table)


def show(console: Console, rows: list[Row], options: argparse.Namespace) -> None:
    table = Table(
        "clients",
        "block",
        "start s",
        "round s",
        "waiting s",
        "receive s",
        "aggregate s",
        "server CPU s",
        "MiB down",
        "MiB up",
        "server MiB: open",
        "after rounds",
        "checkpoint MiB",
        "files",
        "saved in s",
        "restored in s",
        "journal KiB",
        title=f"{options.algorithm}, {options.model}, {options.actors} actors",
    )
    for row in rows:
        table.add_row(
            f"{row['cohort']:,.0f}",
            f"{row['block']:.0f}" if row["block"] else "-",
            f"{row['start']:.1f}",
            *(f"{row['time/' + n]:.3f}" for n in ("round", "train", "receive", "aggregate")),
            f"{row['busy']:.2f}",
            *(f"{row['bytes/' + n] / 2**20:,.1f}" for n in ("down", "up")),
            *(f"{row[n] / 2**20:.0f}" for n in ("opened", "server")),
            f"{row['checkpoint'] / 2**20:.1f}",
            f"{row['files']:.0f}",
            f"{row['saving']:.1f}",
            f"{row['restoring']:.1f}",
            f"{row['journal'] / 1024:.1f}",
        )
    console.print(table)


if __name__ == "__main__":
    main()
