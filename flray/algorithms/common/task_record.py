"""What a client's task reports beside its reply: tracked numbers, losses, steps and samples."""

from __future__ import annotations

import math

import torch
from torch import Tensor


class TaskRecord:
    """Numbers of one client's task.

    Parameters
    ----------
    device : torch.device
        Where losses are; they are added up there.

    Attributes
    ----------
    metrics : dict of str to float
        What the task reports for tracking (see `log`).
    """

    def __init__(self, device: torch.device) -> None:
        self.metrics: dict[str, float] = {}
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self._steps = self._seen = 0

    def log(self, name: str, value: float | Tensor) -> None:
        """Track a number of this client in this round."""
        self.metrics[name] = float(value.detach() if isinstance(value, Tensor) else value)

    def record_loss(self, loss: Tensor) -> None:
        """Add a step's loss to the task's mean."""
        self._loss_sum += loss.detach()
        self._steps += 1

    def record_samples(self, count: int) -> None:
        """Count the samples of a batch."""
        self._seen += count

    @property
    def steps(self) -> int:
        """Optimiser steps done so far in this task."""
        return self._steps

    @property
    def samples_seen(self) -> int:
        """Samples in the batches of this task's phases so far, each as often as it came."""
        return self._seen

    @property
    def mean_loss(self) -> float:
        """Mean loss over the task's steps; NaN where there were none."""
        return float(self._loss_sum) / self._steps if self._steps else math.nan
