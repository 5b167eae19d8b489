"""Seconds per round: flray on Ray actors and inline, beside a bare PyTorch loop on the same work, in one run.

The contestants take turns, round by round, so that whatever else the machine does hits all of them
alike; ratios are medians of the rounds' ratios.
"""

import contextlib
import json
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

import psutil
import runner
import torch
from bare import OneProcess, SeveralProcesses, work

from flray.ray_session import local_resources, ray_session

PHASES = ("send", "train", "receive", "aggregate", "evaluate")
RATE = 0.01
Turns = dict[str, Callable[[], float]]


def peer_option() -> Any:
    """Return the option whose values `seconds_of_peer` gets."""
    text = (
        "also time scripts/benchmarks/peers/NAME.py with this interpreter, for example "
        "flower=/path/to/venv/bin/python; repeatable"
    )
    return runner.option(None, text, action="append", metavar="NAME=PYTHON")


@dataclass
class Options:
    rounds: int = runner.option(20, "measured rounds of each contestant")
    warmup: int = 3
    clients: int = 20
    cohort: int = 8
    samples: int = runner.option(500, "per client")
    actors: int = runner.option(2, "0: only what runs in one process")
    batch: int = 64
    model: str = runner.option("lenet", "a registered one, for images of 3x32x32")
    format: str = runner.option("channels_last", choices=("channels_last", "contiguous"))
    evaluate: int = runner.option(0, "flray evaluates every so many rounds; 0: never")
    peer: Sequence[str] | None = peer_option()


def settings(options: Options, resources: dict[str, Any]) -> dict[str, Any]:
    local = {"epochs": 1, "batch_size": options.batch, "lr": RATE, "memory_format": options.format}
    return runner.experiment(
        options.clients,
        options.samples,
        model=options.model,
        local=local,
        participation={"clients": options.cohort},
        resources=resources,
        evaluation={"every": options.evaluate or runner.FOREVER},
    )


def bare(options: Options) -> dict[str, Any]:
    """Return the same work as the bare loop gets it."""
    return work(options, channels_last=options.format == "channels_last", lr=RATE)


class Busy:
    """Runs rounds, and keeps the CPU seconds of the client actors and of all processes in each of them."""

    def __init__(self, steps: runner.Steps, clients: Sequence[int]) -> None:
        self._steps, self._clients = steps, clients
        self.seconds: list[tuple[float, float]] = []

    def __call__(self) -> float:
        before, seconds, after = self._times(), self._steps(), self._times()
        used = {pid: after[pid] - before.get(pid, 0.0) for pid in after}
        self.seconds.append((sum(used[pid] for pid in self._clients), sum(used.values())))
        return seconds

    @staticmethod
    def _times() -> dict[int, float]:
        here, found = psutil.Process(), dict[int, float]()
        for process in (here, *here.children(recursive=True)):
            with contextlib.suppress(psutil.Error):
                found[process.pid] = sum(process.cpu_times()[:2])
        return found


def seconds_of_peer(given: str, options: Options) -> tuple[str, float]:
    """Return the name of another engine, and its median seconds per round."""
    name, _, python = given.partition("=")
    script = runner.HERE / "peers" / f"{name}.py"
    if not script.is_file():
        raise SystemExit(f"--peer {given}: no {script.name} in {script.parent}")
    spec = {**vars(options), "rounds": options.rounds + options.warmup}
    command = [python, str(script), json.dumps(spec)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"--peer {given}: failed\n{done.stderr[-2000:]}")
    return name, json.loads(done.stdout.strip().splitlines()[-1])["median"]


def main(options: Options) -> None:
    torch.set_num_threads(1)
    bare_many = f"bare PyTorch, {options.actors} processes"
    flray_many = f"flray, {options.actors} actors"
    bare_one, flray_one = "bare PyTorch, one process", "flray, inline"
    here = runner.Steps(runner.inline(settings(options, {"executor": "inline"})))
    turns: Turns = {bare_one: OneProcess(bare(options)).round, flray_one: here}
    there = None
    with contextlib.ExitStack() as stack:
        stack.callback(here.federation.close)
        if options.actors:
            several = SeveralProcesses(bare(options), options.actors)
            stack.callback(several.close)
            stack.enter_context(ray_session(None))
            pool = {"executor": "ray", "actors": options.actors}
            federation = runner.on_actors(settings(options, pool), local_resources())
            stack.callback(federation.close)
            there = runner.Steps(federation)
            busy = Busy(there, runner.client_pids(federation))
            turns = {bare_many: several.round, flray_many: busy, **turns}
        times = runner.take_turns(turns, options.rounds, options.warmup)
    pairs = ((flray_many, bare_many), (flray_one, bare_one))
    ratios = {one: runner.ratio(times[one], times[own]) for one, own in pairs if one in times}
    peers = dict(seconds_of_peer(peer, options) for peer in options.peer or ())
    runner.show(
        f"{options.cohort} of {options.clients} clients x {options.samples} images, batch {options.batch}, "
        f"{options.model}, {options.format}, {options.rounds} rounds each",
        "contestant | median s/round :.4f | min :.4f | ratio to its bare loop :.3f",
        [
            *((name, median(one), min(one), ratios.get(name)) for name, one in times.items()),
            *(
                (name, one, None, one / median(next(iter(times.values()))))
                for name, one in peers.items()
            ),
        ],
    )
    if there is None:
        return
    measured = there.metrics[options.warmup :]
    phases = {phase: median(metrics[f"time/{phase}"] for metrics in measured) for phase in PHASES}
    clients, everyone = map(fmean, zip(*busy.seconds[options.warmup :], strict=True))
    sent = {way: measured[-1][f"bytes/{way}"] for way in ("down", "up")}
    shown = ", ".join(f"{phase} {seconds:.4f}" for phase, seconds in phases.items())
    print(f"flray with actors, seconds per phase: {shown}")
    print(
        f"CPU seconds per actor in a round of {fmean(times[flray_many]):.4f} s: of the actors "
        f"{clients / options.actors:.4f}, of all processes {everyone / options.actors:.4f}"
    )
    print(f"bytes per round: down {sent['down']:,.0f}, up {sent['up']:,.0f}")
