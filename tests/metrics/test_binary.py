"""Two-class measures against counting by hand and scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sklearn.metrics import f1_score, recall_score, roc_auc_score

from flray.tasks.binary import binary_metrics


def test_by_hand() -> None:
    labels = np.array([1, 1, 1, 0, 0, 0, 0])
    scores = np.array([0.9, 0.6, 0.4, 0.8, 0.3, 0.2, 0.1])
    found = binary_metrics(scores, labels)
    # pairs in order: 0.9 beats 4, 0.6 beats 3, 0.4 beats 3, of 12
    assert found == pytest.approx(
        {"auc": 10 / 12, "sensitivity": 2 / 3, "specificity": 3 / 4, "f1": 4 / 6}
    )


def test_equals_scikit_learn() -> None:
    generator = np.random.default_rng(0)
    labels = generator.integers(2, size=200)
    scores = np.round(np.clip(labels * 0.2 + generator.random(200) * 0.8, 0, 1), 2)  # with ties
    found, predicted = binary_metrics(scores, labels), scores > 0.5
    assert found["auc"] == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    assert found["sensitivity"] == pytest.approx(recall_score(labels, predicted), abs=1e-12)
    assert found["specificity"] == pytest.approx(
        recall_score(labels, predicted, pos_label=0), abs=1e-12
    )
    assert found["f1"] == pytest.approx(f1_score(labels, predicted), abs=1e-12)


@pytest.mark.parametrize(
    ("labels", "defined"),
    [([1, 1], {"sensitivity", "f1"}), ([0, 0], {"specificity", "f1"}), ([], set())],
)
def test_what_is_not_defined_is_nan(labels: list[int], defined: set[str]) -> None:
    found = binary_metrics(np.full(len(labels), 0.9), np.array(labels, dtype=np.int64))
    assert {name for name, value in found.items() if not math.isnan(value)} == defined
