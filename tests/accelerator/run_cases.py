"""Run federations on the pretend accelerator and on the CPU: ``python -m tests.accelerator.run_cases < CASES``.

Reads cases as JSON and prints a line of JSON for each: what was learnt in both places, and what it cost on the
accelerator. With the word ``record`` it records the kernels of all cases.
"""

import json
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from flray.algorithms.base import Algorithm
from flray.algorithms.client import Client
from flray.algorithms.common.samples import Batch
from flray.federation import FederationSpec
from flray.federation.federation import Federation
from flray.federation.worker.client_runner import ClientRunner, InlineExecutor
from flray.tasks.classification import Classification
from tests.accelerator.cases import Case, covering, tasks
from tests.accelerator.device import DEVICE, Counts, pretending
from tests.helpers import built, steady

CPU = torch.device("cpu")
LOSS = Algorithm.loss


def _asking(self: Algorithm, client: Client, batch: Batch) -> Tensor:
    loss = LOSS(self, client, batch)
    client.scratch["last"] = loss.item()
    return loss


def _leaving(self: Algorithm, client: Client, batch: Batch) -> Tensor:
    loss = LOSS(self, client, batch)
    client.scratch["last"] = batch.outputs.detach().cpu()
    return loss


def _drawing(self: Algorithm, client: Client, batch: Batch) -> Tensor:
    noise = torch.rand((), generator=client.generator("noise"), device=client.device)
    return LOSS(self, client, batch) + 0 * noise


def _mixing(self: Algorithm, client: Client, batch: Batch) -> Tensor:
    return LOSS(self, client, batch) + (batch.outputs.sum(1) * torch.zeros(len(batch.x))).sum()


def _keeping(self: Classification, outputs: Tensor, targets: Tensor) -> Mapping[str, Any]:
    return {"correct": (outputs.argmax(1) == targets).numpy()}


def _loss(mistake: Callable[..., Tensor]) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: patch.object(Algorithm, "loss", mistake)


MUTATIONS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "": nullcontext,
    "item": _loss(_asking),
    "to the host": _loss(_leaving),
    "generator": _loss(_drawing),
    "mixing": _loss(_mixing),
    "numpy": lambda: patch.object(Classification, "predictions", _keeping),
}
"""Mistakes made on purpose, by name, each of which the pretend accelerator must find."""


class Costs:
    """What training steps and tasks cost on the accelerator: the most of each.

    A step lasts from taking its batch to the next; the first of each epoch's prepares more, and
    counts for its turn alone.
    """

    def __init__(self, counts: Counts) -> None:
        self.counts = counts
        self.kernels: Counter[str] = Counter()
        self.step_waits: Counter[str] = Counter()
        self.turn_waits: Counter[str] = Counter()
        self.steps = 0

    def step(self, before: tuple[int, Counter[str]], tag: str) -> None:
        """Take in a step."""
        kernels, waits = self.counts.state()
        self.steps += 1
        self.kernels[tag] = max(self.kernels[tag], kernels - before[0])
        self.step_waits |= waits - before[1]

    def turn(self, before: tuple[int, Counter[str]]) -> None:
        """Take in a turn; not of the first round, in which a process makes its networks."""
        spent = self.counts.state()[1] - before[1]
        if spent.total() > self.turn_waits.total():
            self.turn_waits = spent


@contextmanager
def watched(counts: Counts) -> Iterator[Costs]:
    """Count by step and by turn."""
    costs = Costs(counts)
    run_phase, run_turn = Client.run, ClientRunner.run

    def phase(self: Client, *arguments: Any, **named: Any) -> Iterator[Any]:
        tag = arguments[0].tag
        batches = run_phase(self, *arguments, **named)
        before, last = counts.state(), -1
        for batch, optimizer in batches:
            yield batch, optimizer
            if batch.epoch == last:
                costs.step(before, tag)
            last = batch.epoch
            before = counts.state()

    def turn(self: ClientRunner, job: Any, *arguments: Any, **named: Any) -> Any:
        before = counts.state()
        try:
            return run_turn(self, job, *arguments, **named)
        finally:
            if job.client_task.kind == "stage" and job.client_task.round:
                costs.turn(before)

    Client.run, ClientRunner.run = phase, turn  # type: ignore[method-assign]
    try:
        yield costs
    finally:
        Client.run, ClientRunner.run = run_phase, run_turn  # type: ignore[method-assign]


def run(spec: FederationSpec, device: torch.device, server: torch.device, case: Case) -> Any:
    """Run a federation; return the digest of what it learnt, and what it measured."""
    executor = InlineExecutor(spec, device)
    federation = Federation(spec, executor, lambda line: None, server)
    try:
        measured = [steady(federation.step().metrics) for _ in range(spec.config.rounds)]
        if case["diagnostics"]:
            found = federation.diagnostics(True)
            measured.append({name: value.tolist() for name, value in found.items()})  # type: ignore[misc]
        return federation.sha256(), measured
    finally:
        federation.close()


def room(spec: FederationSpec, case: Case) -> float:
    """Return how much memory the accelerator has, for the samples to lie as a case says."""
    total = spec.data.x.nbytes + spec.data.y.nbytes
    return {"whole": 1000.0, "own": 5.0, "batch": 0.0}[case["samples"]] * total


def run_case(case: Case) -> dict[str, Any]:
    """Return what became of a case."""
    began = time.perf_counter()
    found: dict[str, Any] = {"name": case["name"], "error": ""}
    spec = built(case["experiment"])
    found["cpu"], measured = run(spec, CPU, CPU, case)
    try:
        with (
            patch("flray.devices.capacity", lambda device, share=1.0: room(spec, case)),
            pretending() as counts,
            MUTATIONS[case["mutation"]](),
            watched(counts) as costs,
        ):
            server = DEVICE if case["server"] == "accel" else CPU
            found["accel"], here = run(spec, DEVICE, server, case)
        found["measured"] = repr(here) == repr(measured)
        found["images"], found["sent"] = counts.images, counts.sent
        found["kernels"], found["steps"] = dict(costs.kernels), costs.steps
        found["step_waits"], found["turn_waits"] = dict(costs.step_waits), dict(costs.turn_waits)
    except Exception as error:
        found["error"] = f"{type(error).__name__}: {error}"
        found["trace"] = traceback.format_exc()
    return {**found, "seconds": time.perf_counter() - began}


def main(record: bool) -> None:
    """Run what comes in, or record how many kernels a step of each case starts."""
    torch.set_num_threads(1)
    if record:
        kernels = {case["name"]: run_case(case)["kernels"] for case in [*covering(), *tasks()]}
        text = json.dumps(kernels, indent=1, sort_keys=True)
        Path(__file__).with_name("kernels.json").write_text(text + "\n")
        return
    for one in json.load(sys.stdin):
        print(json.dumps(run_case(one)), flush=True)


if __name__ == "__main__":
    main("record" in sys.argv)
