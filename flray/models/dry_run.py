"""A network's outputs for a data set's samples, found by a trial run before training."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from flray.errors import ConfigError


def dry_run(name: str, model: nn.Module, shape: Sequence[int]) -> Any:
    """Return a network's outputs for one sample, in evaluation mode.

    Parameters
    ----------
    name : str
        The user's name for it; the message shows it.
    model : nn.Module
        Not changed. It runs on zeros, because torch's meta device would need seconds of imports.
    shape : sequence of int
        Shape of one sample.

    Raises
    ------
    ConfigError
        If the network cannot take such samples.
    """
    training = model.training
    model.eval()
    dtype = next((value.dtype for value in model.parameters()), torch.float32)
    try:
        with torch.no_grad():
            return model(torch.zeros(1, *shape, dtype=dtype))
    except Exception as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(
            "experiment.model",
            name,
            f"it cannot take this data's samples {list(shape)} ({why}); choose another network, "
            "or options that fit (`flray list models NAME`)",
        ) from None
    finally:
        model.train(training)
