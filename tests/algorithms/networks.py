"""Networks that the tests of single methods need besides those of conftest, and a digest to compare methods by."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn

from flray import registry, trees
from flray.federation.federation import Federation
from flray.models import SplitModel


def models_sha(federation: Federation) -> str:
    """Return the digest of the global models alone, comparable between methods with different memories."""
    return trees.sha256(federation.server.models)


@registry.register_model("linear-body")
def linear_body(shape: tuple[int, ...], num_classes: int, *, width: int = 5) -> nn.Module:
    """No bias and no activation, so that a closed form is short."""
    body = nn.Sequential(OrderedDict(first=nn.Linear(shape[0], width, bias=False)))
    return SplitModel(body, nn.Linear(width, num_classes, bias=False), ["features.first"])


@registry.register_model("deep-classifier")
def deep_classifier(shape: tuple[int, ...], num_classes: int) -> nn.Module:
    """A classifier of several layers, with batch norm and dropout."""
    head = nn.Sequential(nn.Linear(5, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Dropout(0.2), nn.Linear(6, num_classes))
    return SplitModel(nn.Sequential(nn.Linear(shape[0], 5), nn.ReLU()), head)
