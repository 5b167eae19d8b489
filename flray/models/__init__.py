"""The papers' networks, each split into features and classifier, and the groups of their state that methods name."""

from flray.models.base import (
    GROUPS,
    SplitModel,
    as_split,
    batch_norm_modules,
    build,
    feature_dim,
    layer_taps,
    linear_classifier,
    norm_layer,
    select,
)

__all__ = ["GROUPS", "SplitModel", "as_split", "batch_norm_modules", "build", "feature_dim"]
__all__ += ["layer_taps", "linear_classifier", "norm_layer", "select"]
