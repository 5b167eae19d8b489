"""Every method on the same work: seconds and arithmetic per round beside FedAvg's, bytes, memory, accuracy.

Rounds of a method alternate with rounds of FedAvg, so that whatever else the machine does hits both
alike; "time" is the median of the rounds' ratios. "work" is the ratio of the multiplications and
additions of one round, counted by torch: what the method's extra forward and backward passes
explain of its time. "peak MiB" is the most that a process held which ran two rounds of all
clients, data and libraries included. One pool of actors serves FedAvg, another for the methods.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch.utils.flop_counter import FlopCounterMode

from flray import registry
from flray.config.loader import load
from flray.federation.building import build_spec
from flray.federation.federation import Federation, inline_federation
from flray.federation.memory import peak_bytes
from flray.federation.ray_backend.executor import RayExecutor
from flray.federation.ray_backend.session import ray_session
from flray.metrics.names import primary_metric_name

BASE = "fedavg"
COLUMNS = ("method", "time", "work", "MiB down", "MiB up", "peak MiB", "accuracy", "of")
# One set-up for all: public samples as many as one client holds, one epoch wherever a method
# trains.
OPTIONS: dict[str, dict[str, Any]] = {
    "fedrep": {"head_epochs": 1, "body_epochs": 1},
    "fccl": {"pretrain_epochs": 1},
    "fedavg": {},
    "fedopt": {"server_lr": 0.01},
    "fedadam": {"server_lr": 0.01},
    "fedyogi": {"server_lr": 0.01},
    "fedadagrad": {"server_lr": 0.01},
}
LOCAL: dict[str, dict[str, Any]] = {"fedrcl": {"clip_norm": 10}}


def experiment(name: str, options: argparse.Namespace, executor: str) -> dict[str, Any]:
    algorithm = {"name": name, **OPTIONS.get(name, {})}
    declared = registry.algorithms.params(name).model_fields
    if "public_size" in declared:
        algorithm["public_size"] = options.public
    if "public_batch_size" in declared:
        algorithm["public_batch_size"] = 128
    return {
        "experiment": {
            "rounds": options.rounds,
            "algorithm": algorithm,
            "data": {"name": "digits5-local", "samples": options.samples},
            "partition": {"name": "dirichlet", "clients": options.clients, "alpha": options.alpha},
            "model": {"name": "lenet", "norm": "batch"},
            "local": {"epochs": 1, "batch_size": 32, "lr": 0.02, **LOCAL.get(name, {})},
            "evaluation": {"every": options.rounds, "validation": 0.1},
            "tracking": {"uri": None},
            "resources": {
                "executor": executor,
                "actors": options.actors if executor == "ray" else "auto",
                "cpus_per_actor": 0.5,
            },
        }
    }  # FedAvg's actors and the methods' stay resident and take turns


def arithmetic(name: str, options: argparse.Namespace) -> tuple[int, float]:
    """Return the floating-point operations of a round after the first, evaluation apart, and the peak MiB."""
    inline = inline_federation(
        build_spec(load(experiment(name, options, "inline")).experiment), print
    )
    inline.step()
    with FlopCounterMode(display=False) as counter:
        inline.step()
    inline.close()
    return int(counter.get_total_flops()), peak_bytes() / 2**20


def counted(name: str, options: argparse.Namespace) -> tuple[int, float]:
    """Return the same, measured in a process of its own."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        return pool.apply(arithmetic, (name, options))


def seconds(metrics: dict[str, float]) -> float:
    """Return a round's time without evaluation."""
    return metrics["time/round"] - metrics["time/evaluate"]


class Pool:
    """Actors that serve one federation after another."""

    def __init__(self) -> None:
        self.executor: RayExecutor | None = None

    def federation(self, content: dict[str, Any], actors: int) -> Federation:
        import ray

        spec = build_spec(load(content).experiment)
        put = ray.put(spec)
        if self.executor is None:
            self.executor = RayExecutor(put, spec.config, actors, 0)
        else:
            self.executor.reset(put, spec.config)
        return Federation(spec, self.executor, print)


def measure(name: str, options: argparse.Namespace, pool: Pool, base: Federation) -> dict[str, Any]:
    """Return one row of the table, without what was counted apart."""
    federation = pool.federation(experiment(name, options, "ray"), options.actors)
    ratios, last, traffic = [], {}, {"down": 0.0, "up": 0.0}
    for number in range(options.rounds):
        beside = seconds(base.step().metrics)
        last = federation.step().metrics
        if number >= 1:
            ratios.append(seconds(last) / beside)
            traffic = {way: max(traffic[way], last[f"bytes/{way}"]) for way in traffic}
    main = primary_metric_name(federation.spec.algorithm.views, "accuracy")
    return {
        "method": name,
        "time": statistics.median(ratios),
        "MiB down": traffic["down"] / 2**20,
        "MiB up": traffic["up"] / 2**20,
        "accuracy": last[main],
        "of": main.rsplit("/", 1)[0],
    }


def cells(row: dict[str, Any]) -> list[str]:
    """Return a row as text."""
    return [
        row["method"],
        f"{row['time']:.2f}",
        f"{row['work']:.2f}",
        f"{row['MiB down']:.2f}",
        f"{row['MiB up']:.2f}",
        f"{row['peak MiB']:.0f}",
        f"{100 * row['accuracy']:.1f}",
        row["of"],
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument(
        "--samples", type=int, default=1000, help="training images of each of the five domains"
    )
    parser.add_argument(
        "--rounds", type=int, default=6, help="of each method; the first is not timed"
    )
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--alpha", type=float, default=0.5, help="label skew")
    parser.add_argument(
        "--public",
        type=int,
        default=640,
        help="public samples of the methods that exchange outputs",
    )
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--only", nargs="+", metavar="METHOD", help="these methods instead of all")
    parser.add_argument("--json", type=Path, help="write the numbers here too, after every method")
    parser.add_argument("--markdown", type=Path, help="write the table here too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    console = Console(width=120)
    names = options.only or registry.algorithms.names()
    build_spec(
        load(experiment(BASE, options, "inline")).experiment
    )  # the forked processes find the data loaded
    counts = {name: counted(name, options) for name in dict.fromkeys([BASE, *names])}
    rows: list[dict[str, Any]] = []
    endless = experiment(BASE, options, "ray")
    endless["experiment"] |= {"rounds": 10**6, "evaluation": {"every": 10**6, "validation": 0.1}}
    with ray_session(None):
        pool = Pool()
        base = Pool().federation(endless, options.actors)
        base.step()
        for name in names:
            operations, peak = counts[name]
            rows.append(
                {
                    **measure(name, options, pool, base),
                    "work": operations / counts[BASE][0],
                    "peak MiB": peak,
                }
            )
            console.print("  ".join(cells(rows[-1])), markup=False)
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1))
    table = Table(
        *COLUMNS,
        title=f"digits5-local, {options.clients} clients, Dirichlet {options.alpha}, "
        f"LeNet with BatchNorm, {options.actors} actors, {options.rounds} rounds; time and work: "
        f"FedAvg = 1",
    )
    for row in rows:
        table.add_row(*cells(row))
    console.print(table)
    if options.markdown:
        lines = ["| " + " | ".join(COLUMNS) + " |", "|" + "---|" * len(COLUMNS)]
        options.markdown.write_text(
            "\n".join(lines + ["| " + " | ".join(cells(row)) + " |" for row in rows]) + "\n"
        )


if __name__ == "__main__":
    main()
