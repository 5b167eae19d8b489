"""One process's networks, samples, test batches and shared features on one device, each made at first use."""

import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from flray import devices, rng
from flray.algorithms.common.samples import ResidentModel, Samples
from flray.config.experiment import Experiment
from flray.data.augment import sample_noise
from flray.data.types import Rows
from flray.federation import FederationSpec
from flray.models import acceleration, in_place_of_forward

SMALL_PART = 0.02
"""Share of a process's part of a GPU up to which it keeps a whole data set there."""

FEW_BYTES = 2**23
"""Prepared samples of a client up to this size are made at the beginning of its task, on a CPU."""

KEPT_BYTES = 2**24
"""So many of these a process keeps from task to task."""

LARGEST_PART = 0.25
"""Share of a process's part of a GPU up to which all samples of a client are there during its task."""


def default_device(spec: FederationSpec) -> torch.device:
    """Return the GPU if this process has one and the experiment uses it, else the CPU."""
    wanted = spec.config.resources.gpus_per_actor != 0
    return torch.device("cuda:0" if wanted and torch.cuda.is_available() else "cpu")


def thread_count(config: Experiment) -> int:
    """Return the torch threads of every process that trains; their number affects the last bits of a result."""
    return max(1, math.floor(config.resources.cpus_per_actor))


class WorkerResources:
    """Networks and samples of one process; each is built on first use.

    Parameters
    ----------
    spec : FederationSpec
        The experiment.
    device : torch.device
        Device of networks and batches. On the CPU samples are not copied. For a GPU, samples stay in
        the memory that a node's processes share. A task copies its client's samples to the GPU, or
        batch by batch if they are too many. A data set that is small beside the GPU stays on it.
    share : float
        This process's share of the device.
    """

    def __init__(self, spec: FederationSpec, device: torch.device, share: float = 1.0) -> None:
        self.spec, self.device = spec, device
        self._capacity = devices.capacity(device, share)
        self._residents: dict[str, ResidentModel] = {}
        self._of_clients: dict[int, tuple[Samples, Samples]] = {}
        self._room = KEPT_BYTES
        self._tests = EvaluationCache(SMALL_PART * self._capacity)
        local, data = spec.config.local, spec.data
        self._dtype = torch.float64 if local.precision == "float64" else torch.float32
        means, deviations = (data.mean, data.std) if spec.algorithm.normalise else ((0.0,), (1.0,))
        std = torch.tensor(deviations, dtype=torch.float64).view(-1, 1, 1)
        mean = torch.tensor(means, dtype=torch.float64).view(-1, 1, 1)
        self._scale = (1.0 / (255.0 * std)).to(device, self._dtype)
        self._shift = (-mean / std).to(device, self._dtype)
        self._normalisation = (mean.to(device, self._dtype), std.to(device, self._dtype))
        self._noise = (
            devices.from_numpy(data.noise).to(device, self._dtype)
            if data.noise is not None
            else None
        )
        self._noise_key = rng.key(spec.config.seed, "data", extra="noise")

    def resident(self, architecture: str) -> ResidentModel:
        """Return this process's model of an architecture."""
        if architecture not in self._residents:
            model = self.spec.build(architecture).to(self.device)
            local = self.spec.config.local
            if len(self.spec.data.shape) == 3 and local.memory_format == "channels_last":
                acceleration.in_channels_last(model)
            if local.precision == "bfloat16":
                acceleration.in_bfloat16(model)
            if local.compile:
                acceleration.compile_model(
                    model,
                    local.batch_size,
                    mode="default" if local.compile is True else local.compile,
                )
            self._residents[architecture] = ResidentModel(
                model, self.spec.algorithm.shared, self.spec.config.aggregation.buffers == "local"
            )
        return self._residents[architecture]

    @contextmanager
    def test_batches(self, rows: Rows, shared: bool) -> Iterator[Iterator[tuple[Tensor, Tensor]]]:
        """Provide the samples of a test in batches.

        Parameters
        ----------
        rows : ndarray of int64
            The samples' rows.
        shared : bool
            Whether other tests may have the same samples and the same body of the network, whose features are then
            kept for them.
        """
        here = [
            (architecture, network)
            for architecture, resident in self._residents.items()
            for network in (resident.model, *resident.frozen_copies.values())
        ]
        with self._tests.sharing(here if shared else []):
            size = self.spec.config.evaluation.batch_size
            yield self._tests.batches(rows, self.samples(rows, once=True), size)

    def samples_of(self, client: int) -> tuple[Samples, Samples]:
        """Return a client's samples for training and validation; those of small clients stay for their next tasks."""
        if client in self._of_clients:
            return self._of_clients[client]
        parts = self.spec.training_rows(client), self.spec.data.everyone[client].val
        found = self.samples(parts[0]), self.samples(parts[1])
        room = self._room - self._prepared_bytes(sum(map(len, parts)))
        if found[0].few and found[1].few and room >= 0:
            self._room, self._of_clients[client] = room, found
        return found

    def _prepared_bytes(self, count: int) -> int:
        """Return the bytes of so many samples as batches have them."""
        return count * math.prod(self._labelled[0].shape[1:]) * self._dtype.itemsize

    def samples(self, rows: Rows, once: bool = False) -> Samples:
        """Return rows of the federation's samples.

        Parameters
        ----------
        rows : ndarray of int64
            The rows to return.
        once : bool
            Whether each row is used once, so that copying batch by batch is soon enough.
        """
        x, y = self._labelled
        here = x.device == self.device
        few = len(rows) * (x[:1].nbytes + y[:1].nbytes) <= LARGEST_PART * self._capacity
        prepared = self._prepared_bytes(len(rows))
        return Samples(
            x,
            y,
            devices.to_device(devices.from_numpy(rows), x.device),
            self._prepare,
            self._noisy if self._noise is not None else None,
            self._normalisation,
            self.device,
            together=few and not (here or once),
            few=prepared <= FEW_BYTES and self.device.type == "cpu" and not once,
        )

    @cached_property
    def public(self) -> Samples | None:
        """The public samples; None if there are none."""
        data = self.spec.data
        return None if data.public is None else self.public_samples(np.arange(len(data.public)))

    def public_samples(self, rows: Rows) -> Samples:
        """Return rows of the public samples."""
        x = self._unlabelled
        return Samples(
            x,
            None,
            devices.to_device(devices.from_numpy(rows), x.device),
            self._prepare,
            normalisation=self._normalisation,
            device=self.device,
        )

    @cached_property
    def _unlabelled(self) -> Tensor:
        public = self.spec.data.public
        assert public is not None, "only asked for where an experiment has public samples"
        return self._kept(devices.from_numpy(public))[0]

    @cached_property
    def _labelled(self) -> tuple[Tensor, Tensor]:
        data = self.spec.data
        x, y = self._kept(devices.from_numpy(data.x), devices.from_numpy(data.y))
        return x, y

    def _kept(self, *arrays: Tensor) -> list[Tensor]:
        """Return whole arrays: on the device if they are small beside it, otherwise in shared memory."""
        small = sum(array.nbytes for array in arrays) <= SMALL_PART * self._capacity
        return [array.to(self.device) if small else array for array in arrays]

    @cached_property
    def _format(self) -> torch.memory_format:
        """Layout of batches of images: networks that begin by flattening them would copy other than torch's."""
        if self.spec.config.local.memory_format == "contiguous":
            return torch.contiguous_format
        flat = all(map(_begins_flat, map(self.resident, self.spec.architectures)))
        return torch.contiguous_format if flat else torch.channels_last

    @cached_property
    def _pixels(self) -> list[Tensor]:
        """Factors and summands of an image's places: one for each channel would take ten times as long."""
        return [
            values.expand(1, *self.spec.data.shape).contiguous(memory_format=self._format)
            for values in (self._scale, self._shift)
        ]

    def _prepare(self, raw: Tensor) -> Tensor:
        layout = self._format if raw.dim() == 4 else torch.contiguous_format
        if raw.dtype != torch.uint8:
            return raw.to(dtype=self._dtype, memory_format=layout)
        scale, shift = self._pixels if raw.dim() == 4 else (self._scale, self._shift)
        if raw.dim() == 4 and raw.shape[2:] != scale.shape[2:]:
            scale, shift = scale[..., :1, :1], shift[..., :1, :1]
        return raw.to(dtype=self._dtype, memory_format=layout).mul_(scale).add_(shift)

    def _noisy(self, x: Tensor, rows: Tensor) -> Tensor:
        assert self._noise is not None
        noise = (
            sample_noise(rows, x[0].numel(), self._noise_key).to(x.dtype) * self._noise[rows, None]
        )
        return x + noise.view(x.shape).to(
            memory_format=self._format if x.dim() == 4 else torch.contiguous_format
        )


def _begins_flat(resident: ResidentModel) -> bool:
    """Return whether a network's first layer is `nn.Flatten`."""
    return isinstance(next(m for m in resident.modules if not [*m.children()]), nn.Flatten)


CACHE_BYTES = 64 * 2**20
"""The most that a process keeps of batches, and of features."""
BODIES = 2
"""Of so many bodies: a client may be tested by two networks in turn."""
_BITS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class _Body:
    """The values of a network's body, and the features that it gives for batches, by the batches' rows."""

    def __init__(self, architecture: str, part: nn.Module) -> None:
        self._architecture = architecture
        self._values = [value.clone() for value in _values(part)]
        self.bytes = sum(value.nbytes for value in self._values)
        self.features: dict[bytes, tuple[Tensor, int]] = {}

    def is_of(self, architecture: str, part: nn.Module) -> bool:
        """Tell whether a network's body has the same bits."""
        other = _values(part)
        return (architecture, len(other)) == (self._architecture, len(self._values)) and all(
            mine.dtype == its.dtype and torch.equal(_bits(mine), _bits(its))
            for mine, its in zip(self._values, other, strict=True)
        )


class EvaluationCache:
    """Batches and features that the next test in this process may need again.

    Parameters
    ----------
    limit : float
        Bytes to keep of either.
    """

    def __init__(self, limit: float = CACHE_BYTES) -> None:
        self._limit = self._room = min(CACHE_BYTES, limit)
        self._inputs: dict[bytes, tuple[Tensor, Tensor]] = {}
        self._bodies: list[_Body] = []
        self._batch: tuple[bytes, Tensor] | None = None

    def batches(self, rows: Rows, samples: Samples, size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield samples in their order, in batches; one that its user writes to is made anew the next time."""
        device = samples.rows.device
        for start in range(0, max(1, len(rows)), size):  # no samples: one batch, of none
            key = rows[start : start + size].tobytes()
            known = self._inputs.pop(key, None)
            stop = min(start + size, len(rows))
            x, y = known or samples.take(torch.arange(start, stop, device=device))
            version, self._batch = x._version, (key, x)
            yield x, y
            self._batch = None
            if x._version == version and (known or x.nbytes <= self._room):
                self._inputs[key] = x, y
                self._room -= 0 if known else x.nbytes

    @contextmanager
    def sharing(self, networks: Iterable[tuple[str, nn.Module]]) -> Iterator[None]:
        """Compute the features of a batch once for all networks of one architecture whose bodies have the same bits.

        Only bodies whose values are all that they are: in eval mode, and observed by no hook.
        """
        with ExitStack() as stack:
            for architecture, network in networks:
                body = getattr(network, "features", None)
                if isinstance(body, nn.Module) and not any(
                    inner.training or inner._forward_hooks for inner in body.modules()
                ):
                    call = partial(self._features, architecture, body)
                    stack.enter_context(in_place_of_forward(body, call))
            yield

    def _features(
        self, architecture: str, part: nn.Module, plain: Callable[[Tensor], Any], x: Tensor
    ) -> Any:
        if self._batch is None or x is not self._batch[1]:
            return plain(x)
        body = next((one for one in self._bodies if one.is_of(architecture, part)), None)
        body = body or _Body(architecture, part)
        self._bodies = [body, *(one for one in self._bodies if one is not body)][:BODIES]
        features, version = body.features.get(self._batch[0], (None, 0))
        if features is None or features._version != version:
            features = plain(x)
            if isinstance(features, Tensor) and body.bytes + features.nbytes <= self._limit:
                body.bytes += features.nbytes
                body.features[self._batch[0]] = features, features._version
        return features


def _values(part: nn.Module) -> list[Tensor]:
    return [*part.parameters(), *part.buffers()]


def _bits(values: Tensor) -> Tensor:
    plain = torch.view_as_real(values) if values.is_complex() else values
    return plain.detach().view(_BITS[plain.element_size()])
