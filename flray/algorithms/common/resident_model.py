"""One architecture's resident model in one process."""

import copy
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from flray import trees
from flray.models import groups


class ResidentModel:
    """One architecture's model in one process, with facts about it; every task sets all of its values.

    Parameters
    ----------
    model : nn.Module
        Freshly initialised; its values at this moment are the initial ones of every client and the
        server.
    shared : str
        Group that travels.
    local_buffers : bool
        Whether floating buffers are taken out of the shared group.
    """

    def __init__(self, model: nn.Module, shared: str, local_buffers: bool) -> None:
        self.model = model
        self.entries: dict[str, Tensor] = dict(model.state_dict(keep_vars=True))
        self.parameters: dict[str, nn.Parameter] = dict(model.named_parameters())
        self.initial: dict[str, Tensor] = trees.clone(self.entries)
        names = groups.select(model, shared)
        if local_buffers:
            names = names & self.parameters.keys()
        self.shared = frozenset(names)
        self.personal = frozenset(self.entries.keys() - names)
        self.batch_norm = bool(groups.select(model, "batch_norm"))
        self.random = any(
            isinstance(m, nn.modules.dropout._DropoutNd) or "stochastic" in type(m).__name__.lower()
            for m in model.modules()
        )
        self.frozen_copies: dict[str, nn.Module] = {}

    @torch.no_grad()
    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Copy values into the model, in place."""
        for name, value in weights.items():
            self.entries[name].copy_(value)

    def frozen(self, role: str) -> nn.Module:
        """Return a second model of the same architecture for reference values (one per role, reused)."""
        if role not in self.frozen_copies:
            model = copy.deepcopy(self.model)
            self.frozen_copies[role] = model.requires_grad_(False)
        return self.frozen_copies[role].eval()
