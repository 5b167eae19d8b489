"""What a round costs the driver that records it: in its journal, and in MLflow, alone and many to a request.

The metrics are those of a real round of FedAvg with so many clients, whose values are kept one by one
up to a hundred clients. MLflow's store is a SQLite file here.

With --trials: so many trials of 15 rounds, recorded one after the other as a sweep's driver does it and
without training, and sent to a server as `cluster/node/head` starts it. Fails if the server
has not got all of it five minutes after the last trial, or if either holds more than 1.5 GiB.
"""

import contextlib
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
from runner import MIB, cpu_seconds, experiment, option, show

from flray.config.loader import load
from flray.records import JOURNAL, Journal, directory
from flray.runs.progress import Progress
from flray.runs.runner import run
from flray.runs.session import RunSession, tracking
from flray.tracking.exporter import MlflowExporter
from flray.tuning import space
from flray.tuning.callback import TrialRecorder
from flray.tuning.sweep import rounds_between
from flray.tuning.trial_store import TrialFolder, complete_settings
from tests.services import tracking_server

SEEDS, ROUNDS = 10, 15
MINUTES, LARGEST = 5.0, 1536.0
"""The limits of --trials: until all is sent, and MiB of driver and server."""


@dataclass
class Options:
    clients: Sequence[int] = option((20, 100))
    rounds: int = 400
    trials: int = option(0, "measure a sweep of so many trials and a server instead")
    every: int = option(
        0, "which rounds go to MLflow (tracking.every); default: as in such a sweep"
    )
    store: str = option("", "MLFLOW_BACKEND_STORE_URI of the server; default: SQLite")


def round_of(clients: int) -> dict[str, float]:
    """Return the metrics of the second round of a small run."""
    with tempfile.TemporaryDirectory() as folder:
        data = {"name": "random", "samples": 20 * clients, "shape": [8], "classes": 2}
        how: dict[str, Any] = {"rounds": 2, "evaluation": {}, "resources": {"executor": "inline"}}
        settings = experiment(clients, 20, data=data, model="linear", output=folder, **how)
        last = run({"experiment": settings}).history.iloc[-1]
    return {str(name): float(value) for name, value in last.items() if name != "round"}


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
                written += cpu_seconds(partial(journal.record_round, number, metrics))
                if number <= half:
                    alone += cpu_seconds(sender.flush)
                elif number % 20 == 0:
                    together += cpu_seconds(sender.flush)
    costs = (written / rounds, alone / half, together / (rounds - half))
    return clients, len(metrics), *(1000 * cost for cost in costs)


def held(process: psutil.Process) -> float:
    """Return the MiB that a process and its children hold, shared pages once."""
    every = [process, *process.children(recursive=True)]
    return float(sum(one.memory_full_info().pss for one in every) / MIB)


class Trial(SimpleNamespace):
    """A trial as Tune shows it to its callbacks."""

    def __str__(self) -> str:
        return str(self.number)


def record(recorder: TrialRecorder, number: str, metrics: dict[str, float]) -> None:
    """Record a trial from its start to its end."""
    trial: Any = Trial(
        number=number, config={}, status="RUNNING", error_file=None, last_result=None
    )
    recorder.on_trial_start(0, [], trial)
    for done in range(1, ROUNDS + 1):
        report = {"metric": "global/accuracy", "lines": [], "carried": [], "sha256": "0" * 64}
        text = json.dumps({**report, "rounds": [{"score": 0.5, **metrics}]})
        trial.last_result = {"training_iteration": done, "score": 0.5, "report": text}
        recorder.on_trial_result(0, [], trial, trial.last_result)
    recorder.on_trial_complete(0, [], trial)


def booked(options: Options) -> tuple[float, ...]:
    """Return the row of a sweep."""
    metrics, driver = round_of(options.clients[0]), psutil.Process()
    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as stack:
        service = tracking_server(Path(place), options.store)
        stack.callback(service.kill)
        uri = service.start().uri
        server = psutil.Process(service.pid)
        idle, folder = held(server), Path(place) / "sweep"
        settings = {
            "rounds": ROUNDS,
            "data": {"name": "random", "samples": 20, "shape": [8], "classes": 2},
            "model": "linear",
            "algorithm": "fedavg",
            "tracking": {"uri": uri, "every": options.every or None},
        }
        sweep = {"samples": options.trials // SEEDS, "seeds": list(range(SEEDS))}
        lr = {"local.lr": {"loguniform": [0.001, 0.5]}}
        config = load({"experiment": settings, "space": lr, "sweep": sweep})
        specs = space.trial_specs(config, space.enumerate_settings(config))
        points = {point.number: point for point in specs}
        directory.save_config(folder, config)
        directory.write(folder, "sweep", directory.new_identity())
        RunSession(folder, config.experiment, name="sweep", params={}, tags={}).journal.close()
        for point in specs:
            TrialFolder(folder, point.number).create(point, config)
        progress = Progress()
        begun = time.perf_counter()
        every = rounds_between(len(specs), config.experiment)
        with tracking(folder, uri, print, iter(()), 3600.0, every) as tracker:
            rounds = ROUNDS * len(specs)
            recorder = TrialRecorder(folder, config, points, rounds, tracker, progress)
            for number in points:
                record(recorder, number, metrics)
            recorder.close()
            complete_settings(folder)
            recorded = time.perf_counter()
        sent = time.perf_counter()
        minutes = ((recorded - begun) / 60, (sent - recorded) / 60)
        return len(specs), every, len(metrics), *minutes, idle, held(server), held(driver)


def main(options: Options) -> bool | None:
    if options.trials:
        row = booked(options)
        show(
            None,
            "trials | every | metrics | min until recorded :.1f | min until sent :.1f"
            " | server idle MiB :.0f | server MiB :.0f | driver MiB :.0f",
            [row],
        )
        *_, minutes, _, served, driven = row
        return minutes <= MINUTES and max(served, driven) <= LARGEST
    show(
        None,
        "clients | metrics | journal ms :.2f | MLflow ms, alone :.2f | MLflow ms, 20 at once :.2f",
        [measured(clients, options.rounds) for clients in options.clients],
    )
    return None
