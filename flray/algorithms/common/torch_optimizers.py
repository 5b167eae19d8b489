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


def _by_name(kind: str, moments: bool, summary: str) -> None:
    """Register an optimiser of torch under its name in small letters."""

    def plain(parameters: Parameters, lr: float, weight_decay: float) -> Optimizer:
        made: Optimizer = getattr(torch.optim, kind)(parameters, lr, weight_decay=weight_decay)
        return made

    def with_moments(
        parameters: Parameters, lr: float, betas: tuple[float, float], weight_decay: float
    ) -> Optimizer:
        made: Optimizer = getattr(torch.optim, kind)(
            parameters, lr, betas=betas, weight_decay=weight_decay
        )
        return made

    make = with_moments if moments else plain
    make.__doc__ = f"{summary} (torch.optim.{kind})."
    register_optimizer(kind.lower())(make)


for _row in (
    ("Adadelta", False, "Steps by the sizes of former steps; lr multiplies them, usually 1"),
    ("Adafactor", False, "Adam with a memory of rows and columns, not of each weight"),
    ("Adagrad", False, "Adagrad, whose memory begins anew in each round"),
    ("Adamax", True, "Adam by the largest gradient so far, not by their squares"),
    ("ASGD", False, "SGD whose rate falls slowly; its average of the weights is not used"),
    ("NAdam", True, "Adam with Nesterov's momentum"),
    ("RAdam", True, "Adam that begins with the steps of SGD"),
):
    _by_name(*_row)
