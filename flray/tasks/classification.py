"""Classification of fixed classes: cross-entropy, accuracy."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flray.data.types import FederatedData
from flray.errors import ConfigError, DataError
from flray.models.dry_run import dry_run
from flray.tasks.base import Predictions


class Classification:
    """Cross-entropy; accuracy in [0, 1] and mean loss.

    Parameters
    ----------
    top_k : int, optional
        Also measure top-k accuracy, called ``top5`` for 5.
    """

    name = "classification"
    metric = "accuracy"
    logits = True
    base_measures: tuple[str, ...] = ("accuracy", "loss")

    def __init__(self, top_k: int | None = None) -> None:
        self.top_k = top_k
        self._top = f"top{top_k}"
        self.measures = (*self.base_measures, *((self._top,) if top_k is not None else ()))

    def check(self, data: FederatedData) -> None:
        """Refuse masks, and top-k accuracy of k classes or fewer."""
        if not data.has_classes:
            raise DataError(
                f"data set {data.dataset}: {self.name} needs class labels [n], found masks"
            )
        if self.top_k is not None and self.top_k >= data.num_classes:
            raise ConfigError(
                "experiment.evaluation.top_k",
                str(self.top_k),
                f"{data.dataset} has {data.num_classes} classes, so that every label is among the "
                f"{self.top_k} largest logits; "
                + (
                    f"at most {data.num_classes - 1}, or null"
                    if data.num_classes > 2
                    else "leave it out"
                ),
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
        """Return per sample whether the largest logit, or one of k, is the label's, and the cross-entropy."""
        loss = F.cross_entropy(outputs, targets, reduction="none")
        found = {"correct": outputs.argmax(1) == targets, "loss": loss.to(torch.float64)}
        if self.top_k is not None:
            found[self._top] = among_largest(outputs, targets, self.top_k)
        return found

    def summarise(self, predictions: Predictions) -> dict[str, float]:
        """Return accuracies and mean loss; NaN for no samples."""
        correct, loss = predictions["correct"], predictions["loss"]
        if not len(correct):
            return dict.fromkeys(self.measures, float("nan"))
        shares = {"accuracy": correct}
        if self.top_k is not None:
            shares[self._top] = predictions[self._top]
        return {
            **{name: float(np.count_nonzero(hit)) / len(hit) for name, hit in shares.items()},
            "loss": float(loss.sum()) / len(loss),
        }


def among_largest(logits: Tensor, labels: Tensor, k: int) -> Tensor:
    """Return whether each label's logit is among the k largest; of equal ones the first count, NaN is the largest.

    Parameters
    ----------
    logits : Tensor [B, C]
    labels : Tensor of int64 [B]
    k : int

    Returns
    -------
    Tensor of bool [B]
    """
    own, classes = logits.gather(1, labels.unsqueeze(1)), torch.arange(logits.shape[1])
    earlier = classes.to(labels.device) < labels.unsqueeze(1)
    ahead = ~(logits <= own) | ((logits == own) & earlier)
    return ahead.sum(1) < k
