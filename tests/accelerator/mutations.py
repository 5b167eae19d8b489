"""Mistakes made on purpose, each of which the pretend accelerator must find."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor

from flray.algorithms.base import Algorithm
from flray.algorithms.client import Client
from flray.algorithms.common.samples import Batch
from flray.tasks.classification import Classification

LOSS = Algorithm.loss


@contextmanager
def none() -> Iterator[None]:
    """No mistake."""
    yield


def _asking(self: Algorithm, client: Client, batch: Batch) -> Tensor:
    loss = LOSS(self, client, batch)
    client.scratch["last"] = loss.item()
    return loss


def _leaving(self: Algorithm, client: Client, batch: Batch) -> Tensor:
    loss = LOSS(self, client, batch)
    client.scratch["last"] = batch.outputs.detach().cpu()
    return loss


def _drawing(self: Algorithm, client: Client, batch: Batch) -> Tensor:
    noise = torch.rand((), generator=client.generator("noise"), device=client.device)
    return LOSS(self, client, batch) + 0 * noise


def _mixing(self: Algorithm, client: Client, batch: Batch) -> Tensor:
    return LOSS(self, client, batch) + (batch.outputs.sum(1) * torch.zeros(len(batch.x))).sum()


def _keeping(self: Classification, outputs: Tensor, targets: Tensor) -> Mapping[str, Any]:
    return {"correct": (outputs.argmax(1) == targets).numpy()}


def _loss(mistake: Callable[..., Tensor]) -> Callable[[], AbstractContextManager[Any]]:
    return lambda: patch.object(Algorithm, "loss", mistake)


ALL: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "": none,
    "item": _loss(_asking),
    "to the host": _loss(_leaving),
    "generator": _loss(_drawing),
    "mixing": _loss(_mixing),
    "numpy": lambda: patch.object(Classification, "predictions", _keeping),
}
"""By name."""
