"""Metrics that an experiment may add to those of its task: ``evaluation.metrics``.

A metric is a function of the labels ``targets`` [n] and the network's ``outputs`` [n, C] (for
segmentation masks and maps, [n, K, H, W]) of a set of samples; its keyword-only parameters are its
options. It is called together with the task's metrics: for every client, and for every view of the
models.
"""

import math
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from flray.registry import register_metric


@register_metric("balanced-accuracy")
def balanced_accuracy(targets: NDArray[np.int64], outputs: NDArray[Any]) -> float:
    """Return the mean over the classes that occur of the share of their samples that is found."""
    from sklearn.metrics import recall_score  # takes a second to import, so only on use

    return _mean_over_classes(recall_score, targets, outputs)


@register_metric("macro-f1")
def macro_f1(targets: NDArray[np.int64], outputs: NDArray[Any]) -> float:
    """Return the mean of F1 over the classes that occur."""
    from sklearn.metrics import f1_score

    return _mean_over_classes(f1_score, targets, outputs)


def _mean_over_classes(score: Any, targets: NDArray[np.int64], outputs: NDArray[Any]) -> float:
    labels = np.unique(targets)
    return float(score(targets, outputs.argmax(1), labels=labels, average="macro", zero_division=0))


@register_metric("calibration-error")
def calibration_error(
    targets: NDArray[np.int64],
    outputs: NDArray[Any],
    *,
    bins: Annotated[
        int, Field(ge=1, le=10_000, description="equally wide bins of the confidence")
    ] = 15,
) -> float:
    """Return the expected calibration error (Guo et al. 2017, Eq. 3): mean gap of confidence and accuracy by bins."""
    logits = outputs.astype(np.float64)
    largest = logits.max(1, keepdims=True)
    if not np.isfinite(largest).all():
        return math.inf  # training has diverged, which a mean over clients must show
    shares = np.exp(logits - largest)
    shares /= shares.sum(1, keepdims=True)
    confidence, correct = shares.max(1), outputs.argmax(1) == targets
    place = np.minimum(np.ceil(confidence * bins).astype(int) - 1, bins - 1)
    gaps = np.bincount(place, weights=correct - confidence, minlength=bins)
    return float(np.abs(gaps).sum() / len(targets))
