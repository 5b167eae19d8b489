"""What a network returns for a data set's samples, found out before anything is trained."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import nn
from torch.func import functional_call

from flray.errors import ConfigError


def tried(name: str, model: nn.Module, shape: Sequence[int]) -> Any:
    """Return what a network returns for a batch of two samples, in evaluation.

    Parameters
    ----------
    name : str
        As the user calls it.
    model : nn.Module
        Not changed. It is run on shapes alone, on torch's meta device; one that cannot be, on zeros.
    shape : sequence of int
        Of one sample.

    Raises
    ------
    ConfigError
        If it cannot take such samples.
    """
    training = model.training
    model.eval()
    dtype = next((value.dtype for value in model.parameters()), torch.float32)
    try:
        with torch.no_grad():
            try:
                entries = {key: torch.empty_like(value, device="meta")
                           for key, value in chain(model.named_parameters(), model.named_buffers())}
                return functional_call(model, entries, (torch.empty(2, *shape, dtype=dtype, device="meta"),))
            except Exception:
                return model(torch.zeros(2, *shape, dtype=dtype))
    except Exception as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError("experiment.model", name, f"it cannot take this data's samples {list(shape)} ({why}); choose "
                          "another network, or options that fit (`flray list models NAME`)") from None
    finally:
        model.train(training)
