"""Residual networks of basic blocks (He et al. 2016): the 32x32 forms of FedSKC and FCCL+, and ImageNet's ResNet-18."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Annotated, Literal

from pydantic import Field
from torch import Tensor, nn

from flray.models.base import SplitModel, image_shape
from flray.models.groups import norm_layer
from flray.registry import register_model

BlockNorm = Literal["batch", "group"]
Init = Literal["default", "he"]
Width = Annotated[int, Field(ge=1)]


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
    branch = nn.Sequential(
        OrderedDict[str, nn.Module](
            conv1=nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False),
            norm1=norm_layer(norm, outputs),
            relu1=nn.ReLU(inplace=True),
            conv2=nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
            norm2=norm_layer(norm, outputs),
        )
    )
    shortcut: nn.Module = nn.Identity()
    if stride != 1 or inputs != outputs:
        shortcut = nn.Sequential(
            OrderedDict[str, nn.Module](
                conv=nn.Conv2d(inputs, outputs, 1, stride, bias=False),
                norm=norm_layer(norm, outputs),
            )
        )
    return nn.Sequential(OrderedDict[str, nn.Module](sum=Sum(branch, shortcut), relu=nn.ReLU()))


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


def _network(
    blocks: Sequence[int],
    smallest: int,
    usual: Init = "default",
    stem: Literal["3x3", "7x7"] = "3x3",
) -> Callable[[Callable[[], None]], Callable[..., nn.Module]]:
    """Register the network of some blocks, for images from a smallest size on; a function gives name and text."""

    def register(about: Callable[[], None]) -> Callable[..., nn.Module]:
        name = about.__name__.replace("_", "-")

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

        build.__doc__ = about.__doc__
        return register_model(name)(build)

    return register


@_network((1, 1, 1), 4)
def resnet8() -> None:
    """FedSKC's ResNet-8: 3x3 stem, one basic block each of 64, 128, 256 (1,227,594 parameters with 10 classes).

    ``init: he`` is what the released code does; the paper says nothing.
    """


@_network((1, 1, 1, 1), 8)
def resnet10() -> None:
    """FCCL+'s ResNet-10 for 32x32: blocks [1, 1, 1, 1] of 64 to 512 (4,903,242 parameters with 10 classes)."""


@_network((2, 1, 1, 1), 8)
def resnet12() -> None:
    """FCCL+'s ResNet-12 for 32x32: blocks [2, 1, 1, 1] (4,977,226 parameters with 10 classes)."""


@_network((2, 2, 2, 2), 8)
def resnet18() -> None:
    """ResNet-18 for 32x32: blocks [2, 2, 2, 2] (11,173,962 parameters with 10 classes)."""


@_network((3, 4, 6, 3), 8)
def resnet34() -> None:
    """ResNet-34 for 32x32: blocks [3, 4, 6, 3] (21,282,122 parameters with 10 classes)."""


@_network((2, 2, 2, 2), 32, "he", "7x7")
def resnet18_imagenet() -> None:
    """ResNet-18 as torchvision has it, layers and initial values alike, not pre-trained (LG-Mix: Office, DomainNet).

    11,181,642 parameters with 10 classes. LG-Mix resizes to 256x256.
    """
