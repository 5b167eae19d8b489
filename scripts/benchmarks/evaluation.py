"""An evaluation of personal models: on all clients' test parts against on their own, and by the number of clients."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import runner
import torch

from flray.federation.federation import Federation

LIMIT = 3.0


@dataclass
class Options:
    clients: tuple[int, ...] = runner.option((100, 1000), "clients, who share the same samples")
    samples: int = runner.option(10000, "of all clients to train on; a fifth as many to test on")
    rounds: int = 5
    algorithm: str = "fedper"
    model: str = "lenet"


def federation(options: Options, clients: int, *, others: bool) -> Federation:
    settings: dict[str, Any] = runner.experiment(
        clients,
        options.samples // clients,
        algorithm=options.algorithm,
        model={"name": options.model},
        participation={"clients": min(options.clients)},
        resources={"executor": "inline"},
    )
    settings["evaluation"] |= {"others": others}
    made = runner.inline(settings)
    made.step()
    return made


def main(options: Options) -> bool:
    torch.set_num_threads(1)
    turns: dict[tuple[int, bool], Callable[[], float]] = {
        (clients, others): partial(
            runner.cpu_seconds, federation(options, clients, others=others).evaluate
        )
        for clients in options.clients
        for others in (False, True)
    }
    times = runner.take_turns(turns, options.rounds, warmup=1)
    ratios = {n: runner.ratio(times[n, True], times[n, False]) for n in options.clients}
    runner.show(
        f"{options.algorithm}, {options.model}, {options.samples} samples, {options.rounds} evaluations each",
        "clients | own parts, s :.3f | all parts, s :.3f | ms a client :.2f | ratio :.2f",
        [
            (
                n,
                *(median(times[n, which]) for which in (False, True)),
                1000 * median(times[n, True]) / n,
                ratios[n],
            )
            for n in options.clients
        ],
    )
    return ratios[options.clients[0]] <= LIMIT
