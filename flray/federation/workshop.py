"""What a process works with: the experiment's networks and samples on one device, in the experiment's precision."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from flray.algorithms.bench import Bench
from flray.algorithms.samples import Samples
from flray.config import Experiment
from flray.federation.world import World


def default_device(world: World) -> torch.device:
    """Return the GPU where this process has one and the experiment does not do without, else the CPU."""
    wanted = world.config.resources.gpus_per_actor != 0
    return torch.device("cuda:0" if wanted and torch.cuda.is_available() else "cpu")


def threads_of(config: Experiment) -> int:
    """Return the torch threads of every process that trains; their number decides the last bits of a result."""
    return max(1, math.floor(config.resources.cpus_per_actor))


class Workshop:
    """Networks and samples of one process; each is made when first asked for.

    Parameters
    ----------
    world : World
        The experiment.
    device : torch.device
        Where networks and samples lie. Samples are not copied where that is the CPU.
    """

    def __init__(self, world: World, device: torch.device) -> None:
        self.world, self.device = world, device
        self._benches: dict[str, Bench] = {}
        local, data = world.config.local, world.data
        self._dtype = torch.float64 if local.precision == "float64" else torch.float32
        images = len(data.shape) == 3
        self._format = torch.channels_last if images and local.memory_format == "channels_last" \
            else torch.contiguous_format
        means, deviations = (data.mean, data.std) if world.algorithm.normalise else ((0.0,), (1.0,))
        std = torch.tensor(deviations, dtype=torch.float64).view(-1, 1, 1)
        mean = torch.tensor(means, dtype=torch.float64).view(-1, 1, 1)
        self._scale = (1.0 / (255.0 * std)).to(device, self._dtype)
        self._shift = (-mean / std).to(device, self._dtype)

    def bench(self, architecture: str) -> Bench:
        """Return this process's model of an architecture."""
        if architecture not in self._benches:
            model = self.world.build(architecture).to(self.device)
            model = model.to(memory_format=self._format)  # type: ignore[call-overload]
            buffers_local = self.world.config.aggregation.buffers == "local"
            self._benches[architecture] = Bench(model, self.world.algorithm.shared, buffers_local)
        return self._benches[architecture]

    def samples(self, rows: Any) -> Samples:
        """Return rows of the federation's samples."""
        x, y = self._labelled
        return Samples(x, y, torch.from_numpy(rows).to(self.device), self._prepare)

    @cached_property
    def public(self) -> Samples | None:
        """The public samples; None where there are none."""
        if self.world.data.public is None:
            return None
        x = torch.from_numpy(self.world.data.public).to(self.device)
        return Samples(x, None, torch.arange(len(x), device=self.device), self._prepare)

    @cached_property
    def _labelled(self) -> tuple[Tensor, Tensor]:
        data = self.world.data
        return torch.from_numpy(data.x).to(self.device), torch.from_numpy(data.y).to(self.device)

    def _prepare(self, raw: Tensor) -> Tensor:
        layout = self._format if raw.dim() == 4 else torch.contiguous_format
        if raw.dtype != torch.uint8:
            return raw.to(dtype=self._dtype, memory_format=layout)
        return raw.to(dtype=self._dtype, memory_format=layout).mul_(self._scale).add_(self._shift)
