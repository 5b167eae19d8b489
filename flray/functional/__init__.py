"""Every published formula as a pure function on tensors, by its name in the papers."""

from flray.functional.averaging import WeightedMean, weighted_mean
from flray.functional.distillation import (
    digest_loss,
    distillation_loss,
    non_target_distillation_loss,
    scaled_distillation_loss,
)
from flray.functional.fcclplus import (
    cross_correlation,
    cross_correlation_loss,
    instance_similarity,
    instance_similarity_loss,
)
from flray.functional.fedco2 import fuse_predictions, peer_classifier_loss
from flray.functional.fedskc import (
    class_means,
    global_structural_knowledge,
    local_contrastive_loss,
    structural_knowledge,
)
from flray.functional.fedskc_server import (
    discrepancy_weights,
    knowledge_discrepancy,
    period_review,
    variance_change,
)
from flray.functional.lgmix import gram_trace, mix_updates, mixing_ratio, stabilised_ratio, trace_ratio

__all__ = [
    "WeightedMean",
    "class_means",
    "cross_correlation",
    "cross_correlation_loss",
    "digest_loss",
    "discrepancy_weights",
    "distillation_loss",
    "fuse_predictions",
    "global_structural_knowledge",
    "gram_trace",
    "instance_similarity",
    "instance_similarity_loss",
    "knowledge_discrepancy",
    "local_contrastive_loss",
    "mix_updates",
    "mixing_ratio",
    "non_target_distillation_loss",
    "peer_classifier_loss",
    "period_review",
    "scaled_distillation_loss",
    "stabilised_ratio",
    "structural_knowledge",
    "trace_ratio",
    "variance_change",
    "weighted_mean",
]
