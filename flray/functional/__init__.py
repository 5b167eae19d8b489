"""Every published formula as a pure function on tensors, by its name in the papers."""

from flray.functional.averaging import WeightedMean, weighted_mean
from flray.functional.fedskc import (
    class_means,
    discrepancy_weights,
    global_structural_knowledge,
    knowledge_discrepancy,
    local_contrastive_loss,
    period_review,
    structural_knowledge,
    variance_change,
)

__all__ = [
    "WeightedMean",
    "class_means",
    "discrepancy_weights",
    "global_structural_knowledge",
    "knowledge_discrepancy",
    "local_contrastive_loss",
    "period_review",
    "structural_knowledge",
    "variance_change",
    "weighted_mean",
]
