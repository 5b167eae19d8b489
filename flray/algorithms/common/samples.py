"""The parts of a task: batches, samples and their order, and the resident model of its process."""

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import TypeAlias

import torch
from torch import Tensor, nn

from flray import devices, trees
from flray.algorithms.types import Phase
from flray.models import batch_norm_modules, in_place_of_forward, is_its_parts, select
from flray.tasks.base import Task
from flray.tasks.classification import FewShot

Gather: TypeAlias = Callable[[Tensor], Tensor]
TrainingPlan: TypeAlias = tuple[list[nn.Parameter], list[nn.Parameter], list[nn.Module]]


@dataclass(eq=False, repr=False)
class Batch:
    """One batch with the outputs of the client's model, computed when first asked for.

    Attributes
    ----------
    model : nn.Module
        The client's model.
    x : Tensor [B, ...]
        Normalised inputs.
    y : Tensor of int64 [B] or of uint8 [B, K, H, W]
        Labels, or for segmentation masks.
    step : int
        Number of the step within the phase, from 0.
    phase : Phase
        The phase it belongs to.
    last_epoch : bool
        Whether it belongs to the last epoch of the phase.
    epoch : int
        Number of the epoch within the phase, from 0.
    """

    model: nn.Module
    x: Tensor
    y: Tensor
    step: int
    phase: Phase
    last_epoch: bool = True
    epoch: int = 0

    @cached_property
    def features(self) -> Tensor:
        """Penultimate features [B, d] of the client's model (the model must be split)."""
        features: Tensor = self.model.features(self.x)  # type: ignore[operator]
        return features

    @cached_property
    def outputs(self) -> Tensor:
        """Outputs of the client's model, for classification the logits [B, C]."""
        if "features" in vars(self) or is_its_parts(
            self.model
        ):  # a method that needs the split has it checked
            split: Tensor = self.model.classifier(self.features)  # type: ignore[operator]
            return split
        body = getattr(self.model, "features", None)
        with (
            in_place_of_forward(body, self._record)
            if isinstance(body, nn.Module)
            else nullcontext()
        ):
            outputs: Tensor = self.model(self.x)
        return outputs

    def _record(self, forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
        self.features = forward(x)
        return self.features


class Samples:
    """Rows of the federation's data that belong to one client or to the public set.

    Parameters
    ----------
    x, y : Tensor
        All samples of the federation; uint8 images or float features.
    rows : Tensor of int64
        Which of them; where `x` and `y` are.
    prepare : callable
        Normalises a batch of raw samples.
    disturb : callable, optional
        Adds the data of their rows to a batch of normalised samples.
    normalisation : two Tensors, optional
        Mean and standard deviation that pixels in [0, 1] are normalised with.
    device : torch.device, optional
        Where batches are needed. If the samples are elsewhere, each batch is gathered there and
        sent without waiting. Default: where the samples are.
    together : bool
        Whether all are gathered and sent instead, as soon as one is needed.
    few : bool
        Whether all are prepared as soon as one is needed: each batch of a small client would
        otherwise pay for a handful of small operations.
    """

    def __init__(
        self,
        x: Tensor,
        y: Tensor | None,
        rows: Tensor,
        prepare: Callable[[Tensor], Tensor],
        disturb: Callable[[Tensor, Tensor], Tensor] | None = None,
        normalisation: tuple[Tensor, Tensor] | None = None,
        device: torch.device | None = None,
        together: bool = False,
        few: bool = False,
    ) -> None:
        self.few = few
        self._x, self._y, self._rows, self._prepare, self._disturb = x, y, rows, prepare, disturb
        self.normalisation, self._together = normalisation, together
        self._device = device or x.device

    def __len__(self) -> int:
        return self._rows.numel()

    @property
    def rows(self) -> Tensor:
        """Which of the federation's samples they are, int64 [n], where positions are looked up."""
        return self._held[2]

    @property
    def labels(self) -> Tensor:
        """Labels of all samples, int64 [n]; for segmentation masks, uint8 [n, K, H, W]."""
        _, y, rows = self._held
        if y is None:
            raise ValueError("these samples have no labels")
        return y if self._together else self._sent(y[rows])

    def take(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Return normalised inputs and labels at positions within these samples; unlabelled samples have label -1."""
        if self._ready is not None:
            inputs, strides, labels = self._ready
            x = inputs(positions)
            if x.stride() == strides:
                return x, labels(positions)
        all_x, all_y, rows = self._held
        positions = devices.to_device(positions, rows.device)
        places = self._places(positions)
        x = self._prepare(self._sent(_gather_from(all_x)(places)))
        if self._disturb is not None:
            x = self._disturb(x, self._sent(rows[positions] if self._together else places))
        if all_y is None:
            return x, torch.full((len(positions),), -1, device=self._device)
        return x, self._sent(_gather_from(all_y)(places))

    def relabelled_by_index(self, positions: Tensor) -> "Samples":
        """Return the samples at some positions, each labelled with its number among these."""
        x, _, rows = self._held
        places = self._places(devices.to_device(positions, rows.device))
        numbers = torch.full((len(x),), -1, device=places.device)
        numbers[places] = torch.arange(len(places), device=places.device)
        return Samples(x, numbers, places, self._prepare, device=self._device)

    def in_order(self, batch_size: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield all samples in their stored order, in batches."""
        for positions in torch.arange(len(self), device=self.rows.device).split(batch_size):
            yield self.take(positions)

    @cached_property
    def _ready(self) -> tuple[Gather, tuple[int, ...], Gather] | None:
        """Few samples as batches have them, their strides, and their labels."""
        if not self.few or self._y is None or self._disturb is not None:
            return None
        prepared = self._prepare(_gather_from(self._x)(self._rows))
        labels = _gather_from(self._y)(self._rows)
        return _gather_from(prepared), prepared.stride(), _gather_from(labels)

    @cached_property
    def _held(self) -> tuple[Tensor, Tensor | None, Tensor]:
        """Samples, labels and rows, of the federation or of these alone."""
        if not self._together:
            return self._x, self._y, self._rows
        y = None if self._y is None else self._sent(self._y[self._rows])
        return self._sent(self._x[self._rows]), y, self._sent(self._rows)

    def _places(self, positions: Tensor) -> Tensor:
        """Return the rows of the stored arrays that hold the samples at some positions."""
        return positions if self._together else self._held[2][positions]

    def _sent(self, part: Tensor) -> Tensor:
        return devices.to_device(part, self._device)


def _gather_from(values: Tensor) -> Gather:
    """Return the function of places that gives their values; samples in one piece are copied each at once."""
    channels_last = values.dim() == 4 and values.stride(1) == 1
    lying = values.permute(0, 2, 3, 1) if channels_last else values
    if not lying.is_contiguous():
        return values.__getitem__
    if channels_last:
        return lambda places: lying.index_select(0, places).permute(0, 3, 1, 2)
    return lambda places: lying.index_select(0, places)


def mean_over_positions(features: Tensor) -> Tensor:
    """Return features [B, m] or, averaged over positions, feature maps [B, m, ...] as [B, m].

    Features from within a network that computes in bfloat16 become float32, as its outputs do.
    """
    features = features.float() if features.dtype == torch.bfloat16 else features
    return features if features.dim() == 2 else features.flatten(2).mean(2)


def batch_indices(
    samples: Samples,
    task: Task,
    size: int,
    epochs: float | None,
    generator: torch.Generator,
    *,
    steps: int | None = None,
    work: float = 1.0,
    batch_norm: bool = False,
    drop_last: bool = False,
) -> Iterator[tuple[Tensor, int, bool]]:
    """Yield each batch's positions within the samples, its epoch, and whether that epoch is the last one.

    Parameters
    ----------
    samples : Samples
        The samples to pass over.
    task : Task
        Batches of a few-shot task are episodes, whatever the batch size; an epoch's episodes show
        as many samples as there are.
    size : int
        Batch size.
    epochs : float or None
        Passes; None continues until `steps`. A part of a pass is rounded up to whole batches.
    generator : torch.Generator
        Shuffles anew for every epoch.
    steps : int, optional
        Maximal number of batches.
    work : float
        Share of the batches to do; below 1 for stragglers, above 1 for a client with more epochs.
    batch_norm : bool
        Whether the model has batch norm, which has no variance for a single sample. All methods
        therefore skip a last batch of one sample. A client of one sample keeps its only batch,
        because batch norm of images can take it (networks that cannot are refused before round 0).
    drop_last : bool
        Whether to skip a last batch of fewer samples, unless it is the only batch.
    """
    count, few_shot = len(samples), task if isinstance(task, FewShot) else None
    per_epoch = (
        batches_per_epoch(count, size, batch_norm, drop_last)
        if few_shot is None
        else few_shot.episodes_per_epoch(samples.labels)
    )
    if not per_epoch:
        return
    left = math.ceil(number_of_steps(per_epoch, epochs, steps) * work)
    last = -(-left // per_epoch) - 1
    for epoch in range(last + 1):
        batches = (
            devices.to_device(
                torch.randperm(count, generator=generator), samples.rows.device
            ).split(size)
            if few_shot is None
            else few_shot.batches(samples.labels, generator)
        )
        for batch in islice(batches, per_epoch):
            if left == 0:
                return
            left -= 1
            yield batch, epoch, epoch == last


def batches_per_epoch(
    count: int, size: int, batch_norm: bool = False, drop_last: bool = False
) -> int:
    """Return the number of batches of so many samples; the arguments are those of `batch_indices`."""
    if drop_last and count >= size:
        return count // size
    return -(-count // size) - int(batch_norm and count > 1 and count % size == 1)


def number_of_steps(per_epoch: int, epochs: float | None, steps: int | None) -> float:
    """Return the steps of so many passes, at most `steps`; infinite if neither says."""
    # Rounded first: 0.1 * 30 is a little more than 3.
    most = math.inf if epochs is None else math.ceil(round(epochs * per_epoch, 9))
    return min(most, math.inf if steps is None else steps)


class ResidentModel:
    """One architecture's model in one process, with facts about it; every task sets all of its values.

    Parameters
    ----------
    model : nn.Module
        Freshly initialised; its values at this moment are the initial ones of every client and the
        server.
    shared : str
        Group that travels.
    local_buffers : bool
        Whether floating buffers are taken out of the shared group.
    """

    def __init__(self, model: nn.Module, shared: str, local_buffers: bool) -> None:
        self.model = model
        self.modules = list(model.modules())
        self.entries: dict[str, Tensor] = dict(model.state_dict(keep_vars=True))
        self.parameters: dict[str, nn.Parameter] = {
            name: value for name, value in model.named_parameters() if value.requires_grad
        }
        self.initial: dict[str, Tensor] = trees.clone(self.entries)
        names = select(model, shared)
        if local_buffers:
            names = frozenset(n for n in names if isinstance(self.entries[n], nn.Parameter))
        self.shared = frozenset(names)
        self.personal = frozenset(self.entries.keys() - names)
        self.batch_norm = bool(select(model, "batch_norm"))
        self.random = any(
            isinstance(m, nn.modules.dropout._DropoutNd) or "stochastic" in type(m).__name__.lower()
            for m in model.modules()
        )
        self.frozen_copies: dict[str, nn.Module] = {}
        self._plans: dict[str, TrainingPlan] = {}

    def plan(self, group: str) -> TrainingPlan:
        """Return the parameters that a phase trains, those it freezes, and the batch norms whose statistics it freezes.

        They are looked up once for each `group`, see `flray.models.select`.
        """
        if group not in self._plans:
            chosen = select(self.model, group)
            self._plans[group] = (
                [p for n, p in self.parameters.items() if n in chosen],
                [p for n, p in self.parameters.items() if n not in chosen],
                [
                    norm
                    for name, norm in batch_norm_modules(self.model)
                    if not any(f"{name}.{entry}" in chosen for entry in norm.state_dict())
                ],
            )
        return self._plans[group]

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Copy values into the model, in place; see `flray.trees.copy_into`."""
        trees.copy_into(self.entries, weights)

    def frozen(self, role: str) -> nn.Module:
        """Return a second model of the same architecture for reference values (one per role, reused)."""
        if role not in self.frozen_copies:
            self.frozen_copies[role] = copy.deepcopy(self.model).requires_grad_(False)
        return self.frozen_copies[role].eval()
