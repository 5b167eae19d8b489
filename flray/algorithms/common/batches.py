"""In which batches a client sees its samples."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import islice

import torch
from torch import Tensor

from flray.algorithms.common.samples import Samples
from flray.devices import transfers
from flray.tasks.base import Task
from flray.tasks.few_shot import FewShot


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
        Share of the batches to do; below 1 for stragglers.
    batch_norm : bool
        Whether the model has batch norm, which has no variance for a single sample. All methods
        therefore skip a last batch of one sample. A client of one sample keeps its only batch,
        because batch norm of images can take it (networks that cannot are refused before round 0).
    drop_last : bool
        Whether to skip a last batch of fewer samples, unless it is the only batch.
    """
    count, few_shot = len(samples), task if isinstance(task, FewShot) else None
    single = batch_norm and count > 1 and count % size == 1
    per_epoch = (
        few_shot.episodes_per_epoch(samples.labels)
        if few_shot is not None
        else count // size
        if drop_last and count >= size
        else -(-count // size) - int(single)
    )
    if not per_epoch:
        return
    # Rounded first: 0.1 * 30 is a little more than 3.
    most = math.inf if epochs is None else math.ceil(round(epochs * per_epoch, 9))
    left = math.ceil(min(most, math.inf if steps is None else steps) * work)
    last = -(-left // per_epoch) - 1
    for epoch in range(last + 1):
        batches = (
            transfers.to_device(
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
