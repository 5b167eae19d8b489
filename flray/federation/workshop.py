"""What a process works with: the experiment's networks and samples on one device, in the experiment's precision."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from flray import keys
from flray.algorithms.bench import Bench
from flray.algorithms.samples import Samples
from flray.config import Experiment
from flray.data.noise import sample_noise
from flray.federation.world import World
from flray.models import faster


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
        if images:
            # One number for every place of a sample: multiplying by one per channel takes ten times as long.
            self._scale, self._shift = (values.expand(1, *data.shape).contiguous(memory_format=self._format)
                                        for values in (self._scale, self._shift))
        self._normalisation = (mean.to(device, self._dtype), std.to(device, self._dtype))
        self._noise = torch.from_numpy(data.noise).to(device, self._dtype) if data.noise is not None else None
        self._noise_key = keys.key(world.config.seed, "data", extra="noise")

    def bench(self, architecture: str) -> Bench:
        """Return this process's model of an architecture."""
        if architecture not in self._benches:
            model = self.world.build(architecture).to(self.device)
            model = model.to(memory_format=self._format)  # type: ignore[call-overload]
            local = self.world.config.local
            if local.precision == "bfloat16":
                faster.in_bfloat16(model)
            if local.compile:
                faster.compiled(model, local.batch_size, mode="default" if local.compile is True else local.compile)
            buffers_local = self.world.config.aggregation.buffers == "local"
            self._benches[architecture] = Bench(model, self.world.algorithm.shared, buffers_local)
        return self._benches[architecture]

    def networks(self) -> dict[str, int]:
        """Return how many instances of each architecture there are here: the trained one and its frozen twins."""
        return {architecture: 1 + len(bench.twins) for architecture, bench in self._benches.items()}

    def samples(self, rows: Any) -> Samples:
        """Return rows of the federation's samples."""
        x, y = self._labelled
        disturb = self._noisy if self._noise is not None else None
        return Samples(x, y, torch.from_numpy(rows).to(self.device), self._prepare, disturb, self._normalisation)

    @cached_property
    def public(self) -> Samples | None:
        """The public samples; None where there are none."""
        data = self.world.data
        return None if data.public is None else self.public_samples(np.arange(len(data.public)))

    def public_samples(self, rows: Any) -> Samples:
        """Return rows of the public samples."""
        return Samples(self._unlabelled, None, torch.from_numpy(rows).to(self.device), self._prepare,
                       normalisation=self._normalisation)

    @cached_property
    def _unlabelled(self) -> Tensor:
        return torch.from_numpy(self.world.data.public).to(self.device)

    @cached_property
    def _labelled(self) -> tuple[Tensor, Tensor]:
        data = self.world.data
        return torch.from_numpy(data.x).to(self.device), torch.from_numpy(data.y).to(self.device)

    def _prepare(self, raw: Tensor) -> Tensor:
        layout = self._format if raw.dim() == 4 else torch.contiguous_format
        if raw.dtype != torch.uint8:
            return raw.to(dtype=self._dtype, memory_format=layout)
        scale, shift = self._scale, self._shift
        if raw.dim() == 4 and raw.shape[2:] != scale.shape[2:]:
            scale, shift = scale[..., :1, :1], shift[..., :1, :1]
        return raw.to(dtype=self._dtype, memory_format=layout).mul_(scale).add_(shift)

    def _noisy(self, x: Tensor, rows: Tensor) -> Tensor:
        assert self._noise is not None
        noise = sample_noise(rows, x[0].numel(), self._noise_key).to(x.dtype) * self._noise[rows, None]
        return x + noise.view(x.shape).to(memory_format=self._format if x.dim() == 4 else torch.contiguous_format)
