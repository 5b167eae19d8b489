"""Further optimisers of torch by name; a process that makes one imports torch's compiler first, which takes seconds.

An optimiser is a function of ``parameters`` and of any of ``lr``, ``momentum``, ``weight_decay`` and ``betas``, the
settings of ``local``. Its keyword-only parameters are its options.
"""

from typing import Annotated

import torch
from pydantic import Field
from torch import nn
from torch.optim import Optimizer

from flray.registry import register_optimizer

Parameters = list[nn.Parameter]


@register_optimizer("nesterov")
def nesterov(parameters: Parameters, lr: float, momentum: float, weight_decay: float) -> Optimizer:
    """SGD with Nesterov's momentum, ``local.momentum`` (torch.optim.SGD)."""
    sgd = torch.optim.SGD
    return sgd(parameters, lr, momentum, weight_decay=weight_decay, nesterov=momentum > 0)


@register_optimizer("rmsprop")
def rmsprop(
    parameters: Parameters,
    lr: float,
    momentum: float,
    weight_decay: float,
    *,
    alpha: Annotated[float, Field(ge=0, lt=1, description="memory of squared gradients")] = 0.99,
) -> Optimizer:
    """RMSprop (torch.optim.RMSprop)."""
    rms = torch.optim.RMSprop
    return rms(parameters, lr, alpha, momentum=momentum, weight_decay=weight_decay)


@register_optimizer("adagrad")
def adagrad(parameters: Parameters, lr: float, weight_decay: float) -> Optimizer:
    """Adagrad, whose memory begins anew in each round (torch.optim.Adagrad)."""
    return torch.optim.Adagrad(parameters, lr, weight_decay=weight_decay)


@register_optimizer("nadam")
def nadam(
    parameters: Parameters, lr: float, betas: tuple[float, float], weight_decay: float
) -> Optimizer:
    """Adam with Nesterov's momentum (torch.optim.NAdam)."""
    return torch.optim.NAdam(parameters, lr, betas, weight_decay=weight_decay)
