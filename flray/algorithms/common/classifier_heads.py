"""Classifiers that travel apart from the rest of the model, and come back as frozen modules."""

import copy
from collections.abc import Mapping

from torch import Tensor, nn

from flray.algorithms.client import Client
from flray.models import as_split


def classifier_of(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the classifier's entries of a split model's state."""
    return {name: value for name, value in weights.items() if name.startswith("classifier.")}


def heads_of(client: Client) -> list[nn.Module]:
    """Return all clients' classifiers, in client order, frozen and in eval mode, over the message's own tensors."""
    heads: Mapping[str, Mapping[str, Tensor]] = client.message.get("heads", {})
    if not heads:
        return []
    classifier = as_split(client.model).classifier
    skeleton = _shapes_of(classifier)  # so that no head is copied
    modules: list[nn.Module] = []
    for index in sorted(map(int, heads)):
        module = copy.deepcopy(skeleton)
        state = {
            name.removeprefix("classifier."): value for name, value in heads[str(index)].items()
        }
        module.load_state_dict(state, assign=True)
        modules.append(module.requires_grad_(False).eval())
    return modules


def _shapes_of(module: nn.Module) -> nn.Module:
    """Return a copy of a module whose tensors have no values."""
    empty: dict[int, Tensor] = {
        id(one): nn.Parameter(one.to("meta"), requires_grad=False) for one in module.parameters()
    }
    empty |= {id(one): one.to("meta") for one in module.buffers()}
    return copy.deepcopy(module, {**empty})
