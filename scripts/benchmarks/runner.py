"""Run a benchmark; and what the benchmarks share: options, small experiments, turns, tables.

A benchmark is a module beside this one. It has `Options`, a dataclass of its command line, and `main`, which gets them
and returns False if a limit is passed.
"""

import argparse
import contextlib
import importlib
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, fields
from pathlib import Path
from typing import Any, TypeVar

import psutil
import ray
import torch
from rich.console import Console
from rich.table import Table

from flray.config.loader import load
from flray.federation import FederationSpec
from flray.federation.building import build_spec
from flray.federation.federation import Federation, inline_federation
from flray.federation.ray_backend.handle import RayFederation
from flray.federation.ray_backend.placement import PoolPlanner

Name = TypeVar("Name")
FOREVER = 10**6
"""More rounds than a benchmark runs."""
MIB = 2**20
HERE = Path(__file__).parent
OTHERS = ("runner", "bare")
TABLES: list[dict[str, Any]] = []
"""What `show` has printed."""


def option(default: Any, text: str | None = None, **how: Any) -> Any:
    """Return a field of `Options` with what argparse should know; a tuple takes several values."""
    return field(default=default, metadata={"help": text, **how})


def parsed(benchmark: Any, arguments: Sequence[str]) -> tuple[Path | None, Any]:
    """Return the file for a benchmark's tables, if one is wanted, and its options."""
    parser = argparse.ArgumentParser(
        prog=f"scripts/benchmark {benchmark.__name__}",
        description=benchmark.__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the tables here too")
    for entry in fields(benchmark.Options):
        default: Any = entry.default
        several = isinstance(default, tuple)
        how: dict[str, Any] = {"default": default, "nargs": "+" if several else None}
        if default is not None:
            how["type"] = type(default[0] if several else default)
        parser.add_argument(f"--{entry.name}", **(how | dict(entry.metadata)))
    found = vars(parser.parse_args(arguments))
    return found.pop("json"), benchmark.Options(**found)


def experiment(clients: int, samples: int, side: int = 32, **settings: Any) -> dict[str, Any]:
    """Return FedAvg on random images, so many a client, not evaluated or tracked, with other settings."""
    data = {"name": "random", "samples": clients * samples, "shape": [3, side, side], "classes": 10}
    return {
        "rounds": FOREVER,
        "algorithm": "fedavg",
        "data": data,
        "partition": {"name": "iid", "clients": clients},
        "evaluation": {"every": FOREVER},
        "tracking": {"uri": None},
        **settings,
    }


def spec_of(settings: Mapping[str, Any]) -> FederationSpec:
    """Return the specification of an experiment."""
    return build_spec(load({"experiment": dict(settings)}).experiment)


def inline(settings: Mapping[str, Any]) -> Federation:
    """Return an experiment's federation in this process."""
    return inline_federation(spec_of(settings), print)


def on_actors(settings: Mapping[str, Any], available: dict[str, float]) -> RayFederation:
    """Return an experiment's federation on actors."""
    spec = spec_of(settings)
    return RayFederation(spec, PoolPlanner(spec, available).plan(), print)


def client_pids(federation: RayFederation) -> list[int]:
    """Return the process ids of the client actors; waits until all have started."""

    def ask(server: Any) -> Any:
        actors = [worker.actor for worker in server.executor.workers]
        return ray.get([actor.__ray_call__.remote(lambda _: os.getpid()) for actor in actors])

    found: list[int] = ray.get(federation._server.__ray_call__.remote(ask))
    return found


def actors(*kinds: str) -> list[psutil.Process]:
    """Return the living actors of some classes that this process has started."""
    found = []
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if " ".join(process.cmdline()).startswith(tuple(f"ray::{kind}" for kind in kinds)):
                found.append(process)
    return found


class Steps:
    """Runs a round at each call, returns its seconds, and keeps what was measured of every round."""

    def __init__(self, federation: Federation | RayFederation) -> None:
        self.federation = federation
        self.metrics: list[dict[str, float]] = []

    def __call__(self) -> float:
        self.metrics.append(self.federation.step().metrics)
        return self.metrics[-1]["time/round"]


def take_turns(
    contestants: Mapping[Name, Callable[[], float]], rounds: int, warmup: int = 2
) -> dict[Name, list[float]]:
    """Return everyone's seconds by round; whatever else the machine does hits all of them alike."""
    times: dict[Name, list[float]] = {name: [] for name in contestants}
    for number in range(warmup + rounds):
        for name, run_round in contestants.items():
            seconds = run_round()
            if number >= warmup:
                times[name].append(seconds)
    return times


def ratio(over: Iterable[float], under: Iterable[float]) -> float:
    """Return the median of the rounds' ratios."""
    return statistics.median(a / b for a, b in zip(over, under, strict=True))


def seconds(work: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Return the seconds that work takes."""
    began = clock()
    work()
    return clock() - began


def cpu_seconds(work: Callable[[], object]) -> float:
    """Return the processor seconds that work takes the threads of this process."""
    return seconds(work, time.process_time)


def begin(
    module: str, function: str, *arguments: Any, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Begin a function in a process of its own; the arguments go there as JSON, and what it returns comes back."""
    code = f"import {module}, json, sys; print(json.dumps({module}.{function}(*json.loads(sys.argv[1]))))"
    command = [sys.executable, "-c", code, json.dumps(arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)


def returned(process: subprocess.Popen[str]) -> Any:
    """Wait for what `begin` began, and return what its function returned."""
    said = process.communicate()[0]
    if process.returncode:
        raise SystemExit(f"a process of the benchmark ended with {process.returncode}")
    return json.loads(said.splitlines()[-1])


def flray(*arguments: str) -> list[str]:
    """Return a command line of flray."""
    return [sys.executable, "-m", "flray", *arguments]


def processor_seconds(command: Sequence[str], folder: Path) -> float:
    """Run a command and return what it and its processes computed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, cwd=folder, capture_output=True, timeout=3600, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def show(title: str | None, columns: str, rows: Iterable[Sequence[object]]) -> None:
    """Print a table; columns are ``heading :format`` with `` | `` between them, and None is an empty cell."""
    rows = [list(row) for row in rows]
    TABLES.append({"title": title, "columns": columns, "rows": rows})
    parts = [column.partition(" :") for column in columns.split(" | ")]
    table = Table(*(heading for heading, _, _ in parts), title=title)
    for row in rows:
        table.add_row(*(_text(cell, form) for cell, (_, _, form) in zip(row, parts, strict=True)))
    Console(width=max(120, 12 * len(parts))).print(table)


def _text(cell: object, form: str) -> str:
    return "" if cell is None else cell if isinstance(cell, str) else format(cell, form)


def main() -> None:
    """Run the benchmark that the command line names."""
    names = sorted({path.stem for path in HERE.glob("*.py")} - {*OTHERS})
    if len(sys.argv) < 2 or sys.argv[1] not in names:
        print("usage: scripts/benchmark NAME [--help]; names:", *names, file=sys.stderr)
        sys.exit(2)
    benchmark = importlib.import_module(sys.argv[1])
    path, options = parsed(benchmark, sys.argv[2:])
    try:
        sys.exit(benchmark.main(options) is False)
    finally:
        if path is not None:
            found = {"options": vars(options), "torch": torch.__version__, "tables": TABLES}
            path.write_text(json.dumps(found, indent=1, default=str))
