"""Groups of a model's state (features, classifier, batch norm), and the layers that methods compare.

Batch norm is found by module type, not by name: the norm in a ResNet's shortcut has no "bn" in its
name.
"""

import math
import re
from collections.abc import Sequence
from typing import Literal

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from flray.errors import FlrayError, nearest
from flray.models.base import as_split

GROUPS = ("all", "none", "features", "classifier", "batch_norm", "not_batch_norm", "buffers")
Norm = Literal["batch", "group", "none"]
_MAX_GROUPS = 32  # Wu and He, Group Normalization, ECCV 2018, Table 3


def select(model: nn.Module, group: str) -> frozenset[str]:
    """Return the names of a group's entries in ``model.state_dict()``, parameters and buffers alike.

    Parameters
    ----------
    model : nn.Module
        Any model; the groups ``features`` and ``classifier`` need the split.
    group : str
        One of `GROUPS`, or several joined by ``+`` (union) and ``-`` (difference), read from left
        to right: ``"features-batch_norm"``, ``"classifier+batch_norm"``.

    Raises
    ------
    FlrayError
        If a name is unknown (the message gives the nearest one) or the model lacks the split.
    """
    first, *rest = re.split(r"([+-])", group)
    chosen = _group(model, first.strip(), group)
    for operator, name in zip(rest[::2], rest[1::2], strict=True):
        other = _group(model, name.strip(), group)
        chosen = chosen | other if operator == "+" else chosen - other
    return chosen


def complement(group: str) -> str:
    """Return the group of everything that is not in a group: ``"all-classifier-buffers"`` for ``"classifier+buffers"``.

    Groups are read from left to right, so the complement of a union is a difference and the other
    way round.
    """
    return "all-" + group.translate(str.maketrans("+-", "-+"))


def _group(model: nn.Module, name: str, expression: str) -> frozenset[str]:
    names = frozenset(model.state_dict())
    if name == "all":
        return names
    if name == "none":
        return frozenset()
    if name == "buffers":
        return names - {n for n, _ in model.named_parameters()}
    if name in ("features", "classifier"):
        return frozenset(n for n in as_split(model).state_dict() if n.startswith(f"{name}."))
    if name in ("batch_norm", "not_batch_norm"):
        prefixes = tuple(f"{path}." if path else "" for path, _ in batch_norm_modules(model))
        norm = frozenset(n for n in names if n.startswith(prefixes))
        return norm if name == "batch_norm" else names - norm
    where = "" if name == expression else f" in {expression!r}"
    raise FlrayError(
        f"unknown parameter group {name!r}{where}{nearest(name, GROUPS)}; groups are "
        f"{', '.join(GROUPS)}, joined by + (union) and - (difference)"
    )


def batch_norm_modules(model: nn.Module) -> list[tuple[str, _BatchNorm]]:
    """Return ``(dotted name, module)`` of every batch norm of any dimension, in the model's order."""
    found = model.named_modules(remove_duplicate=False)
    return [(name, module) for name, module in found if isinstance(module, _BatchNorm)]


def supports_single_sample(model: nn.Module, shape: Sequence[int]) -> bool:
    """Tell whether a network can be trained on a batch of a single sample, by a dry run on shapes alone.

    Batch norm cannot if a sample has one value per channel, as in fully connected layers. A network
    that does not run on shapes alone is assumed to support it.

    Parameters
    ----------
    model : nn.Module
        Moved to the meta device: its values are gone afterwards.
    shape : sequence of int
        Shape of one sample.
    """
    if not batch_norm_modules(model):
        return True
    entry = next(model.parameters())
    try:
        model.to("meta").train()(torch.empty(1, *shape, dtype=entry.dtype, device="meta"))
    except ValueError:  # torch's for a batch norm without a variance
        return False
    except Exception:
        return True
    return True


def layer_taps(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return ``(dotted name, module)`` of the layers that multi-layer methods compare, shallow to deep.

    Their outputs are taken with forward hooks. The built-in networks are tapped before the ReLU
    that ends a stage (FedRCL compares pre-activations) and never write in place into a tapped
    output; five taps for the ResNets with four stages. A user's split model may name its tapped
    layers in a ``taps`` attribute. Otherwise they are the direct children of ``features`` that have
    parameters.

    Raises
    ------
    FlrayError
        If the model has no such layer.
    """
    names: tuple[str, ...] = tuple(getattr(model, "taps", ()))
    if not names:
        children = as_split(model).features.named_children()
        names = tuple(
            f"features.{name}" for name, child in children if any(True for _ in child.parameters())
        )
    modules = dict(model.named_modules())
    unknown = [name for name in names if name not in modules]
    if unknown:
        raise FlrayError(
            f"model {type(model).__name__}: no submodule {unknown[0]!r}{nearest(unknown[0], modules)}"
        )
    if not names:
        raise FlrayError(
            f"model {type(model).__name__} has no layers before its classifier, which this method "
            "compares; choose a deeper one, for example 'mlp' or 'lenet'"
        )
    return [(name, modules[name]) for name in names]


def norm_layer(norm: Norm, channels: int, *, images: bool = True) -> nn.Module:
    """Return a normalisation layer for `channels` channels; ``nn.Identity`` for ``"none"``.

    Parameters
    ----------
    norm : {"batch", "group", "none"}
        Group norm uses the most groups, up to 32, that leave at least two channels in each; on flat
        features it uses one group, since the few values in a small group would be normalised to
        almost nothing.
    channels : int
        Channels of images, or size of flat features.
    images : bool
        Whether the input is [B, C, H, W] or flat [B, C].
    """
    if norm == "batch":
        return nn.BatchNorm2d(channels) if images else nn.BatchNorm1d(channels)
    if norm == "group":
        divisible = images and channels % 2 == 0
        return nn.GroupNorm(math.gcd(_MAX_GROUPS, channels // 2) if divisible else 1, channels)
    return nn.Identity()
