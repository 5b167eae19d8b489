"""Does memory stay flat? Many rounds of one federation, then several federations one after another in one process.

Resident memory of the driver, the server and the client actors, and the bytes in the object store,
by round; then what several federations in one process leave behind: processes, threads, memory.
Exits with 1 if a limit is passed.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import threading
from typing import Any

import psutil
from rich.console import Console
from rich.table import Table

from flray.config.loader import load
from flray.federation.building import build_spec
from flray.federation.ray_backend.handle import RayFederation
from flray.federation.ray_backend.placement import PoolPlanner
from flray.federation.ray_backend.session import ray_session

LIMIT = 1.05


def experiment(options: argparse.Namespace, algorithm: str) -> dict[str, Any]:
    return {
        "experiment": {
            "rounds": 100000,
            "algorithm": algorithm,
            "data": {
                "name": "random",
                "samples": options.clients * 100,
                "shape": [3, 32, 32],
                "classes": 10,
            },
            "partition": {"name": "iid", "clients": options.clients},
            "model": {"name": options.model, "norm": "batch"},
            "local": {"epochs": 1, "batch_size": 50},
            "tracking": {"uri": None},
            "resources": {"actors": options.actors},
        }
    }


def plasma() -> int:
    """Bytes of the objects that live in the object store (Ray has no public call for it)."""
    import ray
    from ray._private.internal_api import get_memory_info_reply, get_state_from_address

    state = get_state_from_address(ray.get_runtime_context().gcs_address)
    return int(get_memory_info_reply(state).store_stats.object_store_bytes_used)


def actors() -> list[psutil.Process]:
    """Server and client actors that this process has started and that are alive."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if any("ServerActor" in part or "ClientActor" in part for part in process.cmdline()):
                found.append(process)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=50)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--model", default="lenet")
    parser.add_argument("--algorithm", default="fedbn", help="fedbn keeps a state for every client")
    parser.add_argument(
        "--federations",
        type=int,
        default=5,
        choices=range(2, 100),
        metavar="N",
        help="run one after another in this process",
    )
    options = parser.parse_args()
    console = Console(width=110)
    spec = build_spec(load(experiment(options, options.algorithm)).experiment)
    passed = True
    with ray_session(None) as available:
        federation = RayFederation(spec, PoolPlanner(spec, available).plan(), print)
        table = Table(
            "round",
            "driver",
            "server",
            "largest client actor",
            "object store",
            title=f"resident MiB, {options.algorithm}, {options.clients} clients, {options.model}",
        )
        seen: dict[int, tuple[int, int, int, int]] = {}
        for number in range(1, options.rounds + 1):
            federation.step()
            if number in (1, 5) or number % 5 == 0:
                memory = federation.memory()
                seen[number] = (
                    psutil.Process().memory_info().rss,
                    memory.pop("server"),
                    max(memory.values()),
                    plasma(),
                )
                table.add_row(str(number), *(f"{value / 2**20:.1f}" for value in seen[number]))
        federation.close()
        console.print(table)
        for position, name in enumerate(("driver", "server", "client actors", "object store")):
            ratio = max(values[position] for n, values in seen.items() if n > 5) / seen[5][position]
            passed &= ratio <= LIMIT
            console.print(f"{name}: most after round 5 is {ratio:.3f} of round 5 (limit {LIMIT})")
        left = Table(
            "federation",
            "driver MiB",
            "threads",
            "processes",
            "plasma MiB",
            title=f"{options.federations} federations one after another",
        )
        marks: list[tuple[int, int, int]] = []
        for number in range(1, options.federations + 1):
            spec = build_spec(load(experiment(options, options.algorithm)).experiment)
            again = RayFederation(spec, PoolPlanner(spec, available).plan(), print)
            again.step()
            again.close()
            del again
            gc.collect()
            ctypes.CDLL(None).malloc_trim(
                0
            )  # what the allocator merely keeps for later is not left behind
            _, alive = psutil.wait_procs(actors(), timeout=10)
            # Without pages shared with the object store, which are listed apart.
            marks.append(
                (psutil.Process().memory_full_info().uss, threading.active_count(), len(alive))
            )
            left.add_row(
                str(number),
                f"{marks[-1][0] / 2**20:.1f}",
                str(marks[-1][1]),
                str(marks[-1][2]),
                f"{plasma() / 2**20:.1f}",
            )
        console.print(left)
        grown = marks[-1][0] / marks[1][0]  # the first one still grows into its working set
        console.print(
            f"driver after the last federation: {grown:.3f} of that after the second; "
            f"threads {marks[0][1]} -> {marks[-1][1]}; actors left: {marks[-1][2]}"
        )
        passed &= grown <= LIMIT and marks[-1][1] <= marks[0][1] and marks[-1][2] == 0
    console.print("flat" if passed else "NOT flat")
    raise SystemExit(0 if passed else 1)


if __name__ == "__main__":
    main()
