"""Classification of fixed classes: cross-entropy, accuracy; of two also AUC, sensitivity, specificity and F1.

Which class of two is the positive one the data set says: `flray.data.types.FederatedData.positive`.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from flray.data.types import Array, FederatedData
from flray.errors import ConfigError, DataError
from flray.registry import register_task
from flray.tasks.base import Predictions, Task


@register_task("classification")
class Classification(Task):
    """Cross-entropy; accuracy in [0, 1] and mean loss.

    Parameters
    ----------
    top_k : int, optional
        Also measure top-k accuracy, called ``top5`` for 5.
    """

    name = "classification"
    logits = True
    base_measures: tuple[str, ...] = ("accuracy", "loss")

    def __init__(self, top_k: int | None = None) -> None:
        self.top_k = top_k
        self._top = f"top{top_k}"
        self.measures = (*self.base_measures, *((self._top,) if top_k is not None else ()))

    def check(self, data: FederatedData) -> None:
        """Refuse targets that are not classes, and top-k accuracy of k classes or fewer."""
        super().check(data)
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


def summarise_parts(
    task: Task, predictions: Predictions, sizes: Sequence[int]
) -> dict[str, NDArray[np.float64]]:
    """Return by metric the values of a task's `summarise` for each of consecutive parts of some samples.

    Parameters
    ----------
    task : Task
        For `Classification` alone all parts are added up at once, to the same bits: the losses of parts of one size
        are the rows of one table.
    predictions : mapping
        Of all samples.
    sizes : sequence of int
        Samples of each part.
    """
    counts, ends = np.asarray(sizes), np.cumsum([0, *sizes])
    if type(task) is not Classification:
        places = [slice(*place) for place in pairwise(ends)]
        each = [task.summarise({n: v[place] for n, v in predictions.items()}) for place in places]
        return {name: np.array([one[name] for one in each]) for name in each[0]}
    sums: dict[str, NDArray[Any]] = {
        "accuracy" if name == "correct" else name: np.diff(np.cumsum(np.append(0, hits))[ends])
        for name, hits in predictions.items()
        if name != "loss"
    }
    losses = sums["loss"] = np.zeros(len(counts))
    for size in np.unique(counts):
        alike = np.flatnonzero(counts == size)
        losses[alike] = predictions["loss"][ends[alike, None] + np.arange(size)].sum(axis=1)
    with np.errstate(invalid="ignore"):  # an empty part has no mean
        return {name: values / counts for name, values in sums.items()}


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


@register_task("binary")
class Binary(Classification):
    """Classification of two classes, the second one positive: besides accuracy and loss AUC, sensitivity and so on.

    The networks have two logits, as for any classes, so that every method for classification runs;
    the score is the positive class's probability, which is the sigmoid of the logits' difference.
    """

    name = "binary"
    base_measures = ("accuracy", "loss", "auc", "sensitivity", "specificity", "f1")

    def check(self, data: FederatedData) -> None:
        """Refuse masks and more or fewer than two classes."""
        super().check(data)
        if data.num_classes != 2:
            raise DataError(
                f"data set {data.dataset}: a binary task has 2 classes, found {data.num_classes}"
            )

    def predictions(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return per sample also the score of class 1 and the label."""
        score = torch.sigmoid((outputs[:, 1] - outputs[:, 0]).to(torch.float64))
        return {**super().predictions(outputs, targets), "score": score, "label": targets}

    def summarise(self, predictions: Predictions) -> dict[str, float]:
        """Return accuracy, loss, AUC, sensitivity, specificity and F1."""
        return {
            **super().summarise(predictions),
            **binary_metrics(predictions["score"], predictions["label"]),
        }


def binary_metrics(scores: Array, labels: Array, threshold: float = 0.5) -> dict[str, float]:
    """Return the metrics of a two-class prediction.

    Parameters
    ----------
    scores : ndarray [n]
        Score of class 1; the higher the likelier.
    labels : ndarray of int [n]
        0 or 1.
    threshold : float
        A score above it is a prediction of class 1.

    Returns
    -------
    dict
        ``auc``, ``sensitivity`` (share of class 1 found), ``specificity`` (share of class 0 left
        alone) and ``f1``, each in [0, 1]. A metric is NaN if its classes do not occur, F1 if
        neither a sample nor a prediction is 1.
    """
    positive, found = np.asarray(labels) == 1, np.asarray(scores) > threshold
    true, false, ones, zeros = (
        int(np.count_nonzero(which))
        for which in (found & positive, found & ~positive, positive, ~positive)
    )
    auc = float("nan")
    if ones and zeros:
        from sklearn.metrics import roc_auc_score  # takes a second to import, so only on use

        auc = float(roc_auc_score(positive, scores))
    return {
        "auc": auc,
        "sensitivity": _share(true, ones),
        "specificity": _share(zeros - false, zeros),
        "f1": _share(2 * true, true + false + ones),
    }


def _share(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")
