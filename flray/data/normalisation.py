"""The mean and deviation by which 8-bit images are normalised, where they are not the data set's own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from flray.config.sections import Normalisation
from flray.data.types import FederatedData
from flray.errors import ConfigError

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and deviation of ImageNet's red, green and blue, as torchvision's networks want them."""


def with_normalisation(data: FederatedData, how: Normalisation) -> FederatedData:
    """Return federated data whose images are normalised as ``normalisation`` says.

    Parameters
    ----------
    data : FederatedData
        With the data set's own mean and deviation.
    how : Normalisation
        The setting.

    Raises
    ------
    ConfigError
        If samples are no 8-bit images, or have other channels than there are values.
    """
    if how == "data":
        return data
    mean: tuple[float, ...]
    std: tuple[float, ...]
    if isinstance(how, str):
        found: str = how
        mean, std = IMAGENET if how == "imagenet" else ((0.0,), (1.0,))
    else:
        found, mean, std = f"mean of {len(how.mean)} values", how.mean, how.std
    if data.x.dtype != np.uint8:
        raise ConfigError(
            "experiment.normalisation",
            found,
            f"samples of {data.dataset} are no 8-bit images but {data.x.dtype}, which are taken as "
            "they are; data",
        )
    if len(mean) not in (1, data.shape[0]):
        raise ConfigError(
            "experiment.normalisation",
            found,
            f"images of {data.dataset} have {data.shape[0]} channels; give mean and std of 1 or "
            f"{data.shape[0]} values, or data",
        )
    return replace(data, mean=mean, std=std)
