"""Every published formula as a pure function on tensors, by its name in the papers."""

from flray.functional.averaging import WeightedMean, weighted_mean
from flray.functional.classifiers import (
    balanced_softmax_loss,
    cosine_logits,
    restricted_scale,
    restricted_softmax_logits,
)
from flray.functional.contrastive import model_contrastive_loss, relaxed_contrastive_loss
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
from flray.functional.fedhkd import (
    clip_norms,
    hyper_feature_loss,
    hyper_prediction_loss,
    noisy_class_means,
)
from flray.functional.fedmatch import (
    confident,
    decomposition_penalty,
    helper_consistency_loss,
    pseudo_label_loss,
    vote,
)
from flray.functional.fedskc import (
    discrepancy_weights,
    knowledge_discrepancy,
    local_contrastive_loss,
    period_review,
    variance_change,
)
from flray.functional.few_shot import prototypical_logits, prototypical_loss
from flray.functional.knowledge import (
    class_means,
    global_structural_knowledge,
    structural_knowledge,
)
from flray.functional.lgmix import (
    gram_trace,
    mix_updates,
    mixing_ratio,
    stabilised_ratio,
    trace_ratio,
)
from flray.functional.optimisers import adaptive_step, control_variate, meta_gradient, momentum_step
from flray.functional.penalties import ewc_penalty, proximal_penalty
from flray.functional.personal import (
    apfl_alpha_gradient,
    apfl_alpha_step,
    apfl_mix,
    fomo_affinities,
    fomo_mix,
    fomo_weights,
    pull_to_mean,
)
from flray.functional.prototypes import (
    merge_prototypes,
    prototype_contrastive_loss,
    prototype_loss,
    prototype_scores,
    update_directions,
)
from flray.functional.rhfl import (
    confidence_weights,
    peer_distillation_loss,
    symmetric_cross_entropy,
)
from flray.functional.segmentation import dice_loss

__all__ = [
    "WeightedMean",
    "adaptive_step",
    "apfl_alpha_gradient",
    "apfl_alpha_step",
    "apfl_mix",
    "balanced_softmax_loss",
    "class_means",
    "clip_norms",
    "confidence_weights",
    "confident",
    "control_variate",
    "cosine_logits",
    "cross_correlation",
    "cross_correlation_loss",
    "decomposition_penalty",
    "dice_loss",
    "digest_loss",
    "discrepancy_weights",
    "distillation_loss",
    "ewc_penalty",
    "fomo_affinities",
    "fomo_mix",
    "fomo_weights",
    "fuse_predictions",
    "global_structural_knowledge",
    "gram_trace",
    "helper_consistency_loss",
    "hyper_feature_loss",
    "hyper_prediction_loss",
    "instance_similarity",
    "instance_similarity_loss",
    "knowledge_discrepancy",
    "local_contrastive_loss",
    "merge_prototypes",
    "meta_gradient",
    "mix_updates",
    "mixing_ratio",
    "model_contrastive_loss",
    "momentum_step",
    "noisy_class_means",
    "non_target_distillation_loss",
    "peer_classifier_loss",
    "peer_distillation_loss",
    "period_review",
    "prototype_contrastive_loss",
    "prototype_loss",
    "prototype_scores",
    "prototypical_logits",
    "prototypical_loss",
    "proximal_penalty",
    "pseudo_label_loss",
    "pull_to_mean",
    "relaxed_contrastive_loss",
    "restricted_scale",
    "restricted_softmax_logits",
    "scaled_distillation_loss",
    "stabilised_ratio",
    "structural_knowledge",
    "symmetric_cross_entropy",
    "trace_ratio",
    "update_directions",
    "variance_change",
    "vote",
    "weighted_mean",
]
