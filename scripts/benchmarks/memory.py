"""Does memory stay flat? Many rounds of one federation, then several federations one after another in one process.

Resident memory of the driver, the server and the client actors, and the bytes in the object store,
by round; then what several federations in one process leave behind: processes, threads, memory.
Exits with 1 if a limit is passed.
"""

import ctypes
import gc
import threading
from dataclasses import dataclass
from typing import Any

import psutil
from runner import MIB, actors, experiment, on_actors, option, show

from flray.ray_session import ray_session

LIMIT = 1.05
PARTS = ("driver", "server", "largest client actor", "object store")


@dataclass
class Options:
    rounds: int = option(50, choices=range(10, 10**6), metavar="N")
    clients: int = 20
    actors: int = 2
    model: str = "lenet"
    algorithm: str = option("fedbn", "fedbn keeps a state for every client")
    federations: int = option(5, "run one after another", choices=range(2, 100), metavar="N")


def settings(options: Options) -> dict[str, Any]:
    return experiment(
        options.clients,
        100,
        algorithm=options.algorithm,
        model={"name": options.model, "norm": "batch"},
        local={"epochs": 1, "batch_size": 50},
        evaluation={},
        resources={"actors": options.actors},
    )


def plasma() -> int:
    """Bytes of the objects that live in the object store (Ray has no public call for it)."""
    import ray
    from ray._private.internal_api import get_memory_info_reply, get_state_from_address

    state = get_state_from_address(ray.get_runtime_context().gcs_address)
    return int(get_memory_info_reply(state).store_stats.object_store_bytes_used)


def rounds_are_flat(options: Options, available: dict[str, float]) -> bool:
    """Show the memory by round; return whether it stays that of round 5."""
    federation = on_actors(settings(options), available)
    seen: dict[int, tuple[int, ...]] = {}
    for number in range(1, options.rounds + 1):
        found = federation.step().metrics
        if number in (1, 5) or number % 5 == 0:
            others = (int(found[f"memory/{who}"]) for who in ("server", "client"))
            seen[number] = psutil.Process().memory_info().rss, *others, plasma()
    federation.close()
    show(
        f"resident MiB, {options.algorithm}, {options.clients} clients, {options.model}",
        f"round | {' :.1f | '.join(PARTS)} :.1f",
        [(number, *(value / MIB for value in values)) for number, values in seen.items()],
    )
    flat = True
    for position, name in enumerate(PARTS):
        grown = max(values[position] for n, values in seen.items() if n > 5) / seen[5][position]
        flat &= grown <= LIMIT
        print(f"{name}: most after round 5 is {grown:.3f} of round 5 (limit {LIMIT})")
    return flat


def nothing_is_left(options: Options, available: dict[str, float]) -> bool:
    """Show what federations one after another leave behind; return whether it is nothing."""
    rows: list[tuple[float, int, int, float]] = []
    for _ in range(options.federations):
        federation = on_actors(settings(options), available)
        federation.step()
        federation.close()
        del federation
        gc.collect()
        # What the allocator merely keeps for later is not left behind.
        ctypes.CDLL(None).malloc_trim(0)
        _, alive = psutil.wait_procs(actors("ServerActor", "ClientActor"), timeout=10)
        # Without pages shared with the object store, which are listed apart.
        own = psutil.Process().memory_full_info().uss / MIB
        rows.append((own, threading.active_count(), len(alive), plasma() / MIB))
    show(
        f"{options.federations} federations one after another",
        "federation | driver MiB :.1f | threads | processes | plasma MiB :.1f",
        [(number, *row) for number, row in enumerate(rows, start=1)],
    )
    grown = rows[-1][0] / rows[1][0]  # the first one still grows into its working set
    print(
        f"driver after the last federation: {grown:.3f} of that after the second; "
        f"threads {rows[0][1]} -> {rows[-1][1]}; actors left: {rows[-1][2]}"
    )
    return grown <= LIMIT and rows[-1][1] <= rows[0][1] and rows[-1][2] == 0


def main(options: Options) -> bool:
    with ray_session(None) as available:
        passed = [part(options, available) for part in (rounds_are_flat, nothing_is_left)]
    print("flat" if all(passed) else "NOT flat")
    return all(passed)
