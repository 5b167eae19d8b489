"""Local optimisers, and their memory as a tree where it must outlast one stage of a round."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from flray import trees
from flray.algorithms.types import Message
from flray.config.experiment import Local
from flray.devices import transfers
from flray.trees import Tree


def make_optimizer(
    parameters: list[nn.Parameter], local: Local, round: int
) -> torch.optim.Optimizer:
    """Return a fresh optimiser.

    Parameters
    ----------
    parameters : list of Parameter
        What it may change.
    local : Local
        Its settings.
    round : int
        From 0; the learning rate is ``lr * lr_decay**round``.
    """
    lr = local.lr * local.lr_decay**round
    if not parameters:
        parameters = [nn.Parameter(torch.zeros(()))]
    if local.optimizer == "sgd":
        return torch.optim.SGD(
            parameters, lr=lr, momentum=local.momentum, weight_decay=local.weight_decay
        )
    kind = torch.optim.Adam if local.optimizer == "adam" else torch.optim.AdamW
    return kind(parameters, lr=lr, betas=local.betas, weight_decay=local.weight_decay)


def optimizer_state(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]
) -> Message:
    """Return copies of what an optimiser remembers of each parameter, by the parameter's name."""
    return {
        name: trees.clone(optimizer.state[w])
        for name, w in parameters.items()
        if w in optimizer.state
    }


def load_optimizer_state(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter], kept: Tree
) -> None:
    """Give a fresh optimiser the memory that `optimizer_state` returned.

    Adam counts its steps on the host, wherever the parameters are: on a device each step would wait
    for each parameter's counter.
    """
    counters = transfers.to_host([state["step"] for state in kept.values() if "step" in state])
    steps = iter(counters)
    for name, state in kept.items():
        own = {**state, "step": next(steps)} if "step" in state else state
        optimizer.state[parameters[name]] = trees.clone(own)
