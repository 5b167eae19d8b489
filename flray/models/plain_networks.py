"""Networks of plain layers: linear, perceptron, the LeNet family, FedBN's two (used by Fed-CO2 and LG-Mix), U-Net.

Layer names: ``convN``, ``fcN`` with ``normN``, ``reluN`` and ``poolN`` after them; a layer that an
option leaves out is not there at all. ReLUs do not work in place, because the layer before them may
be tapped.
"""

import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Annotated, Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from flray.errors import FlrayError
from flray.models import Norm, SplitModel, image_shape, norm_layer
from flray.registry import register_model

Size = Annotated[int, Field(ge=1)]


def with_relu(
    layers: OrderedDict[str, nn.Module],
    index: int,
    layer: nn.Conv2d | nn.Linear,
    norm: Norm,
    name: str = "",
) -> str:
    """Append a layer, norm and ReLU to `layers`; return the name of the layer before the ReLU.

    Parameters
    ----------
    layers : OrderedDict
        Where to append.
    index : int
        Number of the norm and ReLU.
    layer : nn.Conv2d or nn.Linear
        The layer.
    norm : {"batch", "group", "none"}
        Normalisation between the layer and its ReLU.
    name : str
        The layer's own name; ``convINDEX`` by default.
    """
    before = name or f"conv{index}"
    layers[before] = layer
    if norm != "none":
        before = f"norm{index}"
        layers[before] = norm_layer(
            norm, layer.weight.shape[0], images=isinstance(layer, nn.Conv2d)
        )
    layers[f"relu{index}"] = nn.ReLU()
    return before


def _convolutions(
    channels: int, rows: Iterable[tuple[int, int, int, int, int]], norm: Norm
) -> tuple[OrderedDict[str, nn.Module], list[str]]:
    """Return convolutions and their taps; a row is outputs, kernel, stride, padding and the pooling's kernel, or 0."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    taps: list[str] = []
    for index, (outputs, kernel, stride, padding, pool) in enumerate(rows, start=1):
        conv = nn.Conv2d(channels, outputs, kernel, stride, padding)
        taps.append(with_relu(layers, index, conv, norm))
        if pool:
            layers[f"pool{index}"] = nn.MaxPool2d(pool, stride=2)
        channels = outputs
    return layers, taps


def _fully_connected(
    layers: OrderedDict[str, nn.Module], sizes: Sequence[int], norm: Norm, first: int = 1
) -> list[str]:
    """Append a layer from each size to the next and return their taps; `first` is the number of the first norm."""
    return [
        with_relu(layers, first + i, nn.Linear(*pair), norm, f"fc{i + 1}")
        for i, pair in enumerate(pairwise(sizes))
    ]


def _split(
    layers: OrderedDict[str, nn.Module], classifier: nn.Module, taps: Sequence[str]
) -> SplitModel:
    return SplitModel(nn.Sequential(layers), classifier, [f"features.{tap}" for tap in taps])


@register_model("linear")
def linear(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Multinomial logistic regression on the flattened sample."""
    return SplitModel(nn.Flatten(), nn.Linear(math.prod(shape), num_classes))


@register_model("mlp")
def mlp(
    shape: tuple[int, ...],
    num_classes: int,
    *,
    hidden: Annotated[tuple[Size, ...], Field(min_length=1)] = (200, 200),
    norm: Norm = "none",
) -> nn.Module:
    """Fully connected ReLU network; the default is the 2NN of McMahan et al. (AISTATS 2017): 199,210 at 28x28.

    For vectors, such as the EEG's, too. `norm` puts a normalisation after every layer but the last.
    """
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    sizes = [math.prod(shape), *hidden]
    taps = _fully_connected(layers, sizes, norm)
    return _split(layers, nn.Linear(sizes[-1], num_classes), taps)


@register_model("lenet")
def lenet(shape: tuple[int, ...], num_classes: int, *, norm: Norm = "none") -> nn.Module:
    """LeNet-5 with ReLU and max pooling: 5x5 convolutions 6 and 16, then 120, 84 and the classes (62,006 at 3x32x32).

    `norm` puts a normalisation after every layer but the last.
    """
    return _two_convolutions("lenet", shape, num_classes, (6, 16), (120, 84), norm)


@register_model("cnn")
def cnn(
    shape: tuple[int, ...], num_classes: int, *, norm: Norm = "none", kernels: Size = 16
) -> nn.Module:
    """The network of Fed-CO2's label skew: 5x5 convolutions `kernels` and twice as many, then 120, 84 and the classes.

    The text gives two convolutions and three fully connected layers, the released code 16 kernels.
    ``norm: batch`` is the form that the paper gives to FedBN and Fed-CO2 (a norm after every layer
    but the last).
    """
    return _two_convolutions("cnn", shape, num_classes, (kernels, 2 * kernels), (120, 84), norm)


@register_model("simple-cnn")
def simple_cnn(shape: tuple[int, ...], num_classes: int, *, norm: Norm = "none") -> nn.Module:
    """FCCL+'s SimpleCNN: a LeNet trunk (6, 16, 120, 84), then 84, 256 without a ReLU, and the classes.

    The 256 features end in a linear layer, as in the authors' other releases; FCCL+ only names the
    network.
    """
    model = _two_convolutions("simple-cnn", shape, num_classes, (6, 16), (120, 84, 84), norm)
    model.features.add_module("fc4", nn.Linear(84, 256))
    return SplitModel(model.features, nn.Linear(256, num_classes), model.taps)


@register_model("emnist-cnn")
def emnist_cnn(shape: tuple[int, ...], num_classes: int, *, norm: Norm = "none") -> nn.Module:
    """5x5 convolutions 32 and 64 with padding, then 512 and the classes (1,663,370 at 1x28x28, 10 classes).

    FedSKC only says "a multi-layers CNN for EMNIST" and releases none; this is McMahan et al.'s
    (2017).
    """
    return _two_convolutions("emnist-cnn", shape, num_classes, (32, 64), (512,), norm, padding=2)


@register_model("protonet")
def protonet(
    shape: tuple[int, ...], num_classes: int, *, norm: Norm = "batch", width: Size = 64
) -> nn.Module:
    """Prototypical networks' encoder: four blocks of a 3x3 convolution 64, norm, ReLU and pooling (113,088 parameters).

    Snell, Swersky, Zemel (NeurIPS 2017), with 3 channels; FedSKC names it for FC100. In a few-shot
    task the flattened features are the embedding, without a classifier; otherwise the classifier is
    one linear layer.
    """
    channels, height, pixels_wide = image_shape("protonet", shape, minimum=16)
    layers, taps = _convolutions(channels, [(width, 3, 1, 1, 2)] * 4, norm)
    layers["flatten"] = nn.Flatten()
    flat = width * (height // 16) * (pixels_wide // 16)
    return _split(layers, nn.Linear(flat, num_classes), taps)


def _two_convolutions(
    name: str,
    shape: tuple[int, ...],
    num_classes: int,
    kernels: tuple[int, int],
    hidden: Sequence[int],
    norm: Norm,
    padding: int = 0,
) -> SplitModel:
    lost = 4 - 2 * padding  # pixels that a 5x5 convolution takes off each side length
    channels, height, width = image_shape(name, shape, minimum=4 + 3 * lost)
    rows = [(outputs, 5, 1, padding, 2) for outputs in kernels]
    layers, taps = _convolutions(channels, rows, norm)
    layers["flatten"] = nn.Flatten()
    for _ in kernels:
        height, width = (height - lost) // 2, (width - lost) // 2
    sizes = [kernels[1] * height * width, *hidden]
    taps += _fully_connected(layers, sizes, norm, len(kernels) + 1)
    return _split(layers, nn.Linear(sizes[-1], num_classes), taps)


Split = Literal["head", "fc"]
Width = Annotated[float, Field(gt=0, le=4)]


@register_model("digit-cnn")
def digit_cnn(
    shape: tuple[int, ...],
    num_classes: int,
    *,
    layers: Literal[3, 4] = 3,
    norm: Norm = "batch",
    classifier_norm: bool = True,
    split: Split = "fc",
    width: Width = 1.0,
) -> nn.Module:
    """FedBN's digit network: 5x5 convolutions 64, 64, 128 and fully connected 2048, 512 and the classes.

    Max pooling follows the first two convolutions; at 28x28 the first fully connected layer has
    128*7*7 = 6272 inputs.

    Parameters
    ----------
    shape : tuple of int
        ``(channels, height, width)``, at least 4x4.
    num_classes : int
        Number of logits.
    layers : {3, 4}
        Convolutions. Fed-CO2's text says four, without their sizes; its code and FedBN have three.
        The fourth repeats the third: 128 to 128.
    norm : {"batch", "group", "none"}
        Normalisation after every layer but the last.
    classifier_norm : bool
        False leaves it out of the fully connected layers, as Fed-CO2's authors do for every method
        but FedBN and Fed-CO2.
    split : {"fc", "head"}
        The classifier is all three fully connected layers with their norms (Fed-CO2), or the last
        layer only.
    width : float
        Factor on all channels and hidden sizes, to run it on a small machine.
    """
    channels, height, pixels_wide = image_shape("digit-cnn", shape, minimum=4)
    table = ((64, 2), (64, 2), (128, 0), (128, 0))  # outputs, pooled
    rows = [(_scaled(size, width), 5, 1, 2, pool) for size, pool in table[:layers]]
    trunk, taps = _convolutions(channels, rows, norm)
    flat = rows[-1][0] * (height // 4) * (pixels_wide // 4)
    hidden = (_scaled(2048, width), _scaled(512, width))
    norm = norm if classifier_norm else "none"
    return _with_classifier(trunk, taps, (flat, *hidden), num_classes, norm, split)


@register_model("alexnet")
def alexnet(
    shape: tuple[int, ...],
    num_classes: int,
    *,
    norm: Norm = "batch",
    classifier_norm: bool = True,
    split: Split = "fc",
    width: Width = 1.0,
) -> nn.Module:
    """AlexNet with a norm after every layer but the last and no dropout (FedBN, Fed-CO2; images of 256x256).

    57,063,498 parameters with 10 classes; 54,591,498 of them are in the fully connected layers.
    Options as in `digit_cnn`.
    """
    channels, _, _ = image_shape("alexnet", shape, minimum=63)
    rows = [
        (_scaled(64, width), 11, 4, 2, 3),
        (_scaled(192, width), 5, 1, 2, 3),
        (_scaled(384, width), 3, 1, 1, 0),
        (_scaled(256, width), 3, 1, 1, 0),
        (_scaled(256, width), 3, 1, 1, 3),
    ]
    trunk, taps = _convolutions(channels, rows, norm)
    trunk["average"] = nn.AdaptiveAvgPool2d(6)
    sizes = (rows[-1][0] * 36, _scaled(4096, width), _scaled(4096, width))
    norm = norm if classifier_norm else "none"
    return _with_classifier(trunk, taps, sizes, num_classes, norm, split)


def _with_classifier(
    trunk: OrderedDict[str, nn.Module],
    taps: list[str],
    sizes: tuple[int, int, int],
    num_classes: int,
    norm: Norm,
    split: Split,
) -> SplitModel:
    """Return trunk, flatten and three fully connected layers, cut before the first or before the last of them."""
    trunk["flatten"] = nn.Flatten()
    part = trunk if split == "head" else OrderedDict[str, nn.Module]()
    inner = _fully_connected(part, sizes, norm, len(taps) + 1)
    last = nn.Linear(sizes[2], num_classes)
    if split == "head":
        return _split(trunk, last, taps + inner)
    part["fc3"] = last
    names = [*(f"features.{tap}" for tap in taps), *(f"classifier.{tap}" for tap in inner)]
    return SplitModel(nn.Sequential(trunk), nn.Sequential(part), names)


def _scaled(size: int, width: float) -> int:
    return max(1, round(size * width))


def double_convolution(inputs: int, outputs: int, norm: Norm) -> nn.Sequential:
    """Two 3x3 convolutions, each with norm and ReLU; with a norm they have no bias."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for index, size in enumerate((inputs, outputs), start=1):
        conv = nn.Conv2d(size, outputs, 3, padding=1, bias=norm == "none")
        with_relu(layers, index, conv, norm)
    return nn.Sequential(layers)


class UNetFeatures(nn.Module):
    """A U-Net up to its last 1x1 convolution: images [B, C, H, W] to maps [B, width, H, W].

    Parameters
    ----------
    channels : int
        C.
    width : int
        Channels of the first level; each level down has twice as many and half the height and
        width.
    depth : int
        Levels down.
    norm : {"batch", "group", "none"}
        Normalisation after every 3x3 convolution.
    """

    def __init__(self, channels: int, width: int, depth: int, norm: Norm) -> None:
        super().__init__()
        sizes = [width * 2**level for level in range(depth + 1)]
        self.down = nn.ModuleList(
            double_convolution(inputs, outputs, norm)
            for inputs, outputs in zip([channels, *sizes], sizes[:-1], strict=False)
        )
        self.middle = double_convolution(sizes[-2], sizes[-1], norm)
        self.up = nn.ModuleList(
            nn.ConvTranspose2d(2 * size, size, 2, stride=2) for size in reversed(sizes[:-1])
        )
        self.merge = nn.ModuleList(
            double_convolution(2 * size, size, norm) for size in reversed(sizes[:-1])
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return the last level's maps."""
        passed: list[Tensor] = []
        for down in self.down:
            x = down(x)
            passed.append(x)
            x = nn.functional.max_pool2d(x, 2)
        x = self.middle(x)
        for up, merge in zip(self.up, self.merge, strict=True):
            x = merge(torch.cat([passed.pop(), up(x)], 1))
        return x


@register_model("unet")
def unet(
    shape: tuple[int, ...],
    num_classes: int,
    *,
    norm: Norm = "batch",
    width: Annotated[int, Field(ge=1, description="channels of the first level")] = 32,
    depth: Annotated[int, Field(ge=1, le=6, description="levels down")] = 4,
) -> nn.Module:
    """U-Net with batch norm (Ronneberger et al. 2015): 7,763,074 parameters with 3 channels and 2 structures.

    LG-Mix names a U-Net without its sizes and releases none; this is the common form for small
    federations, half of Ronneberger's channels and same-size convolutions. The classifier is the
    last 1x1 convolution, one output map per structure. Height and width must be multiples of
    2^depth.
    """
    channels, height, pixels_wide = image_shape("unet", shape, minimum=2**depth)
    if height % 2**depth or pixels_wide % 2**depth:
        raise FlrayError(
            f"model 'unet' with depth {depth} needs a height and width that are multiples of "
            f"{2**depth}, found {height}x{pixels_wide}; resize the images or take a smaller depth"
        )
    last = "norm2" if norm != "none" else "conv2"
    taps = [
        *(f"down.{level}.{last}" for level in range(depth)),
        f"middle.{last}",
        *(f"merge.{level}.{last}" for level in range(depth)),
    ]
    return SplitModel(
        UNetFeatures(channels, width, depth, norm),
        nn.Conv2d(width, num_classes, 1),
        [f"features.{tap}" for tap in taps],
    )
