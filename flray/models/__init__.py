"""The papers' networks, each split into features and classifier, and the groups of their state that methods name."""

from flray.models import (
    convnets,
    densenet,
    inception,
    mobile,
    resnet,
    small,
    torchvision_networks,
    unet,
)
from flray.models.base import SplitModel, as_split, feature_dim, linear_classifier
from flray.models.building import build
from flray.models.groups import GROUPS, batch_norm_modules, layer_taps, norm_layer, select

__all__ = [
    "GROUPS",
    "SplitModel",
    "as_split",
    "batch_norm_modules",
    "build",
    "convnets",
    "densenet",
    "feature_dim",
    "inception",
    "layer_taps",
    "linear_classifier",
    "mobile",
    "norm_layer",
    "resnet",
    "select",
    "small",
    "torchvision_networks",
    "unet",
]
