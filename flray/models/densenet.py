"""DenseNet-121 as torchvision has it, for LG-Mix's Camelyon17."""

from __future__ import annotations

from collections import OrderedDict
from typing import Literal

from torch import nn

from flray.models.base import SplitModel, image_shape
from flray.models.groups import batch_norm_modules, norm_layer
from flray.registry import register_model


@register_model("densenet121")
def densenet121(
    shape: tuple[int, ...], num_classes: int, *, norm: Literal["batch", "group"] = "batch"
) -> nn.Module:
    """DenseNet-121 with torchvision's layers and initial values, not pre-trained (6,955,906 parameters, 2 classes)."""
    # Takes seconds to import, so only on use.
    from torchvision.models import densenet121 as architecture

    channels, _, _ = image_shape("densenet121", shape, 29)
    network = architecture(weights=None, num_classes=num_classes)
    if channels != 3:
        network.features.conv0 = nn.Conv2d(channels, 64, 7, stride=2, padding=3, bias=False)
        nn.init.kaiming_normal_(network.features.conv0.weight)
    if norm == "group":
        for path, layer in batch_norm_modules(network):
            parent, _, child = path.rpartition(".")
            setattr(network.get_submodule(parent), child, norm_layer("group", layer.num_features))
    layers = OrderedDict[str, nn.Module](
        dense=network.features,
        relu=nn.ReLU(),
        average=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
    )
    depths = ("conv0", "denseblock1", "denseblock2", "denseblock3", "norm5")
    return SplitModel(
        nn.Sequential(layers), network.classifier, [f"features.dense.{depth}" for depth in depths]
    )
