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


SIZES = {
    "linear": (3072, 10),
    "mlp": (3072, 200, 200, 10),
    "lenet": (400, 120, 84, 10),
    "simple-cnn": (400, 120, 84, 84, 256, 10),
}
"""Of the fully connected layers; the last two networks have LeNet's convolutions before them."""


def network(name: str) -> nn.Module:
    """Return a network like flray's of this name."""
    torch.manual_seed(0)
    sizes, layers = SIZES[name], list[nn.Module]()
    for channels in ((3, 6), (6, 16)) if sizes[0] == 400 else ():
        layers += nn.Conv2d(*channels, 5), nn.ReLU(), nn.MaxPool2d(2)
    layers.append(nn.Flatten())
    for inputs, outputs in itertools.pairwise(sizes):
        layers += nn.Linear(inputs, outputs), nn.Identity() if outputs in (10, 256) else nn.ReLU()
    return nn.Sequential(*layers)


@functools.cache
def resident(client: int, count: int) -> tuple[Tensor, Tensor]:
    """Return a client's samples, made once per process."""
    generator = torch.Generator().manual_seed(client)
    x = torch.randn(count, 3, 32, 32, generator=generator)
    return x, torch.randint(10, (count,), generator=generator)


def train(model: nn.Module, x: Tensor, y: Tensor, batch: int) -> None:
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for rows in torch.randperm(len(y)).split(batch):
        optimizer.zero_grad(set_to_none=True)
        F.cross_entropy(model(x[rows]), y[rows]).backward()
        optimizer.step()


def report(marks: list[float], spec: dict[str, Any]) -> None:
    """Print the median time between two rounds' ends, the warm-up left out."""
    gaps = [after - before for before, after in itertools.pairwise(marks)]
    if len(gaps) != spec["rounds"]:
        raise SystemExit(f"{len(marks)} rounds ended, expected {spec['rounds'] + 1}")
    gaps = gaps[spec["warmup"] :]
    print(json.dumps({"median": statistics.median(gaps)}))
