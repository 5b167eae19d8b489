"""Every method on the same work: seconds and arithmetic per round beside FedAvg's, bytes, memory, accuracy.

Rounds of a method alternate with rounds of FedAvg, so that whatever else the machine does hits both
alike; "time" is the median of the rounds' ratios. "work" is the ratio of the multiplications and
additions of one round, counted by torch: what the method's extra forward and backward passes
explain of its time. "peak MiB" is the most that a process held which ran two rounds of all
clients, data and libraries included. One pool of actors serves FedAvg, another for the methods.
"""

import multiprocessing
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from runner import FOREVER, MIB, inline, option, show, spec_of
from torch.utils.flop_counter import FlopCounterMode

from flray import registry
from flray.devices import peak_bytes
from flray.federation.federation import Federation
from flray.metrics import primary_metric_name
from flray.ray_session import ray_session
from tests.end_to_end.pool import Pool

BASE = "fedavg"
COLUMNS = "method | time :.2f | work :.2f | MiB down :.2f | MiB up :.2f | peak MiB :.0f | accuracy :.1% | of"
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


@dataclass
class Options:
    samples: int = option(1000, "training images of each of the five domains")
    rounds: int = option(6, "of each method; the first is not timed")
    clients: int = 8
    alpha: float = option(0.5, "label skew")
    public: int = option(640, "public samples of the methods that exchange outputs")
    actors: int = 2
    only: Sequence[str] | None = option(
        None, "these methods instead of all", nargs="+", metavar="METHOD"
    )


def settings(name: str, options: Options, executor: str, rounds: int) -> dict[str, Any]:
    algorithm = {"name": name, **OPTIONS.get(name, {})}
    public = {"public_size": options.public, "public_batch_size": 128}
    declared = registry.algorithms.params(name).model_fields
    algorithm |= {key: value for key, value in public.items() if key in declared}
    return {
        "rounds": rounds,
        "algorithm": algorithm,
        "data": {"name": "digits5-local", "samples": options.samples},
        "partition": {"name": "dirichlet", "clients": options.clients, "alpha": options.alpha},
        "model": {"name": "lenet", "norm": "batch"},
        "local": {"epochs": 1, "batch_size": 32, "lr": 0.02, **LOCAL.get(name, {})},
        "evaluation": {"every": rounds, "validation": 0.1},
        "tracking": {"uri": None},
        "resources": {
            "executor": executor,
            "actors": options.actors if executor == "ray" else "auto",
            "cpus_per_actor": 0.5,  # FedAvg's actors and the methods' stay resident and take turns
        },
    }


def arithmetic(name: str, options: Options) -> tuple[int, float]:
    """Return the floating-point operations of a round after the first, evaluation apart, and the peak MiB."""
    federation = inline(settings(name, options, "inline", options.rounds))
    federation.step()
    with FlopCounterMode(display=False) as counter:
        federation.step()
    federation.close()
    return int(counter.get_total_flops()), peak_bytes() / MIB


def seconds(metrics: dict[str, float]) -> float:
    """Return a round's time without evaluation."""
    return metrics["time/round"] - metrics["time/evaluate"]


def measure(name: str, options: Options, pool: Pool, base: Federation) -> dict[str, Any]:
    """Return one row of the table, without what was counted apart."""
    federation = pool.federation(spec_of(settings(name, options, "ray", options.rounds)))
    rounds = [(base.step().metrics, federation.step().metrics) for _ in range(options.rounds)]
    timed = rounds[1:]
    main = primary_metric_name(federation.spec.algorithm.views, "accuracy")
    return {
        "method": name,
        "time": median(seconds(ours) / seconds(beside) for beside, ours in timed),
        **{f"MiB {w}": max(ours[f"bytes/{w}"] for _, ours in timed) / MIB for w in ("down", "up")},
        "accuracy": rounds[-1][1][main],
        "of": main.rsplit("/", 1)[0],
    }


def main(options: Options) -> None:
    torch.set_num_threads(1)
    names = options.only or registry.algorithms.names()
    endless = spec_of(settings(BASE, options, "ray", FOREVER))
    # Each in a process of its own, which finds the data loaded.
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as processes:
        every = [(name, options) for name in dict.fromkeys([BASE, *names])]
        found = processes.starmap(arithmetic, every, chunksize=1)
    counts = {name: count for (name, _), count in zip(every, found, strict=True)}
    rows: list[dict[str, Any]] = []
    with ray_session(None):
        pool = Pool(options.actors)
        base = Pool(options.actors).federation(endless)
        base.step()
        for name in names:
            operations, peak = counts[name]
            work = {"work": operations / counts[BASE][0], "peak MiB": peak}
            rows.append(measure(name, options, pool, base) | work)
            print(*(f"{key} {value}" for key, value in rows[-1].items()), sep=", ")
    show(
        f"digits5-local, {options.clients} clients, Dirichlet {options.alpha}, LeNet with BatchNorm, "
        f"{options.actors} actors, {options.rounds} rounds; time and work: FedAvg = 1",
        COLUMNS,
        ([row[part.partition(" :")[0]] for part in COLUMNS.split(" | ")] for row in rows),
    )
