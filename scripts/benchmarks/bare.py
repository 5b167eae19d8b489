"""Federated averaging as a bare PyTorch loop: what an engine can at best be as fast as."""

import multiprocessing
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

Weights = dict[str, Tensor]


def work(options: Any, /, **more: Any) -> dict[str, Any]:
    """Return what a bare loop is given for a benchmark's options: the same images of 3x32x32 as flray's."""
    names = ("model", "clients", "cohort", "samples")
    given = {name: getattr(options, name) for name in names}
    return {**given, "shape": [3, 32, 32], "classes": 10, "channels_last": True, **more}


def build(spec: dict[str, Any]) -> nn.Module:
    from flray import models

    torch.manual_seed(0)
    model = models.build(
        spec["model"], tuple(spec["shape"]), spec["classes"], spec.get("options", {}), 0
    )
    if spec["channels_last"]:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


def train(
    model: nn.Module, weights: Weights, x: Tensor, y: Tensor, batch: int, lr: float, run: Any = None
) -> Weights:
    """Train from weights and return the new ones on the CPU; `run` is another way to compute outputs."""
    model.load_state_dict(weights)
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for rows in torch.randperm(len(y)).to(y.device).split(batch):
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy((run or model)(x[rows]), y[rows]).backward()
        optimizer.step()
    return {name: value.cpu().clone() for name, value in model.state_dict().items()}


def samples(spec: dict[str, Any], client: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(client)
    x = torch.randn(spec["samples"], *spec["shape"], generator=generator)
    y = torch.randint(spec["classes"], (spec["samples"],), generator=generator)
    return (x.to(memory_format=torch.channels_last) if spec["channels_last"] else x), y


def average(replies: list[Weights]) -> Weights:
    return {
        name: torch.stack([r[name] for r in replies]).mean(0)
        if replies[0][name].is_floating_point()
        else replies[0][name]
        for name in replies[0]
    }


def drawn(spec: dict[str, Any], number: int) -> list[int]:
    """Return the clients of a round."""
    order = np.random.default_rng(number).permutation(spec["clients"])
    return [int(client) for client in order[: spec["cohort"]]]


class OneProcess:
    """All clients of a round one after another in this process."""

    def __init__(self, spec: dict[str, Any]) -> None:
        self.spec, self.model = spec, build(spec)
        self.data = {client: samples(spec, client) for client in range(spec["clients"])}
        self.weights: Weights = {n: v.clone() for n, v in self.model.state_dict().items()}
        self.round_number = 0

    def round(self) -> float:
        started = time.perf_counter()
        cohort = drawn(self.spec, self.round_number)
        replies = [
            train(self.model, self.weights, *self.data[c], self.spec["batch"], self.spec["lr"])
            for c in cohort
        ]
        self.weights = average(replies)
        self.round_number += 1
        return time.perf_counter() - started


def _serve(connection: Connection, spec: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    worker = OneProcess(spec)
    connection.send("ready")
    while (order := connection.recv()) is not None:
        weights, cohort = order
        tensors = {n: torch.from_numpy(v) for n, v in weights.items()}
        replies = [
            train(worker.model, tensors, *worker.data[c], spec["batch"], spec["lr"]) for c in cohort
        ]
        connection.send([{n: v.numpy() for n, v in reply.items()} for reply in replies])


class SeveralProcesses:
    """The clients of a round dealt out to resident processes of one thread each; weights travel through pipes."""

    def __init__(self, spec: dict[str, Any], processes: int) -> None:
        self.spec, self.processes, self.pipes = spec, [], []
        context = multiprocessing.get_context("spawn")
        for _ in range(processes):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, spec), daemon=True)
            process.start()
            self.processes.append(process)
            self.pipes.append(here)
        for pipe in self.pipes:
            pipe.recv()
        self.weights = {n: v.numpy().copy() for n, v in build(spec).state_dict().items()}
        self.round_number = 0

    def round(self) -> float:
        started = time.perf_counter()
        cohort = drawn(self.spec, self.round_number)
        for i, pipe in enumerate(self.pipes):
            pipe.send((self.weights, cohort[i :: len(self.pipes)]))
        replies = [reply for pipe in self.pipes for reply in pipe.recv()]
        mean = average([{n: torch.from_numpy(v) for n, v in reply.items()} for reply in replies])
        self.weights = {n: v.numpy() for n, v in mean.items()}
        self.round_number += 1
        return time.perf_counter() - started

    def close(self) -> None:
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            pipe.send(None)
            process.join(10)


def train_trials(spec: dict[str, Any], rounds: int, trials: list[tuple[float, int]]) -> None:
    """Train with learning rates and seeds one after another; print the seconds."""
    torch.set_num_threads(1)
    begun = time.perf_counter()
    for rate, seed in trials:
        torch.manual_seed(seed)
        worker = OneProcess({**spec, "lr": rate})
        for _ in range(rounds):
            worker.round()
    print(time.perf_counter() - begun)
