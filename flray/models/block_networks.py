"""Networks of blocks: ResNets (He et al. 2016), MobileNetV2, EfficientNet-B0 and GoogLeNet.

But for ImageNet's ResNet-18 they are the 32x32 forms of FedSKC and FCCL+, those of FCCL+ as its
released code has them, which differ from torchvision's in more than the stem.
"""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from flray.models import SplitModel, image_shape, norm_layer
from flray.registry import register_model

BlockNorm = Literal["batch", "group"]
Init = Literal["default", "he"]
Width = Annotated[int, Field(ge=1)]


def _sequential(**layers: nn.Module) -> nn.Sequential:
    return nn.Sequential(OrderedDict(layers))


class Sum(nn.Module):
    """``branch(x) + shortcut(x)`` as a module, so that the value before a block's ReLU can be tapped."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module) -> None:
        super().__init__()
        self.branch, self.shortcut = branch, shortcut

    def forward(self, x: Tensor) -> Tensor:
        """Return the sum; both parts must give the same shape."""
        total: Tensor = self.branch(x) + self.shortcut(x)
        return total


def basic_block(inputs: int, outputs: int, stride: int, norm: BlockNorm) -> nn.Sequential:
    """Two 3x3 convolutions with norms around a shortcut, which is a normed 1x1 convolution where the shape changes."""
    branch = _sequential(
        conv1=nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
        norm1=norm_layer(norm, outputs),
        relu1=nn.ReLU(inplace=True),
        conv2=nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        norm2=norm_layer(norm, outputs),
    )
    shortcut = (
        nn.Identity()
        if stride == 1 and inputs == outputs
        else _sequential(
            conv=nn.Conv2d(inputs, outputs, 1, stride, bias=False), norm=norm_layer(norm, outputs)
        )
    )
    return _sequential(sum=Sum(branch, shortcut), relu=nn.ReLU())


def resnet(
    channels: int,
    num_classes: int,
    blocks: Sequence[int],
    norm: BlockNorm,
    width: int,
    init: Init,
    stem: Literal["3x3", "7x7"] = "3x3",
) -> SplitModel:
    """Return a residual network with one tap before the ReLU of the stem and of every stage.

    Parameters
    ----------
    channels, num_classes : int
        Channels of the images and number of logits.
    blocks : sequence of int
        Basic blocks per stage; the first stage has `width` channels and stride 1, each other one
        doubles and halves.
    norm : {"batch", "group"}
        The normalisation.
    width : int
        Channels of stem and first stage.
    init : {"default", "he"}
        PyTorch's initialisation, or He et al.'s for convolutions (normal, variance 2 over the
        fan-out).
    stem : {"3x3", "7x7"}
        One convolution, or ImageNet's 7x7 with stride 2 and 3x3 max pooling with stride 2.
    """
    small = stem == "3x3"
    conv = (
        nn.Conv2d(channels, width, 3, padding=1, bias=False)
        if small
        else nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False)
    )
    first = OrderedDict[str, nn.Module](conv=conv, norm=norm_layer(norm, width), relu=nn.ReLU())
    if not small:
        first["pool"] = nn.MaxPool2d(3, stride=2, padding=1)
    layers = OrderedDict[str, nn.Module](stem=nn.Sequential(first))
    taps = ["features.stem.norm"]
    inputs = width
    for index, count in enumerate(blocks):
        outputs = width * 2**index
        strides = [1 if index == 0 else 2] + [1] * (count - 1)
        stage = nn.Sequential()
        for stride in strides:
            stage.append(basic_block(inputs, outputs, stride, norm))
            inputs = outputs
        layers[f"stage{index + 1}"] = stage
        taps.append(f"features.stage{index + 1}.{count - 1}.sum")
    layers["average"], layers["flatten"] = nn.AdaptiveAvgPool2d(1), nn.Flatten()
    model = SplitModel(nn.Sequential(layers), nn.Linear(inputs, num_classes), taps)
    if init == "he":
        for layer in model.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")
    return model


def _register(
    name: str,
    blocks: Sequence[int],
    smallest: int,
    about: str,
    usual: Init = "default",
    stem: Literal["3x3", "7x7"] = "3x3",
) -> None:
    """Register the network of some blocks, for images from a smallest size on."""

    def build(
        shape: tuple[int, ...],
        num_classes: int,
        *,
        norm: BlockNorm = "batch",
        width: Width = 64,
        init: Init = usual,
    ) -> nn.Module:
        channels = image_shape(name, shape, smallest)[0]
        return resnet(channels, num_classes, blocks, norm, width, init, stem)

    build.__doc__ = about
    register_model(name)(build)


_register(
    "resnet8",
    (1, 1, 1),
    4,
    """FedSKC's ResNet-8: 3x3 stem, one basic block each of 64, 128, 256 (1,227,594 parameters with 10 classes).

    ``init: he`` is what the released code does; the paper says nothing.
    """,
)
_register(
    "resnet10",
    (1, 1, 1, 1),
    8,
    "FCCL+'s ResNet-10 for 32x32: blocks [1, 1, 1, 1] of 64 to 512 (4,903,242 parameters with 10 classes).",
)
_register(
    "resnet12",
    (2, 1, 1, 1),
    8,
    "FCCL+'s ResNet-12 for 32x32: blocks [2, 1, 1, 1] (4,977,226 parameters with 10 classes).",
)
_register(
    "resnet18",
    (2, 2, 2, 2),
    8,
    "ResNet-18 for 32x32: blocks [2, 2, 2, 2] (11,173,962 parameters with 10 classes).",
)
_register(
    "resnet34",
    (3, 4, 6, 3),
    8,
    "ResNet-34 for 32x32: blocks [3, 4, 6, 3] (21,282,122 parameters with 10 classes).",
)
_register(
    "resnet18-imagenet",
    (2, 2, 2, 2),
    32,
    """ResNet-18 as torchvision has it, layers and initial values alike, not pre-trained (LG-Mix: Office, DomainNet).

    11,181,642 parameters with 10 classes. LG-Mix resizes to 256x256.
    """,
    "he",
    "7x7",
)


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
    return _sequential(conv=conv, norm=norm_layer(norm, outputs))


def _stages(rows: Sequence[Sequence[int]], block: Callable[..., nn.Module]) -> nn.Sequential:
    """Return stages after a stem of 32 channels; `block` gets inputs, outputs and a row's rest."""
    stages, inputs = nn.Sequential(), 32
    for expansion, outputs, blocks, first_stride, *more in rows:
        stage = nn.Sequential()
        for stride in [first_stride] + [1] * (blocks - 1):
            stage.append(block(inputs, outputs, expansion, stride, *more))
            inputs = outputs
        stages.append(stage)
    return stages


@register_model("mobilenetv2")
def mobilenetv2(
    shape: tuple[int, ...], num_classes: int, *, norm: BlockNorm = "batch"
) -> nn.Module:
    """MobileNetV2 for 32x32 (2,296,922 parameters with 10 classes).

    Against Sandler et al. (2018): the first two stride-2 steps are 1, ReLU stands for ReLU6, the
    first block keeps its 1x1 expansion, and blocks of stride 1 that change the channels have a
    normed 1x1 convolution as shortcut.
    """

    def block(inputs: int, outputs: int, expansion: int, stride: int) -> nn.Module:
        hidden = expansion * inputs
        branch = nn.Sequential(
            _convolution(inputs, hidden, 1, norm),
            nn.ReLU(inplace=True),
            _convolution(hidden, hidden, 3, norm, stride, groups=hidden),
            nn.ReLU(inplace=True),
            _convolution(hidden, outputs, 1, norm),
        )
        shortcut = nn.Identity() if inputs == outputs else _convolution(inputs, outputs, 1, norm)
        return Sum(branch, shortcut) if stride == 1 else branch

    features = _sequential(
        stem=_convolution(image_shape("mobilenetv2", shape, 8)[0], 32, 3, norm),
        relu=nn.ReLU(),
        stages=_stages(_MOBILENET, block),
        head=_convolution(320, 1280, 1, norm),
        head_relu=nn.ReLU(),
        average=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
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

    def block(inputs: int, outputs: int, expansion: int, stride: int, kernel: int) -> nn.Module:
        hidden = expansion * inputs
        wider = expansion != 1
        branch = nn.Sequential(
            *([_convolution(inputs, hidden, 1, norm), nn.SiLU(inplace=True)] if wider else ()),
            _convolution(hidden, hidden, kernel, norm, stride, groups=hidden),
            nn.SiLU(inplace=True),
            SqueezeExcite(hidden, inputs // 4),
            _convolution(hidden, outputs, 1, norm),
        )
        return Sum(branch, nn.Identity()) if stride == 1 and inputs == outputs else branch

    features = _sequential(
        stem=_convolution(image_shape("efficientnet-b0", shape, 16)[0], 32, 3, norm),
        silu=nn.SiLU(),
        stages=_stages(_EFFICIENTNET, block),
        average=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
        dropout=nn.Dropout(dropout),
    )
    taps = ["features.stem", *(f"features.stages.{index}" for index in (1, 2, 4, 6))]
    return SplitModel(features, nn.Linear(320, num_classes), taps)


# Szegedy et al. (2015), Table 1: 1x1; 3x3 reduce, 3x3; 5x5 reduce, 5x5; pool projection.
_STAGES = (
    ((64, 96, 128, 16, 32, 32), (128, 128, 192, 32, 96, 64)),
    (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    ((256, 160, 320, 32, 128, 128), (384, 192, 384, 48, 128, 128)),
)


class Inception(nn.Module):
    """Four parallel branches, concatenated over channels; two 3x3 convolutions stand for the 5x5 one.

    Parameters
    ----------
    inputs : int
        Input channels.
    sizes : tuple of int
        A row of Table 1: 1x1; 3x3 reduce, 3x3; 5x5 reduce, 5x5; pool projection.
    norm : {"batch", "group"}
        Normalisation between each convolution and its ReLU.
    """

    def __init__(
        self, inputs: int, sizes: tuple[int, int, int, int, int, int], norm: BlockNorm
    ) -> None:
        super().__init__()
        one, reduce3, three, reduce5, five, pooled = sizes
        self.one = _activated(inputs, one, 1, norm)
        self.three = nn.Sequential(
            _activated(inputs, reduce3, 1, norm), _activated(reduce3, three, 3, norm)
        )
        self.five = nn.Sequential(
            _activated(inputs, reduce5, 1, norm),
            _activated(reduce5, five, 3, norm),
            _activated(five, five, 3, norm),
        )
        self.pooled = nn.Sequential(
            nn.MaxPool2d(3, stride=1, padding=1), _activated(inputs, pooled, 1, norm)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, one + three + five + pooled, H, W]."""
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pooled(x)], dim=1)


def _activated(inputs: int, outputs: int, kernel: int, norm: BlockNorm) -> nn.Sequential:
    return _sequential(
        conv=nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2),
        norm=norm_layer(norm, outputs),
        relu=nn.ReLU(),
    )


@register_model("googlenet")
def googlenet(shape: tuple[int, ...], num_classes: int, *, norm: BlockNorm = "batch") -> nn.Module:
    """GoogLeNet for 32x32 without auxiliary classifiers or dropout (6,166,250 parameters with 10 classes).

    Its stages are tapped after their ReLUs, which are inside the branches.
    """
    inputs, *_ = image_shape("googlenet", shape, 4)
    layers = OrderedDict[str, nn.Module](stem=_activated(inputs, 192, 3, norm))
    inputs = 192
    for number, rows in enumerate(_STAGES, start=3):
        if number > 3:
            layers[f"pool{number}"] = nn.MaxPool2d(3, stride=2, padding=1)
        stage = nn.Sequential()
        for sizes in rows:
            stage.append(Inception(inputs, sizes, norm))
            inputs = sizes[0] + sizes[2] + sizes[4] + sizes[5]
        layers[f"stage{number}"] = stage
    layers["average"], layers["flatten"] = nn.AdaptiveAvgPool2d(1), nn.Flatten()
    taps = ["features.stem.norm", *(f"features.stage{number}" for number in (3, 4, 5))]
    return SplitModel(nn.Sequential(layers), nn.Linear(inputs, num_classes), taps)
