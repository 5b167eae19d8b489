"""Tasks: which loss is minimised and which numbers describe how well it is done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from flray.errors import FlrayError

Evidence = dict[str, NDArray[Any]]


class Task(Protocol):
    """Loss and metrics of one kind of learning problem."""

    name: str
    metric: str

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the scalar training loss (batch mean)."""

    def evidence(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return, per sample, what the metrics are computed from; each tensor [B]."""

    def summarise(self, evidence: Mapping[str, NDArray[Any]]) -> dict[str, float]:
        """Return the metrics of a set of samples."""


class Classification:
    """Cross-entropy; accuracy in [0, 1] and mean loss."""

    name = "classification"
    metric = "accuracy"

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of logits [B, C] and labels [B]."""
        return F.cross_entropy(outputs, targets)

    def evidence(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return per sample whether the largest logit is the label's, and the cross-entropy."""
        loss = F.cross_entropy(outputs, targets, reduction="none")
        return {"correct": outputs.argmax(1) == targets, "loss": loss.to(torch.float64)}

    def summarise(self, evidence: Mapping[str, NDArray[Any]]) -> dict[str, float]:
        """Return accuracy and mean loss; NaN for no samples."""
        correct, loss = evidence["correct"], evidence["loss"]
        if not len(correct):
            return {"accuracy": float("nan"), "loss": float("nan")}
        return {"accuracy": float(np.count_nonzero(correct)) / len(correct), "loss": float(loss.sum()) / len(loss)}


TASKS: dict[str, Task] = {task.name: task for task in (Classification(),)}


def task(name: str) -> Task:
    """Return the task called `name`.

    Raises
    ------
    FlrayError
        If there is none.
    """
    if name not in TASKS:
        raise FlrayError(f"unknown task {name!r}; one of {', '.join(TASKS)}")
    return TASKS[name]
