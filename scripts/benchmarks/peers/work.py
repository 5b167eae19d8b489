"""The work that all peers do, in plain PyTorch: their environments have neither flray nor its pins."""

import functools
import itertools
import json
import statistics
import sys
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def specification() -> dict[str, Any]:
    """Return the options of scripts/benchmarks/round.py, its rounds with those of warm-up."""
    spec: dict[str, Any] = json.loads(sys.argv[1])
    return spec


def lenet() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(3, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Flatten(), nn.Linear(400, 120), nn.ReLU()),
        *(nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


@functools.cache
def resident(client: int, count: int) -> tuple[Tensor, Tensor]:
    """Return a client's samples, made once per process."""
    generator = torch.Generator().manual_seed(client)
    x = torch.randn(count, 3, 32, 32, generator=generator)
    return x, torch.randint(10, (count,), generator=generator)


def train(model: nn.Module, x: Tensor, y: Tensor) -> None:
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for rows in torch.randperm(len(y)).split(specification()["batch"]):
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()


def report(marks: list[float], warmup: int) -> None:
    """Print the median time between two rounds' ends, the warm-up left out."""
    gaps = [after - before for before, after in itertools.pairwise(marks)][warmup:]
    print(json.dumps({"median": statistics.median(gaps)}))
