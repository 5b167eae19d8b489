"""Clients of a single sample, and batches of one: refused before round 0 where batch norm cannot be trained on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import nn

from flray.errors import ConfigError
from flray.models.groups import supports_single_sample
from flray.tasks.few_shot import FewShot

if TYPE_CHECKING:
    from flray.federation.spec import FederationSpec


def check_single_sample_batch_norm(spec: FederationSpec, key: str, model: nn.Module) -> None:
    """Refuse batches of one sample where batch norm cannot be trained on them.

    A last batch of one sample is left out of an epoch (`flray.algorithms.common.batches`); here
    there is nothing else.

    Parameters
    ----------
    spec : FederationSpec
        The federation.
    key : str
        One of its architectures.
    model : nn.Module
        A network of it, whose values are gone afterwards.

    Raises
    ------
    ConfigError
        Naming the clients or the batch size, and what to change.
    """
    config, data = spec.config, spec.data
    if config.faults.on_client_error == "skip" or isinstance(spec.task, FewShot):
        return  # those clients are left out and reported; an episode is never of one sample
    lone = [
        client.name
        for client, architecture in zip(data.clients, spec.architecture_of, strict=True)
        if architecture == key and len(client.train) == 1
    ]
    if (not lone and config.local.batch_size > 1) or supports_single_sample(model, data.shape):
        return
    why = f"{key} has batch norm of single values (fully connected layers or 1x1 maps), which one sample cannot train"
    if lone:
        raise ConfigError(
            "experiment.partition",
            f"one training sample at {', '.join(lone[:5])}",
            f"{why}; give every client two (min_size: 2, fewer clients, less skew), take another "
            f"norm "
            "(norm: group), or leave such clients out (faults.on_client_error: skip)",
        )
    raise ConfigError(
        "experiment.local.batch_size", "1", f"{why}; at least 2, or another norm (norm: group)"
    )
