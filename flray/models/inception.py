"""GoogLeNet in the 32x32 form of FCCL+: nine inception blocks with batch norm behind one 3x3 convolution."""

from collections import OrderedDict

import torch
from torch import Tensor, nn

from flray.models.base import SplitModel, image_shape
from flray.models.groups import norm_layer
from flray.models.resnet import BlockNorm
from flray.registry import register_model

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
        self.one = _convolution(inputs, one, 1, norm)
        self.three = nn.Sequential(
            _convolution(inputs, reduce3, 1, norm), _convolution(reduce3, three, 3, norm)
        )
        self.five = nn.Sequential(
            _convolution(inputs, reduce5, 1, norm),
            _convolution(reduce5, five, 3, norm),
            _convolution(five, five, 3, norm),
        )
        self.pooled = nn.Sequential(
            nn.MaxPool2d(3, stride=1, padding=1), _convolution(inputs, pooled, 1, norm)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return [B, one + three + five + pooled, H, W]."""
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pooled(x)], dim=1)


def _convolution(inputs: int, outputs: int, kernel: int, norm: BlockNorm) -> nn.Sequential:
    return nn.Sequential(
        OrderedDict[str, nn.Module](
            conv=nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2),
            norm=norm_layer(norm, outputs),
            relu=nn.ReLU(),
        )
    )


@register_model("googlenet")
def googlenet(shape: tuple[int, ...], num_classes: int, *, norm: BlockNorm = "batch") -> nn.Module:
    """GoogLeNet for 32x32 without auxiliary classifiers or dropout (6,166,250 parameters with 10 classes).

    Its stages are tapped after their ReLUs, which are inside the branches.
    """
    inputs, *_ = image_shape("googlenet", shape, 4)
    layers = OrderedDict[str, nn.Module](stem=_convolution(inputs, 192, 3, norm))
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
