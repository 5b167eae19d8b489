"""Federated averaging as a bare PyTorch loop: what an engine can at best be as fast as."""

import multiprocessing
import time
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from flray import models

Weights = dict[str, Tensor]
SHAPE, CLASSES = (3, 32, 32), 10


def work(options: Any, /, **more: Any) -> dict[str, Any]:
    """Return what a bare loop is given for a benchmark's options."""
    return {**vars(options), "channels_last": True, **more}


def samples(count: int, client: int) -> tuple[Tensor, Tensor]:
    """Return images like flray's random ones."""
    generator = torch.Generator().manual_seed(client)
    x = torch.randn(count, *SHAPE, generator=generator)
    return x, torch.randint(CLASSES, (count,), generator=generator)


def average(replies: list[Weights]) -> Weights:
    return {
        name: torch.stack([r[name] for r in replies]).mean(0)
        if replies[0][name].is_floating_point()
        else replies[0][name]
        for name in replies[0]
    }


class OneProcess:
    """All clients of a round one after another in this process, their samples resident."""

    def __init__(self, spec: dict[str, Any], device: torch.device | str = "cpu") -> None:
        torch.manual_seed(0)
        self.spec = spec
        self.model = models.build(spec["model"], SHAPE, CLASSES, spec.get("options", {}), 0)
        spatial = any(value.dim() == 4 for value in self.model.parameters())  # or slower so
        last = spec["channels_last"] and spatial
        layout = torch.channels_last if last else torch.contiguous_format
        self.model.to(device, memory_format=layout)  # type: ignore[call-overload]
        every = (samples(spec["samples"], client) for client in range(spec["clients"]))
        self.data = [(x.to(device, memory_format=layout), y.to(device)) for x, y in every]
        self.weights: Weights = {n: v.cpu().clone() for n, v in self.model.state_dict().items()}
        self.round_number, self.seconds = 0, list[float]()

    def outputs(self, x: Tensor) -> Tensor:
        found: Tensor = self.model(x)
        return found

    def train(self, weights: Weights, client: int) -> Weights:
        """Train from weights and return the new ones on the CPU."""
        self.model.load_state_dict(weights)
        self.model.train()
        optimizer = torch.optim.SGD(self.model.parameters(), lr=self.spec["lr"])
        x, y = self.data[client]
        for rows in torch.randperm(len(y)).to(y.device).split(self.spec["batch"]):
            optimizer.zero_grad(set_to_none=True)
            F.cross_entropy(self.outputs(x[rows]), y[rows]).backward()
            optimizer.step()
        return {name: value.cpu().clone() for name, value in self.model.state_dict().items()}

    def trained(self, cohort: list[int]) -> list[Weights]:
        """Return what the clients of a round send back."""
        return [self.train(self.weights, client) for client in cohort]

    def round(self) -> float:
        """Run a round, and return its seconds."""
        started = time.perf_counter()
        order = np.random.default_rng(self.round_number).permutation(self.spec["clients"])
        self.weights = average(self.trained(order[: self.spec["cohort"]].tolist()))
        self.round_number += 1
        self.seconds.append(time.perf_counter() - started)
        return self.seconds[-1]


def _serve(connection: Connection, spec: dict[str, Any]) -> None:
    torch.set_num_threads(1)
    worker = OneProcess(spec)
    connection.send("ready")
    while (order := connection.recv()) is not None:
        weights, cohort = order
        tensors = {n: torch.from_numpy(v) for n, v in weights.items()}
        replies = [worker.train(tensors, client) for client in cohort]
        connection.send([{n: v.numpy() for n, v in reply.items()} for reply in replies])


class SeveralProcesses(OneProcess):
    """The clients of a round dealt out to resident processes of one thread each; weights travel through pipes."""

    def __init__(self, spec: dict[str, Any], processes: int) -> None:
        super().__init__({**spec, "samples": 1})  # the others have the samples
        self.processes, self.pipes = [], []
        context = multiprocessing.get_context("spawn")
        for _ in range(processes):
            here, there = context.Pipe()
            process = context.Process(target=_serve, args=(there, spec), daemon=True)
            process.start()
            self.processes.append(process)
            self.pipes.append(here)
        for pipe in self.pipes:
            pipe.recv()

    def trained(self, cohort: list[int]) -> list[Weights]:
        weights = {n: v.numpy() for n, v in self.weights.items()}
        for i, pipe in enumerate(self.pipes):
            pipe.send((weights, cohort[i :: len(self.pipes)]))
        replies = [reply for pipe in self.pipes for reply in pipe.recv()]
        return [{n: torch.from_numpy(v) for n, v in reply.items()} for reply in replies]

    def close(self) -> None:
        for pipe, process in zip(self.pipes, self.processes, strict=True):
            pipe.send(None)
            process.join(10)


def train_trials(spec: dict[str, Any], rounds: int, trials: list[tuple[float, int]]) -> float:
    """Train with learning rates and seeds one after another; return the seconds."""
    torch.set_num_threads(1)
    begun = time.perf_counter()
    for rate, seed in trials:
        torch.manual_seed(seed)
        worker = OneProcess({**spec, "lr": rate})
        for _ in range(rounds):
            worker.round()
    return time.perf_counter() - begun
