"""Tasks whose targets are several columns: numbers (regression), and labels that do not exclude each other."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from flray.data.types import Array, Rows
from flray.registry import register_task
from flray.tasks.base import Task, mean_of_known
from flray.tasks.classification import binary_metrics

_BINS = 10


@register_task("regression")
class Regression(Task):
    """Regression of one or several numbers by least squares: share of explained variance, and mean errors."""

    name = "regression"
    target = "numbers"
    measures = ("r2", "rmse", "mae", "loss")

    @staticmethod
    def partition_labels(targets: Array) -> Rows:
        """Return which tenth of all samples the first number is in."""
        order = np.argsort(np.argsort(targets[:, 0], kind="stable"), kind="stable")
        return order * _BINS // max(len(order), 1)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean squared error of outputs and targets [B, k]."""
        return F.mse_loss(outputs, targets.to(outputs.dtype))

    def measure(self, targets: Array, outputs: Array) -> dict[str, float]:
        """Return R^2 (of several numbers their mean; NaN if a number does not vary), RMSE and MAE."""
        wanted, errors = targets.astype(np.float64), outputs.astype(np.float64) - targets
        errors[np.isnan(errors)] = np.inf
        spread = np.square(wanted - wanted.mean(0)).sum(0)
        left = np.square(errors).sum(0)
        r2 = float((1 - left / spread).mean()) if spread.all() else float("nan")
        return {
            "r2": r2,
            "rmse": float(np.sqrt(np.square(errors).mean())),
            "mae": float(abs(errors).mean()),
        }


@register_task("multi-label")
class MultiLabel(Task):
    """Labels that do not exclude each other, any number for a sample: means over them of AUC, F1 and so on."""

    name = "multi-label"
    target = "flags"
    measures = ("auc", "sensitivity", "specificity", "f1", "accuracy", "loss")

    @staticmethod
    def partition_labels(targets: Array) -> Rows:
        """Return the rarest label that a sample has; of one without labels the number after the last."""
        order = np.argsort(targets.sum(0, dtype=np.int64), kind="stable")
        first = targets[:, order].argmax(1)
        rarest: Rows = np.where(targets.any(1), order[first], targets.shape[1])
        return rarest

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the mean binary cross-entropy of logits and labels [B, k]."""
        return F.binary_cross_entropy_with_logits(outputs, targets.to(outputs.dtype))

    def measure(self, targets: Array, outputs: Array) -> dict[str, float]:
        """Return the mean over labels of each measure of two classes, if defined, and the share of right labels."""
        scores = torch.sigmoid(torch.from_numpy(outputs).double()).numpy()
        each = [binary_metrics(*pair) for pair in zip(scores.T, targets.T, strict=True)]
        found = {name: [one[name] for one in each] for name in each[0]}
        means = {name: mean_of_known(np.array(values)) for name, values in found.items()}
        return {**means, "accuracy": float(((scores > 0.5) == (targets == 1)).mean())}
