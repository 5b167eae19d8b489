"""Classification of fixed classes: cross-entropy, accuracy."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flray.data.types import FederatedData
from flray.errors import ConfigError, DataError
from flray.models.dry_run import dry_run
from flray.tasks.base import Predictions


class Classification:
    """Cross-entropy; accuracy in [0, 1] and mean loss."""

    name = "classification"
    measures: tuple[str, ...] = ("accuracy", "loss")
    metric = "accuracy"
    logits = True

    def check(self, data: FederatedData) -> None:
        """Refuse masks."""
        if not data.has_classes:
            raise DataError(
                f"data set {data.dataset}: {self.name} needs class labels [n], found masks"
            )

    def network(self, model: nn.Module) -> nn.Module:
        """Return the network unchanged."""
        return model

    def check_network(self, name: str, model: nn.Module, data: FederatedData) -> None:
        """Refuse a network without a logit for every class."""
        outputs = dry_run(name, model, data.shape)
        if isinstance(outputs, Tensor) and (
            outputs.dim() != 2 or outputs.shape[1] < data.num_classes
        ):
            raise ConfigError(
                "experiment.model",
                name,
                f"classification needs one logit for each of the {data.num_classes} classes of "
                f"{data.dataset}, [1, {data.num_classes}] for one sample, and it returns "
                f"{list(outputs.shape)}",
            )

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy of logits [B, C] and labels [B]."""
        return F.cross_entropy(outputs, targets)

    def predictions(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return per sample whether the largest logit is the label's, and the cross-entropy."""
        loss = F.cross_entropy(outputs, targets, reduction="none")
        return {"correct": outputs.argmax(1) == targets, "loss": loss.to(torch.float64)}

    def summarise(self, predictions: Predictions) -> dict[str, float]:
        """Return accuracy and mean loss; NaN for no samples."""
        correct, loss = predictions["correct"], predictions["loss"]
        if not len(correct):
            return {"accuracy": float("nan"), "loss": float("nan")}
        return {
            "accuracy": float(np.count_nonzero(correct)) / len(correct),
            "loss": float(loss.sum()) / len(loss),
        }
