"""The weights that training starts from, where these are not fresh: ``experiment.start``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor, nn

from flray.config.start import Start
from flray.errors import ConfigError
from flray.federation.tree_files import tree_from_bytes

Weights = Mapping[str, Tensor]
FIELD = "experiment.start"


def read_start(start: Start | None) -> dict[str, Weights]:
    """Return the weights of ``experiment.start`` by architecture; those of a plain file under no name.

    Parameters
    ----------
    start : Start or None
        The file, with its digest.

    Raises
    ------
    ConfigError
        If it is gone, is not the one that was there when the run began, or holds no weights.
    """
    if start is None:
        return {}
    path, data = Path(start.weights), start.read(FIELD)
    try:
        if path.name.startswith("server-"):  # of a run's checkpoint
            return dict(tree_from_bytes(data)["models"])
        return {"": safetensors.torch.load(data)}
    except (KeyError, ValueError, SafetensorError):
        raise ConfigError(
            FIELD, str(path), "it holds no weights; a safetensors file is needed"
        ) from None


def load_start(model: nn.Module, key: str, start: Mapping[str, Weights]) -> None:
    """Copy the weights that training starts from into a fresh network; what they lack stays fresh.

    Parameters
    ----------
    model : nn.Module
        The network, changed in place.
    key : str
        Its architecture. Where several weights are there, those of that name are taken.
    start : mapping of str to mapping
        From `read_start`; empty for none.

    Raises
    ------
    ConfigError
        If they are another network's.
    """
    if not start:
        return
    if key not in start and len(start) > 1:
        raise ConfigError(FIELD, ", ".join(start), f"none is called {key}, as a network here is")
    weights = start[key] if key in start else next(iter(start.values()))
    entries = model.state_dict()
    for name, value in weights.items():
        ours = entries.get(name)
        if ours is None or ours.shape != value.shape:
            has = "has none" if ours is None else f"has {tuple(ours.shape)}"
            raise ConfigError(
                FIELD,
                f"{name} of shape {tuple(value.shape)}",
                f"{key} {has}: weights of the same network are needed",
            )
        ours.copy_(value)
