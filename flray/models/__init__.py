"""The papers' networks, each split into features and classifier, and the groups of their state that methods name."""

import importlib
import pkgutil

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

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")

__all__ = ["GROUPS", "SplitModel", "as_split", "batch_norm_modules", "build", "feature_dim"]
__all__ += ["layer_taps", "linear_classifier", "norm_layer", "select"]
