"""Two-class tasks: area under the ROC curve, sensitivity, specificity and F1; class 1 is the positive one."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray


def binary_metrics(
    scores: NDArray[Any], labels: NDArray[Any], threshold: float = 0.5
) -> dict[str, float]:
    """Return what describes a two-class prediction.

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
        alone) and ``f1``, each in [0, 1]; NaN where its classes do not occur, for F1 where neither
        a sample nor a prediction is 1.
    """
    positive, found = np.asarray(labels) == 1, np.asarray(scores) > threshold
    true, false, ones, zeros = (
        int(np.count_nonzero(which))
        for which in (found & positive, found & ~positive, positive, ~positive)
    )
    auc = float("nan")
    if ones and zeros:
        from sklearn.metrics import roc_auc_score  # a second to import, so only where it is used

        auc = float(roc_auc_score(positive, scores))
    return {
        "auc": auc,
        "sensitivity": _share(true, ones),
        "specificity": _share(zeros - false, zeros),
        "f1": _share(2 * true, true + false + ones),
    }


def _share(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")
