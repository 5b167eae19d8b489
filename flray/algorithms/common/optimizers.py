"""Local optimisers, and their memory as a tree that can outlast a stage of a round."""

import math
from collections.abc import Mapping

import torch
from torch import nn

from flray import trees
from flray.algorithms.types import Message
from flray.config.experiment import Local
from flray.devices import transfers
from flray.trees import Tree


def learning_rate(local: Local, round: int, rounds: int) -> float:
    """Return a round's learning rate: `local.lr` decayed by `local.lr_decay`, times the factor of schedule or warm-up.

    The decay is `lr_decay` to the power of the round. In W rounds of warm-up the factor is ``(round
    + 1) / W``; then a cosine schedule has ``(1 + cos(pi (round - W) / (rounds - W))) / 2``
    (Loshchilov and Hutter, ICLR 2017, Eq. 5, once).

    Parameters
    ----------
    local : Local
        The settings.
    round, rounds : int
        From 0; how many there are.
    """
    lr = local.lr * local.lr_decay**round
    if round < local.warmup:
        return lr * (round + 1) / local.warmup
    if local.schedule == "cosine":
        done = (round - local.warmup) / (rounds - local.warmup)
        return lr * (1 + math.cos(math.pi * done)) / 2
    return lr


def make_optimizer(
    parameters: list[nn.Parameter], local: Local, round: int, rounds: int
) -> torch.optim.Optimizer:
    """Return a fresh optimiser.

    Parameters
    ----------
    parameters : list of Parameter
        The parameters that it may change.
    local : Local
        Its settings.
    round, rounds : int
        From 0; how many there are. They decide the `learning_rate`.
    """
    lr = learning_rate(local, round, rounds)
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
    """Return a copy of an optimiser's memory of each parameter, by the parameter's name."""
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
