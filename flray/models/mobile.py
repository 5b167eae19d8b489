"""MobileNetV2 and EfficientNet-B0 in the 32x32 forms of FCCL+: inverted residual blocks behind a stem of stride 1.

These are the forms in FCCL+'s released code, which differ from ImageNet's (torchvision's) in more
than the stem.
"""

from collections import OrderedDict
from typing import Annotated

from pydantic import Field
from torch import Tensor, nn

from flray.models.base import SplitModel, image_shape
from flray.models.groups import norm_layer
from flray.models.resnet import BlockNorm, Sum
from flray.registry import register_model

# Rows of both tables: expansion, channels, blocks, stride of the first block; EfficientNet's also
# kernel size.
_MOBILENET = (
    (1, 16, 1, 1),
    (6, 24, 2, 1),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
_EFFICIENTNET = (
    (1, 16, 1, 1, 3),
    (6, 24, 2, 2, 3),
    (6, 40, 2, 2, 5),
    (6, 80, 3, 2, 3),
    (6, 112, 3, 1, 5),
    (6, 192, 4, 2, 5),
    (6, 320, 1, 1, 3),
)


class SqueezeExcite(nn.Module):
    """Scale each channel by a gate computed from all channels' means (Hu et al. 2018), with SiLU inside."""

    def __init__(self, channels: int, hidden: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(
            nn.AdaptiveAvgPool2d(1),
            nn.Conv2d(channels, hidden, 1),
            nn.SiLU(),
            nn.Conv2d(hidden, channels, 1),
            nn.Sigmoid(),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the scaled images [B, C, H, W]."""
        scaled: Tensor = x * self.gate(x)
        return scaled


def _convolution(
    inputs: int, outputs: int, kernel: int, norm: BlockNorm, stride: int = 1, groups: int = 1
) -> nn.Sequential:
    conv = nn.Conv2d(
        inputs, outputs, kernel, stride, padding=kernel // 2, groups=groups, bias=False
    )
    return nn.Sequential(OrderedDict[str, nn.Module](conv=conv, norm=norm_layer(norm, outputs)))


@register_model("mobilenetv2")
def mobilenetv2(
    shape: tuple[int, ...], num_classes: int, *, norm: BlockNorm = "batch"
) -> nn.Module:
    """MobileNetV2 for 32x32 (2,296,922 parameters with 10 classes).

    Against Sandler et al. (2018): the first two stride-2 steps are 1, ReLU stands for ReLU6, the
    first block keeps its 1x1 expansion, and blocks of stride 1 that change the channels have a
    normed 1x1 convolution as shortcut.
    """
    inputs, *_ = image_shape("mobilenetv2", shape, 8)
    stem = _convolution(inputs, 32, 3, norm)
    stages = nn.Sequential()
    inputs = 32
    for expansion, outputs, blocks, first_stride in _MOBILENET:
        stage = nn.Sequential()
        for stride in [first_stride] + [1] * (blocks - 1):
            hidden = expansion * inputs
            branch = nn.Sequential(
                _convolution(inputs, hidden, 1, norm),
                nn.ReLU(inplace=True),
                _convolution(hidden, hidden, 3, norm, stride, groups=hidden),
                nn.ReLU(inplace=True),
                _convolution(hidden, outputs, 1, norm),
            )
            shortcut = (
                nn.Identity() if inputs == outputs else _convolution(inputs, outputs, 1, norm)
            )
            stage.append(Sum(branch, shortcut) if stride == 1 else branch)
            inputs = outputs
        stages.append(stage)
    features = nn.Sequential(
        OrderedDict[str, nn.Module](
            stem=stem,
            relu=nn.ReLU(),
            stages=stages,
            head=_convolution(320, 1280, 1, norm),
            head_relu=nn.ReLU(),
            average=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
        )
    )
    taps = ["features.stem", *(f"features.stages.{index}" for index in (1, 2, 4)), "features.head"]
    return SplitModel(features, nn.Linear(1280, num_classes), taps)


@register_model("efficientnet-b0")
def efficientnet_b0(
    shape: tuple[int, ...],
    num_classes: int,
    *,
    norm: BlockNorm = "batch",
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.2,
) -> nn.Module:
    """EfficientNet-B0 for 32x32 (3,598,598 parameters with 10 classes).

    Against Tan and Le (2019): stem of stride 1, no 1280-channel head, no stochastic depth (the
    released code sets its rate to 0 in every block). Features are the 320 averaged channels after
    dropout, as that code takes them. It also holds 1,088 parameters that it never uses, which are
    left out here.
    """
    inputs, *_ = image_shape("efficientnet-b0", shape, 16)
    stem = _convolution(inputs, 32, 3, norm)
    stages = nn.Sequential()
    inputs = 32
    for expansion, outputs, blocks, first_stride, kernel in _EFFICIENTNET:
        stage = nn.Sequential()
        for stride in [first_stride] + [1] * (blocks - 1):
            hidden = expansion * inputs
            branch = nn.Sequential()
            if expansion != 1:
                branch.extend([_convolution(inputs, hidden, 1, norm), nn.SiLU(inplace=True)])
            branch.extend(
                [
                    _convolution(hidden, hidden, kernel, norm, stride, groups=hidden),
                    nn.SiLU(inplace=True),
                    SqueezeExcite(hidden, inputs // 4),
                    _convolution(hidden, outputs, 1, norm),
                ]
            )
            stage.append(
                Sum(branch, nn.Identity()) if stride == 1 and inputs == outputs else branch
            )
            inputs = outputs
        stages.append(stage)
    features = nn.Sequential(
        OrderedDict[str, nn.Module](
            stem=stem,
            silu=nn.SiLU(),
            stages=stages,
            average=nn.AdaptiveAvgPool2d(1),
            flatten=nn.Flatten(),
            dropout=nn.Dropout(dropout),
        )
    )
    taps = ["features.stem", *(f"features.stages.{index}" for index in (1, 2, 4, 6))]
    return SplitModel(features, nn.Linear(320, num_classes), taps)
