"""Networks for small data: linear, multi-layer perceptron and the LeNet family.

Layer names: ``convN``, ``fcN`` with ``normN``, ``reluN`` and ``poolN`` after them; a layer that an
option leaves out is not there at all. ReLUs do not work in place, because the layer before them may
be tapped.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Annotated

from pydantic import Field
from torch import nn

from flray.models.base import SplitModel, image_shape
from flray.models.groups import Norm, norm_layer
from flray.registry import register_model

Size = Annotated[int, Field(ge=1)]


def convolution(
    layers: OrderedDict[str, nn.Module], index: int, conv: nn.Conv2d, norm: Norm
) -> str:
    """Append ``conv``, norm and ReLU number `index` to `layers`; return the name of the layer before the ReLU."""
    return _with_activation(
        layers, index, f"conv{index}", conv, norm_layer(norm, conv.out_channels)
    )


def fully_connected(
    layers: OrderedDict[str, nn.Module], index: int, linear: nn.Linear, norm: Norm, name: str
) -> str:
    """Append a linear layer, norm and ReLU to `layers`; return the name of the layer before the ReLU.

    Parameters
    ----------
    layers : OrderedDict
        Where to append.
    index : int
        Number of the norm and ReLU.
    linear : nn.Linear
        The layer.
    norm : {"batch", "group", "none"}
        Normalisation between the layer and its ReLU.
    name : str
        The linear layer's own name.
    """
    return _with_activation(
        layers, index, name, linear, norm_layer(norm, linear.out_features, images=False)
    )


def _with_activation(
    layers: OrderedDict[str, nn.Module], index: int, name: str, layer: nn.Module, norm: nn.Module
) -> str:
    layers[name] = layer
    before = name
    if not isinstance(norm, nn.Identity):
        before = f"norm{index}"
        layers[before] = norm
    layers[f"relu{index}"] = nn.ReLU()
    return before


@register_model("linear")
def linear(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """Multinomial logistic regression on the flattened sample."""
    return SplitModel(nn.Flatten(), nn.Linear(_count(shape), num_classes))


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
    sizes = [_count(shape), *hidden]
    taps = [
        fully_connected(layers, i, nn.Linear(sizes[i - 1], sizes[i]), norm, f"fc{i}")
        for i in range(1, len(sizes))
    ]
    return SplitModel(
        nn.Sequential(layers),
        nn.Linear(sizes[-1], num_classes),
        [f"features.{tap}" for tap in taps],
    )


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
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    taps: list[str] = []
    for index in range(1, 5):
        taps.append(convolution(layers, index, nn.Conv2d(channels, width, 3, padding=1), norm))
        layers[f"pool{index}"] = nn.MaxPool2d(2)
        channels = width
    layers["flatten"] = nn.Flatten()
    flat = width * (height // 16) * (pixels_wide // 16)
    return SplitModel(
        nn.Sequential(layers), nn.Linear(flat, num_classes), [f"features.{tap}" for tap in taps]
    )


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
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    taps: list[str] = []
    for index, (inputs, outputs) in enumerate(
        zip((channels, kernels[0]), kernels, strict=True), start=1
    ):
        taps.append(
            convolution(layers, index, nn.Conv2d(inputs, outputs, 5, padding=padding), norm)
        )
        layers[f"pool{index}"] = nn.MaxPool2d(2)
        height, width = (height - lost) // 2, (width - lost) // 2
    layers["flatten"] = nn.Flatten()
    sizes = [kernels[1] * height * width, *hidden]
    for index in range(1, len(sizes)):
        fc = nn.Linear(sizes[index - 1], sizes[index])
        taps.append(fully_connected(layers, 2 + index, fc, norm, f"fc{index}"))
    return SplitModel(
        nn.Sequential(layers),
        nn.Linear(sizes[-1], num_classes),
        [f"features.{tap}" for tap in taps],
    )


def _count(shape: tuple[int, ...]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count
