"""How the server fares as the cohort grows: seconds per round, messages, bytes and memory of the server actor.

Each client has two samples and takes one step, so that what is measured is the way there and back
and the reduction. The server's memory must not grow with the cohort beyond a note per client: the
mean streams. With ``--block 0 25`` every cohort is measured twice: one reply per client, and one
sum per block of 25 clients.
"""

import json
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import psutil
import runner
import torch

from flray.federation import FederationSpec
from flray.functional.averaging import WeightedMean
from flray.ray_session import ray_session

Row = dict[str, float]
TIMES = ("time/round", "time/train", "time/receive", "time/aggregate")
BYTES = ("bytes/down", "bytes/up")


@dataclass
class Options:
    cohorts: Sequence[int] = runner.option((10, 100, 1000, 10000))
    block: Sequence[int] = runner.option((0,), "clients per sum (aggregation.block); 0: none")
    rounds: int = runner.option(3, "measured, after one of warm-up")
    model: str = runner.option("lenet", "alexnet has 57 million parameters: use few clients")
    size: int = runner.option(32, "of the images")
    algorithm: str = runner.option("fedavg", "local keeps a whole model for every client")
    actors: int = 2


def settings(clients: int, block: int, options: Options) -> dict[str, Any]:
    return runner.experiment(
        clients,
        2,
        options.size,
        algorithm=options.algorithm,
        model={"name": options.model},
        local={"epochs": 1, "batch_size": 2},
        aggregation={"block": block or None},
        resources={"actors": options.actors},
    )


def main(options: Options) -> None:
    rows: list[Row] = []
    with ray_session(None) as available:
        for block in options.block:
            for cohort in options.cohorts:
                content = settings(cohort, block, options)
                found = measured(content, available, options.rounds)
                rows.append({"block": block, "cohort": cohort, **found})
                show_rows(rows, options)
    one = reduction(runner.spec_of(content))
    print(f"reduction alone, one reply after another: {one * 1e6:.0f} us per client")
    if len(options.cohorts) > 1:
        runner.show(
            f"10^6 clients a round on {options.actors} actors, by the last slopes",
            "block | h a round :.2f | server CPU min :.1f | server GiB :,.2f | GiB to the server :,.2f"
            " | checkpoint GiB :,.2f | files :,.0f | saving min :.1f",
            extrapolated(rows, options),
        )


def measured(content: dict[str, Any], available: dict[str, float], rounds: int) -> Row:
    """Run rounds on actors of their own, so that memory starts from the same point every time."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        begun = time.perf_counter()
        federation = runner.on_actors(content, available)
        runner.client_pids(federation)  # waits until all have started
        found = {"start": time.perf_counter() - begun}
        server = max(runner.actors("ServerActor"), key=psutil.Process.create_time)
        found["opened"] = own_bytes(server)
        step = runner.Steps(federation)
        step()
        busy = sum(server.cpu_times()[:2])
        for _ in range(rounds):
            step()
        found["busy"] = (sum(server.cpu_times()[:2]) - busy) / rounds
        found["server"] = own_bytes(server)
        found["saving"] = runner.seconds(partial(federation.save, folder, 1))
        found["restoring"] = runner.seconds(partial(federation.restore, folder))
        kept = [file.stat().st_size for file in folder.iterdir()]
        federation.close()
    found |= {name: median(one[name] for one in step.metrics[1:]) for name in TIMES + BYTES}
    journal = len(json.dumps(step.metrics[-1]))
    return {**found, "checkpoint": sum(kept), "files": len(kept), "journal": journal}


def own_bytes(process: psutil.Process) -> float:
    """Return the memory that a process shares with no other: the object store's pages are not its own."""
    memory = process.memory_info()
    return float(memory.rss - memory.shared)


def reduction(spec: FederationSpec) -> float:
    """Seconds to add one client's weights to the mean."""
    torch.set_num_threads(1)
    tree = spec.build(next(iter(spec.architectures))).state_dict()
    add = partial(WeightedMean().add, tree, 1.0)
    count = 20 if sum(v.numel() for v in tree.values()) > 10**7 else 500
    return sum(runner.seconds(add) for _ in range(count)) / count


def extrapolated(rows: list[Row], options: Options) -> Iterator[tuple[object, ...]]:
    """Yield what a million clients a round would take, by the slopes between the two largest cohorts."""
    for block in options.block:
        # The smaller ones still fill the working set.
        low, high = [row for row in rows if row["block"] == block][-2:]
        clients = high["cohort"] - low["cohort"]
        million = {name: max(0.0, high[name] - low[name]) / clients * 1e6 for name in high}
        yield (
            str(block or "-"),
            million["time/round"] / 3600,
            million["busy"] / 60,
            *(million[name] / 2**30 for name in ("server", "bytes/up", "checkpoint")),
            million["files"],
            million["saving"] / 60,
        )


def show_rows(rows: list[Row], options: Options) -> None:
    runner.show(
        f"{options.algorithm}, {options.model}, {options.actors} actors",
        "clients :, | block | start s :.1f | round s :.3f | waiting s :.3f | receive s :.3f"
        " | aggregate s :.3f | server CPU s :.2f | MiB down :,.1f | MiB up :,.1f"
        " | server MiB: open :.0f | after rounds :.0f | checkpoint MiB :.1f | files"
        " | saved in s :.1f | restored in s :.1f | journal KiB :.1f",
        [
            (
                *(row["cohort"], str(row["block"] or "-"), row["start"]),
                *(row[name] for name in (*TIMES, "busy")),
                *(row[name] / runner.MIB for name in (*BYTES, "opened", "server", "checkpoint")),
                *(row[name] for name in ("files", "saving", "restoring")),
                row["journal"] / 1024,
            )
            for row in rows
        ],
    )
