"""Two-class tasks: area under the ROC curve, sensitivity, specificity and F1; class 1 is the positive one.

Which class that is the data set says: `flray.data.types.FederatedData.positive`.
"""

import numpy as np
import torch
from torch import Tensor

from flray.data.types import Array, FederatedData
from flray.errors import DataError
from flray.tasks.base import Predictions
from flray.tasks.classification import Classification


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
