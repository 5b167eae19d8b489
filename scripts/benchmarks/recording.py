"""What a round costs the driver that records it: in its journal, and in MLflow, alone and many to a request.

The metrics are those of a real round of FedAvg with so many clients, whose values are kept one by one
up to a hundred clients. MLflow's store is a SQLite file here.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from runner import option, show

from flray.records.journal import JOURNAL, Journal
from flray.runs.runner import run
from flray.tracking.exporter import MlflowExporter


@dataclass
class Options:
    clients: Sequence[int] = option((20, 100))
    rounds: int = 400


def round_of(clients: int) -> dict[str, float]:
    """Return the metrics of the second round of a small run."""
    with tempfile.TemporaryDirectory() as folder:
        settings = {
            "rounds": 2,
            "data": {"name": "random", "samples": 20 * clients, "shape": [8], "classes": 2},
            "partition": {"name": "iid", "clients": clients},
            "model": "linear",
            "algorithm": "fedavg",
            "resources": {"executor": "inline"},
            "tracking": {"uri": None},
            "output": folder,
        }
        last = run({"experiment": settings}).history.iloc[-1]
    return {str(name): float(value) for name, value in last.items() if name != "round"}


def seconds_of(work: Callable[[], object]) -> float:
    """Return the processor seconds of this process's threads."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


def measured(clients: int, rounds: int) -> tuple[object, ...]:
    """Return the row of so many clients."""
    metrics, half = round_of(clients), rounds // 2
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "run"
        sender = MlflowExporter(folder, f"sqlite:///{place}/mlflow.db")
        with Journal(folder / JOURNAL) as journal:
            journal.start(uid="a", experiment="recording", name="a")
            journal.record_round(0, metrics)
            sender.flush()  # the store and the run are made
            written = alone = together = 0.0
            for number in range(1, rounds + 1):
                written += seconds_of(partial(journal.record_round, number, metrics))
                if number <= half:
                    alone += seconds_of(sender.flush)
                elif number % 20 == 0:
                    together += seconds_of(sender.flush)
    costs = (written / rounds, alone / half, together / (rounds - half))
    return clients, len(metrics), *(1000 * cost for cost in costs)


def main(options: Options) -> None:
    show(
        None,
        "clients | metrics | journal ms :.2f | MLflow ms, alone :.2f | MLflow ms, 20 at once :.2f",
        [measured(clients, options.rounds) for clients in options.clients],
    )
