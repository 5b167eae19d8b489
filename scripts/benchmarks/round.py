"""Seconds per round: flray on Ray actors and inline, beside a bare PyTorch loop on the same work, in one run.

The contestants take turns, round by round, so that whatever else the machine does hits all of them
alike; ratios are medians of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
from pathlib import Path
from typing import Any

import torch
from bare import OneProcess, SeveralProcesses
from rich.console import Console
from rich.table import Table

from flray.config.loader import load
from flray.federation.building import build_spec
from flray.federation.federation import RoundResult, inline_federation
from flray.federation.ray_backend.handle import RayFederation
from flray.federation.ray_backend.placement import PoolPlanner
from flray.federation.ray_backend.session import local_resources, ray_session

PHASES = ("send", "train", "receive", "aggregate", "evaluate")


def experiment(options: argparse.Namespace, executor: str) -> dict[str, Any]:
    return {
        "experiment": {
            "rounds": 1000,
            "algorithm": "fedavg",
            "data": {
                "name": "random",
                "samples": options.clients * options.samples,
                "shape": [3, 32, 32],
                "classes": 10,
            },
            "partition": {"name": "iid", "clients": options.clients},
            "model": {"name": options.model},
            "local": {"epochs": 1, "batch_size": 64, "lr": 0.01, "memory_format": options.format},
            "participation": {"clients": options.cohort},
            "evaluation": {"every": 100000},
            "tracking": {"uri": None},
            "resources": {
                "executor": executor,
                "actors": options.actors if executor == "ray" else "auto",
            },
        }
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=20, help="measured rounds of each contestant")
    parser.add_argument("--warmup", type=int, default=3)
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--cohort", type=int, default=8)
    parser.add_argument("--samples", type=int, default=500, help="per client")
    parser.add_argument("--actors", type=int, default=2)
    parser.add_argument("--model", default="lenet")
    parser.add_argument(
        "--format", choices=["channels_last", "contiguous"], default="channels_last"
    )
    parser.add_argument(
        "--peer",
        action="append",
        default=[],
        metavar="NAME=PYTHON",
        help="also time scripts/benchmarks/peers/NAME.py with this interpreter, for example "
        "flower=/path/to/venv/bin/python; repeatable",
    )
    parser.add_argument("--json", type=Path, help="write the numbers here too")
    options = parser.parse_args()
    torch.set_num_threads(1)
    settings = {
        "model": options.model,
        "shape": [3, 32, 32],
        "classes": 10,
        "clients": options.clients,
        "cohort": options.cohort,
        "samples": options.samples,
        "batch": 64,
        "lr": 0.01,
        "channels_last": options.format == "channels_last",
    }
    spec = build_spec(load(experiment(options, "ray")).experiment)
    two = SeveralProcesses(settings, options.actors)
    one = OneProcess(settings)
    inline = inline_federation(build_spec(load(experiment(options, "inline")).experiment), print)
    times: dict[str, list[float]] = {}
    records: list[dict[str, float]] = []
    bare_many, flray_many = (
        f"bare PyTorch, {options.actors} processes",
        f"flray, {options.actors} actors",
    )
    with ray_session(None):
        ray_federation = RayFederation(spec, PoolPlanner(spec, local_resources()).plan(), print)
        for number in range(options.warmup + options.rounds):
            finished: RoundResult | None = None
            for name, run_round in (
                (bare_many, two.round),
                (flray_many, ray_federation.step),
                ("bare PyTorch, one process", one.round),
                ("flray, inline", inline.step),
            ):
                outcome: float | RoundResult = run_round()
                if name == flray_many and isinstance(outcome, RoundResult):
                    finished = outcome
                seconds = outcome if isinstance(outcome, float) else outcome.metrics["time/round"]
                if number >= options.warmup:
                    times.setdefault(name, []).append(seconds)
            if number >= options.warmup and finished is not None:
                records.append(finished.metrics)
        ray_federation.close()
    inline.close()
    two.close()
    report(
        times,
        records,
        ((flray_many, bare_many), ("flray, inline", "bare PyTorch, one process")),
        options,
    )


def report(
    times: dict[str, list[float]],
    records: list[dict[str, float]],
    pairs: Any,
    options: argparse.Namespace,
) -> None:
    console = Console(width=110)
    table = Table(
        "contestant",
        "median s/round",
        "min",
        "ratio to its bare loop",
        title=f"{options.cohort} of {options.clients} clients x {options.samples} images, {options.model}, "
        f"{options.format}, {options.rounds} rounds each",
    )
    ratios = {
        a: statistics.median(x / y for x, y in zip(times[a], times[b], strict=True))
        for a, b in pairs
    }
    for name, values in times.items():
        ratio = f"{ratios[name]:.3f}" if name in ratios else ""
        table.add_row(name, f"{statistics.median(values):.4f}", f"{min(values):.4f}", ratio)
    peers = {}
    for peer in options.peer:
        name, _, python = peer.partition("=")
        script = Path(__file__).parent / "peers" / f"{name}.py"
        if not script.is_file():
            raise SystemExit(f"--peer {peer}: no {script.name} in {script.parent}")
        spec = json.dumps(
            {
                "clients": options.clients,
                "cohort": options.cohort,
                "samples": options.samples,
                "rounds": options.rounds + options.warmup,
                "warmup": options.warmup,
                "processes": options.actors,
            }
        )
        done = subprocess.run(
            [python, str(script), spec], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"--peer {peer}: failed\n{done.stderr[-2000:]}")
        peers[name] = json.loads(done.stdout.strip().splitlines()[-1])["median"]
        bare = statistics.median(times[pairs[0][1]])
        table.add_row(name, f"{peers[name]:.4f}", "", f"{peers[name] / bare:.3f}")
    console.print(table)
    phases = {phase: statistics.median(r[f"time/{phase}"] for r in records) for phase in PHASES}
    console.print(
        "flray with actors, seconds per phase: "
        + ", ".join(f"{phase} {seconds:.4f}" for phase, seconds in phases.items())
    )
    sent = {way: records[-1][f"bytes/{way}"] for way in ("down", "up")}
    console.print(f"bytes per round: down {sent['down']:,.0f}, up {sent['up']:,.0f}")
    if options.json:
        options.json.write_text(
            json.dumps(
                {"times": times, "ratios": ratios, "phases": phases, "bytes": sent, "peers": peers},
                indent=1,
            )
        )


if __name__ == "__main__":
    main()
