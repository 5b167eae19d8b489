"""U-Net with batch norm, for LG-Mix's retinal segmentation."""

from collections import OrderedDict
from typing import Annotated

import torch
from pydantic import Field
from torch import Tensor, nn

from flray.errors import FlrayError
from flray.models.base import SplitModel, image_shape
from flray.models.groups import Norm
from flray.models.small import convolution
from flray.registry import register_model


def double_convolution(inputs: int, outputs: int, norm: Norm) -> nn.Sequential:
    """Two 3x3 convolutions, each with norm and ReLU; with a norm they have no bias."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for index, size in enumerate((inputs, outputs), start=1):
        convolution(
            layers, index, nn.Conv2d(size, outputs, 3, padding=1, bias=norm == "none"), norm
        )
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
