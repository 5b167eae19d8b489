"""Run federations and sweeps on a local Ray with fake GPUs, and see which GPU every client actor was given.

    python scripts/checks/fake_gpus.py                  # 1, 2, 4, 8 GPUs x 4, 8, 64 CPUs
    python scripts/checks/fake_gpus.py --gpus 4 --cpus 8

Each machine runs one federation of ten clients and one sweep of four trials; a method of this file notes, in each
process that trains a client, the GPU that Ray gave it. Exit code 1 if a GPU got no actor although there was a CPU for
it, or if actors ask for more CPUs than there are. Some minutes; networks are computed on the CPU.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import ray

from flray import api, register_algorithm, registry
from flray.algorithms.client import Client
from flray.algorithms.fedavg import FedAvg
from flray.algorithms.types import Message
from flray.runs import runner

CLIENTS, TRIALS = 10, 4
WAIT_S = {"run": 5.0, "sweep": 1.0}
"""How long a client stands still, so that no actor trains those of another."""


@register_algorithm("noting")
class Noting(FedAvg):
    """FedAvg whose clients note the GPU of their process in a file."""

    class Params(registry.Params):
        """Options: where the files are, and how many seconds a client stands still."""

        folder: str = ""
        wait: float = 0.0

    hp: Params

    def train(self, client: Client) -> Message:
        context = ray.get_runtime_context()
        if not client.round:  # the first actors to start have most of its clients
            return super().train(client)
        if context.get_actor_id() is not None:  # the probe of the memory is a task and no actor
            gpus = ",".join(context.get_accelerator_ids().get("GPU", []))
            cpus = context.get_assigned_resources().get("CPU", 0.0)
            (Path(self.hp.folder) / str(os.getpid())).write_text(f"{gpus} {cpus}")
        time.sleep(self.hp.wait)
        return super().train(client)


def experiment(folder: Path, wait: float) -> dict[str, Any]:
    return {
        "name": "fake",
        "rounds": 2,
        "data": {"name": "digits-sklearn", "samples": 200},
        "partition": {"name": "iid", "clients": CLIENTS},
        "model": "lenet",
        "algorithm": {"name": "noting", "folder": str(folder), "wait": wait},
        "local": {"epochs": 1, "batch_size": 32},
        "tracking": {"uri": None},
        "output": str(folder.parent / "runs"),
    }


def seen(folder: Path) -> tuple[int, set[str], float]:
    """Return how many actors trained clients, the GPUs that they had, and their CPUs."""
    notes = [path.read_text().split(" ") for path in folder.iterdir()]
    used = {gpu for gpus, _ in notes for gpu in gpus.split(",") if gpu}
    return len(notes), used, sum(float(cpus) for _, cpus in notes)


def check(gpus: int, cpus: int, kinds: list[str]) -> bool:
    fine = True
    quiet = {"include_dashboard": False, "logging_level": "ERROR", "log_to_driver": False}
    ray.init(address="local", num_cpus=cpus, num_gpus=gpus, **quiet)
    try:
        for kind in kinds:
            with tempfile.TemporaryDirectory() as base:
                folder = Path(base) / "seen"
                folder.mkdir()
                content = {"experiment": experiment(folder, WAIT_S[kind])}
                if kind == "run":
                    runner.run(content)
                else:
                    api.tune({**content, "sweep": {"seeds": list(range(TRIALS))}})
                actors, used, asked = seen(folder)
            good = len(used) == min(gpus, cpus) and (kind == "sweep" or asked <= cpus)
            fine &= good
            print(
                f"{gpus} GPUs, {cpus:2} CPUs, {kind:5}: {actors:2} actors on {len(used)} GPUs"
                f"{'' if good else '  <-- not as it should be'}",
                flush=True,
            )
    finally:
        ray.shutdown()
    return fine


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 2, 4, 8])
    parser.add_argument("--cpus", type=int, nargs="+", default=[4, 8, 64])
    parser.add_argument("--kinds", nargs="+", choices=["run", "sweep"], default=["run", "sweep"])
    chosen = parser.parse_args()
    os.environ["FLRAY_FAKE_GPUS"] = "1"
    fine = [check(gpus, cpus, chosen.kinds) for gpus in chosen.gpus for cpus in chosen.cpus]
    return 0 if all(fine) else 1


if __name__ == "__main__":
    sys.exit(main())
