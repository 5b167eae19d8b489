"""What does LG-Mix cost? Seconds per round against FedAvg on the same work, in this process, in one run.

Both take the same steps on the same batches; they take turns, round by round, so that whatever else
the machine does hits both alike. Ratios are medians of the rounds' ratios.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from runner import Steps, experiment, inline, option, ratio, show, take_turns


@dataclass
class Options:
    rounds: int = option(11, "measured rounds of each method")
    clients: int = 4
    epochs: int = option(1, "the paper's setting is 1")
    batch: int = 64
    networks: Sequence[str] = option(
        ("lenet:1000", "resnet8:100"),
        "networks with batch norm, and training samples per client",
        metavar="NAME:SAMPLES",
    )
    method: str = option("lgmix", "another method to set beside fedavg")


def rows(options: Options) -> Iterator[tuple[object, ...]]:
    for network in options.networks:
        model, _, given = network.partition(":")
        samples = int(given or 500)
        steps = {
            method: Steps(
                inline(
                    experiment(
                        options.clients,
                        samples,
                        algorithm=method,
                        model={"name": model, "norm": "batch"},
                        local={"epochs": options.epochs, "batch_size": options.batch, "lr": 0.01},
                        resources={"executor": "inline"},
                    )
                )
            )
            for method in ("fedavg", options.method)
        }
        base, other = take_turns(steps, options.rounds).values()
        for one in steps.values():
            one.federation.close()
        yield model, samples, median(base), median(other), ratio(other, base)


def main(options: Options) -> None:
    torch.set_num_threads(1)
    show(
        f"{options.clients} clients, batch {options.batch}, epochs {options.epochs}, "
        f"medians of {options.rounds} rounds",
        f"network | samples per client | fedavg, s/round :.4f | {options.method}, s/round :.4f | ratio :.3f",
        rows(options),
    )
