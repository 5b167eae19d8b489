"""Rounds of small and large clients: flray in one process beside a bare PyTorch loop, for several networks."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import round as one
import runner
import torch
from bare import OneProcess
from runner import cpu_seconds

SIZES = ((50, 10), (256, 32), (500, 64))
"""Samples of a client, and of a batch."""
LIMITS = {
    "lenet": (1.05, 1.05, 1.05),
    "mlp": (1.1, 1.1, 1.1),
    "linear": (1.1, 1.1, 1.2),
    "simple-cnn": (1.05, 1.05, 1.05),
}
"""Ratios of CPU seconds that are not to be passed, by network."""


@dataclass
class Options:
    rounds: int = runner.option(5, "measured rounds of each cell")
    clients: int = 8
    models: tuple[str, ...] = tuple(LIMITS)
    peer: Sequence[str] | None = one.peer_option()


def main(options: Options) -> bool:
    torch.set_num_threads(1)
    count, rows, passed = options.clients, [], True
    of = partial(one.Options, options.rounds, clients=count, cohort=count, actors=1)
    for model in options.models:
        for (samples, batch), limit in zip(SIZES, LIMITS[model], strict=True):
            work = of(samples=samples, batch=batch, model=model)
            here = runner.Steps(runner.inline(one.settings(work, {"executor": "inline"})))
            bare = OneProcess(one.bare(work))
            turns = {"bare": partial(cpu_seconds, bare.round), "flray": partial(cpu_seconds, here)}
            times = runner.take_turns(turns, options.rounds)
            here.federation.close()
            best = min(times["flray"]) / min(times["bare"])
            middle = [median(of) for of in times.values()]
            peers = dict(one.seconds_of_peer(peer, work) for peer in options.peer or ())
            ratios = [seconds / median(bare.seconds) for seconds in peers.values()]
            rows.append((model, samples, batch, *middle, best, limit, *ratios))
            passed &= best <= limit
    runner.show(
        f"{options.clients} clients, CPU seconds a round; peers: ratio of their seconds by the clock",
        "network | samples | batch | bare, s :.4f | flray, s :.4f | best to best :.2f | limit :.2f"
        + "".join(f" | {name} :.2f" for name in peers),
        rows,
    )
    return passed
