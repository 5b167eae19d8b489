"""What do different networks in one federation cost? FCCL+ with a network per client on a few actors.

Prints the peak memory of the driver, the server and every client actor, and how many instances of
each network each actor holds: the one it trains and, once it has trained with it, a frozen one for
the teacher. Exits with 1 if there are more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from runner import MIB, Steps, on_actors, option, show

from flray.data.datasets.embedded import SKLEARN_DOMAINS
from flray.devices.memory import peak_bytes
from flray.federation.ray_backend.session import ray_session

INSTANCES = 2  # trained, and teacher


@dataclass
class Options:
    networks: Sequence[str] = option(
        ("resnet10", "resnet12", "efficientnet-b0", "mobilenetv2"),
        "one for each of digits-sklearn's domains; default: Table VI of FCCL+",
        nargs=4,
        metavar="NAME",
    )
    rounds: int = 2
    actors: int = 2
    samples: int = option(64, "per client")
    public: int = option(64, "public samples, in batches of 32")


def main(options: Options) -> bool:
    method = {"name": "fcclplus", "public_size": options.public, "public_batch_size": 32}
    settings = {
        "rounds": options.rounds,
        "data": {"name": "digits-sklearn", "samples": options.samples},
        "algorithm": method,
        "model": options.networks[0],
        "models": dict(zip(SKLEARN_DOMAINS, options.networks, strict=True)),
        "local": {"epochs": 1, "batch_size": 32, "optimizer": "adam", "lr": 0.001},
        "tracking": {"uri": None},
        "evaluation": {"every": options.rounds},
        "resources": {"actors": options.actors},
    }
    with ray_session(None) as available:
        federation = on_actors(settings, available)
        step = Steps(federation)
        seconds = [step() for _ in range(options.rounds)]
        held = federation.networks()
        federation.close()
    last = step.metrics[-1]
    rows: list[tuple[object, ...]] = [
        ("driver", peak_bytes() / MIB, None, ""),
        ("server", last["memory/peak/server"] / MIB, None, ""),
    ]
    for number, networks in enumerate(held):
        memory, on_gpu = (last.get(f"memory/peak/{w}/{number}") for w in ("actor", "gpu"))
        counts = ", ".join(f"{name} {count}" for name, count in sorted(networks.items()))
        on_gpu = on_gpu / MIB if on_gpu else None
        rows.append((f"client actor {number}", (memory or 0.0) / MIB, on_gpu, counts))
    show(
        f"FCCL+, {', '.join(options.networks)}, {options.actors} actors, {options.rounds} rounds",
        "process | peak MiB :.0f | on the GPU :.0f | instances of each network",
        rows,
    )
    most = max(count for networks in held for count in networks.values())
    print(
        f"median {median(seconds):.1f} s a round; most instances of a network in an "
        f"actor: {most} (limit {INSTANCES}: trained and teacher)"
    )
    return most <= INSTANCES
