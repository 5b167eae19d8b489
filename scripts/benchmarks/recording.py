"""What a round costs the driver that records it: in its journal, and in MLflow, alone and many to a request.

The metrics are those of a real round of FedAvg with so many clients, whose values are kept one by one
up to a hundred clients. MLflow's store is a SQLite file here.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.console import Console
from rich.table import Table


def round_of(clients: int) -> dict[str, float]:
    """Return the metrics of the second round of a small run."""
    from flray.runs import runner

    with tempfile.TemporaryDirectory() as folder:
        result = runner.run(
            {
                "experiment": {
                    "rounds": 2,
                    "data": {"name": "random", "samples": 20 * clients, "shape": [8], "classes": 2},
                    "partition": {"name": "iid", "clients": clients},
                    "model": "linear",
                    "algorithm": "fedavg",
                    "resources": {"executor": "inline"},
                    "tracking": {"uri": None},
                    "output": folder,
                }
            }
        )
        last = result.history.iloc[-1]
    return {str(name): float(value) for name, value in last.items() if name != "round"}


def seconds_of(work: Callable[[], object]) -> float:
    """Return the processor seconds of this process's threads."""
    begun = time.process_time()
    work()
    return time.process_time() - begun


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--clients", type=int, nargs="+", default=[20, 100])
    parser.add_argument("--rounds", type=int, default=400)
    options = parser.parse_args()
    from flray.records.events import JOURNAL
    from flray.records.journal import Journal
    from flray.tracking.exporter import MlflowExporter

    table = Table("clients", "metrics", "journal ms", "MLflow ms, alone", "MLflow ms, 20 at once")
    for clients in options.clients:
        metrics = round_of(clients)
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "run"
            sender = MlflowExporter(folder, f"sqlite:///{place}/mlflow.db")
            with Journal(folder / JOURNAL) as journal:
                journal.start(uid="a", experiment="recording", name="a")
                journal.record_round(0, metrics)
                sender.flush()  # the store and the run are made
                written = alone = together = 0.0
                for number in range(1, options.rounds + 1):
                    written += seconds_of(partial(journal.record_round, number, metrics))
                    if number <= options.rounds // 2:
                        alone += seconds_of(sender.flush)
                    elif number % 20 == 0:
                        together += seconds_of(sender.flush)
        half = options.rounds // 2
        costs = (written / options.rounds, alone / half, together / (options.rounds - half))
        table.add_row(str(clients), str(len(metrics)), *(f"{1000 * cost:.2f}" for cost in costs))
    Console().print(table)


if __name__ == "__main__":
    main()
