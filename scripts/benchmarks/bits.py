"""What do portable bits cost? Rounds with ``resources.bits: portable`` beside native ones, in alternating processes.

Prints by network the seconds per round, the best of all repetitions, and portable's ratio to
native. Each process runs one federation inline with one thread; its first round, in which memory
is fetched and kernels are made, does not count.
"""

import os
from collections.abc import Iterator
from dataclasses import dataclass

from runner import Steps, begin, inline, option, returned, show, take_turns

from flray.bits import VARIABLES

CASES = [(network, "float32") for network in ("lenet", "mlp", "resnet8")]
CASES += [("lenet", precision) for precision in ("float64", "bfloat16")]


@dataclass
class Options:
    rounds: int = 4
    repetitions: int = 3
    samples: int = option(250, "per client, of four")


def fastest(network: str, precision: str, rounds: int, samples: int) -> float:
    """Return the seconds of the fastest round but the first."""
    federation = inline(
        {
            "rounds": rounds + 1,
            "data": {"name": "digits-sklearn", "samples": samples},
            "model": network,
            "algorithm": "fedavg",
            "local": {"batch_size": 32, "precision": precision},
            "tracking": {"uri": None},
            "evaluation": {"every": rounds + 1},
        }
    )
    return min(take_turns({"": Steps(federation)}, rounds - 1, 1)[""])


def rows(options: Options) -> Iterator[tuple[object, ...]]:
    plain = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    environments = {"native": plain, "portable": {**plain, **VARIABLES}}
    for case in CASES:
        best = dict.fromkeys(environments, float("inf"))
        for _ in range(options.repetitions):
            for name, environment in environments.items():
                given = (*case, options.rounds, options.samples)
                process = begin("bits", "fastest", *given, environment=environment)
                best[name] = min(best[name], returned(process))
        yield *case, *best.values(), best["portable"] / best["native"]


def main(options: Options) -> None:
    show(None, "network | precision | native s :.3f | portable s :.3f | ratio :.2f", rows(options))
