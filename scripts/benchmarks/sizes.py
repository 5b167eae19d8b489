"""Rounds of small and large clients: flray in one process beside a bare PyTorch loop, for several networks."""

from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import round as one
import runner
import torch
from bare import OneProcess
from runner import cpu_seconds

SIZES = ((50, 10), (256, 32), (500, 64))
"""Samples of a client, and of a batch."""
LIMITS = {
    "lenet": (1.05, 1.1, 1.1),
    "mlp": (1.15, 1.1, 1.05),
    "linear": (1.1, 1.1, 1.05),
    "simple-cnn": (1.05, 1.05, 1.05),
}
"""Ratios of CPU seconds that are not to be passed, by network."""


@dataclass
class Options:
    rounds: int = runner.option(5, "measured rounds of each cell")
    clients: int = 8
    models: tuple[str, ...] = tuple(LIMITS)
    json: str | None = runner.json_option()


def main(options: Options) -> bool:
    torch.set_num_threads(1)
    rows, passed = [], {}
    for model in options.models:
        for (samples, batch), limit in zip(SIZES, LIMITS[model], strict=True):
            size: dict[str, Any] = {
                "clients": options.clients,
                "cohort": options.clients,
                "samples": samples,
            }
            work = one.Options(**size, batch=batch, model=model)
            here = runner.Steps(runner.inline(one.settings(work, {"executor": "inline"})))
            bare = OneProcess(one.bare(work)).round
            turns = {"bare": partial(cpu_seconds, bare), "flray": partial(cpu_seconds, here)}
            times = runner.take_turns(turns, options.rounds)
            here.federation.close()
            best = min(times["flray"]) / min(times["bare"])
            rows.append((model, samples, batch, *(median(t) for t in times.values()), best, limit))
            if best > limit:
                passed[f"{model} {samples} x {batch}"] = best
    runner.show(
        f"{options.clients} clients, CPU seconds a round",
        "network | samples | batch | bare, s :.4f | flray, s :.4f | best to best :.2f | limit :.2f",
        rows,
    )
    runner.write_json(options.json, rows)
    return not passed
