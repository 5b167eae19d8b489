"""FedBN's two networks, used by Fed-CO2 and LG-Mix too: the digit CNN and AlexNet with batch norm."""

from collections import OrderedDict
from typing import Annotated, Literal

from pydantic import Field
from torch import nn

from flray.models.base import SplitModel, image_shape
from flray.models.groups import Norm
from flray.models.small import convolution, fully_connected
from flray.registry import register_model

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
    trunk: OrderedDict[str, nn.Module] = OrderedDict()
    taps: list[str] = []
    for index, size in enumerate((64, 64, 128, 128)[:layers], start=1):
        outputs = _scaled(size, width)
        taps.append(convolution(trunk, index, nn.Conv2d(channels, outputs, 5, padding=2), norm))
        if index <= 2:
            trunk[f"pool{index}"] = nn.MaxPool2d(2)
        channels = outputs
    flat = channels * (height // 4) * (pixels_wide // 4)
    hidden = (_scaled(2048, width), _scaled(512, width))
    return _with_classifier(
        trunk, taps, (flat, *hidden), num_classes, norm if classifier_norm else "none", split
    )


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
    trunk: OrderedDict[str, nn.Module] = OrderedDict()
    taps: list[str] = []
    # outputs, kernel, stride, padding, pooled
    table = (
        (64, 11, 4, 2, True),
        (192, 5, 1, 2, True),
        (384, 3, 1, 1, False),
        (256, 3, 1, 1, False),
        (256, 3, 1, 1, True),
    )
    for index, (size, kernel, stride, padding, pooled) in enumerate(table, start=1):
        outputs = _scaled(size, width)
        taps.append(
            convolution(trunk, index, nn.Conv2d(channels, outputs, kernel, stride, padding), norm)
        )
        if pooled:
            trunk[f"pool{index}"] = nn.MaxPool2d(3, stride=2)
        channels = outputs
    trunk["average"] = nn.AdaptiveAvgPool2d(6)
    sizes = (channels * 36, _scaled(4096, width), _scaled(4096, width))
    return _with_classifier(
        trunk, taps, sizes, num_classes, norm if classifier_norm else "none", split
    )


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
    convolutions = len(taps)
    names = [f"features.{tap}" for tap in taps]
    part = trunk if split == "head" else OrderedDict[str, nn.Module]()
    for index in (1, 2):
        fc = nn.Linear(sizes[index - 1], sizes[index])
        tap = fully_connected(part, convolutions + index, fc, norm, f"fc{index}")
        names.append(f"{'features' if split == 'head' else 'classifier'}.{tap}")
    last = nn.Linear(sizes[2], num_classes)
    if split == "head":
        return SplitModel(nn.Sequential(trunk), last, names)
    part["fc3"] = last
    return SplitModel(nn.Sequential(trunk), nn.Sequential(part), names)


def _scaled(size: int, width: float) -> int:
    return max(1, round(size * width))
