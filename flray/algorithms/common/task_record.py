"""The record of a client's task, reported beside its reply: tracked numbers, losses, steps and samples."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from flray.devices import transfers


class TaskRecord:
    """Numbers of one client's task.

    Parameters
    ----------
    device : torch.device
        Where losses are; they are added up there.

    """

    def __init__(self, device: torch.device) -> None:
        self._logged: dict[str, float | Tensor] = {}
        self._loss_sum = torch.zeros((), dtype=torch.float64, device=device)
        self._steps = self._seen = 0

    def log(self, name: str, value: float | Tensor) -> None:
        """Track a number of this client in this round; one of a device is copied when the task ends."""
        if isinstance(value, Tensor) and value.device.type != "cpu":
            self._logged[name] = value.detach().clone()
        else:
            self._logged[name] = float(value.detach() if isinstance(value, Tensor) else value)

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
        return self.numbers()[0]

    @property
    def metrics(self) -> dict[str, float]:
        """The task's numbers for tracking (see `log`)."""
        return self.numbers()[1]

    def numbers(self) -> tuple[float, dict[str, float]]:
        """Return the mean loss and the logged numbers, copied from a device at once."""
        held = {name: value for name, value in self._logged.items() if isinstance(value, Tensor)}
        total, *values = transfers.to_host([self._loss_sum, *held.values()])
        found = dict(zip(held, map(float, values), strict=True))
        loss = float(total) / self._steps if self._steps else math.nan
        return loss, {
            name: found[name] if isinstance(value, Tensor) else value
            for name, value in self._logged.items()
        }
