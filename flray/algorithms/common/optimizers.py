"""Optimisers: torch's usual ones by its functional forms, and others of torch by name.

The classes of `torch.optim` import torch's compiler when they are made, which takes two seconds and 70 MiB in each
process that trains. The functional forms do not. Their arithmetic is torch's own, so the bits are the same on every
device.

A registered optimiser is a function of ``parameters`` and of any of ``lr``, ``momentum``, ``weight_decay`` and
``betas``, the settings of ``local``. Its keyword-only parameters are its options.
"""

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Annotated, Any

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from flray.registry import register_optimizer


class _Optimizer(torch.optim.Optimizer):
    """The part of `torch.optim.Optimizer` that methods and schedules use, with its hooks."""

    def __init__(self, parameters: Iterable[nn.Parameter], **settings: Any) -> None:
        groups = [{"params": list(parameters), **settings}]
        # As torch makes one that it has unpickled: with all that its own methods look for.
        super().__setstate__(
            {"defaults": dict(settings), "param_groups": groups, "state": defaultdict(dict)}
        )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Drop the gradients, or set them to zero."""
        for group in self.param_groups:
            for parameter in group["params"]:
                if set_to_none:
                    parameter.grad = None
                elif parameter.grad is not None:
                    parameter.grad.zero_()

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Change the parameters that have gradients."""
        pre, post = self._optimizer_step_pre_hooks, self._optimizer_step_post_hooks
        observed = pre or post or _global_optimizer_pre_hooks or _global_optimizer_post_hooks
        return (self._observed_step if observed else self._step)(closure)

    step.hooked = True  # type: ignore[attr-defined]  # torch would always record it for a profiler, even without one

    @torch.no_grad()
    def _step(self, closure: Callable[[], float] | None) -> float | None:
        value = None
        if closure is not None:
            with torch.enable_grad():
                value = closure()
        for group in self.param_groups:
            moving = [one for one in group["params"] if one.grad is not None]
            if moving:
                self.update(group, moving, [one.grad for one in moving])
        return value

    _observed_step = torch.optim.Optimizer.profile_hook_step(_step)

    @abstractmethod
    def update(self, group: dict[str, Any], moving: list[Tensor], gradients: list[Tensor]) -> None:
        """Change some parameters of a group."""


class SGD(_Optimizer):
    """Stochastic gradient descent as `torch.optim.SGD`; the memory of a parameter is ``momentum_buffer``."""

    def update(self, group: dict[str, Any], moving: list[Tensor], gradients: list[Tensor]) -> None:
        """See `torch.optim.SGD`."""
        decay, momentum = group["weight_decay"], group["momentum"]
        if decay != 0:
            gradients = [*torch._foreach_add(gradients, moving, alpha=decay)]
        if momentum != 0:
            memory = [self.state[one] for one in moving]
            known = [one.get("momentum_buffer") for one in memory]
            old = [buffer for buffer in known if buffer is not None]
            if old:
                torch._foreach_mul_(old, momentum)
                fresh = zip(known, gradients, strict=True)
                torch._foreach_add_(old, [one for buffer, one in fresh if buffer is not None])
            for own, buffer, gradient in zip(memory, known, gradients, strict=True):
                own["momentum_buffer"] = gradient.detach().clone() if buffer is None else buffer
            gradients = [own["momentum_buffer"] for own in memory]
        torch._foreach_add_(moving, gradients, alpha=-group["lr"])


class Adam(_Optimizer):
    """Adam as `torch.optim.Adam`; with ``decoupled`` weight decay it is torch's AdamW."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        decoupled: bool = False,
    ) -> None:
        super().__init__(
            parameters, lr=lr, betas=betas, weight_decay=weight_decay, decoupled=decoupled
        )

    def update(self, group: dict[str, Any], moving: list[Tensor], gradients: list[Tensor]) -> None:
        """See `torch.optim.Adam`."""
        for one in moving:
            if one not in self.state:
                self.state[one] = {
                    "step": torch.tensor(0.0, dtype=torch.float32),
                    "exp_avg": torch.zeros_like(one),
                    "exp_avg_sq": torch.zeros_like(one),
                }
        memory = [self.state[one] for one in moving]
        (adamw if group["decoupled"] else adam)(
            moving,
            gradients,
            [one["exp_avg"] for one in memory],
            [one["exp_avg_sq"] for one in memory],
            [],
            [one["step"] for one in memory],
            amsgrad=False,
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=1e-8,
            maximize=False,
        )


Parameters = list[nn.Parameter]


@register_optimizer("nesterov")
def nesterov(
    parameters: Parameters, lr: float, momentum: float, weight_decay: float
) -> torch.optim.Optimizer:
    """SGD with Nesterov's momentum, ``local.momentum`` (torch.optim.SGD)."""
    return torch.optim.SGD(
        parameters, lr, momentum, weight_decay=weight_decay, nesterov=momentum > 0
    )


@register_optimizer("rmsprop")
def rmsprop(
    parameters: Parameters,
    lr: float,
    momentum: float,
    weight_decay: float,
    *,
    alpha: Annotated[float, Field(ge=0, lt=1, description="memory of squared gradients")] = 0.99,
) -> torch.optim.Optimizer:
    """RMSprop (torch.optim.RMSprop)."""
    return torch.optim.RMSprop(parameters, lr, alpha, momentum=momentum, weight_decay=weight_decay)


def _by_name(kind: str, moments: bool, summary: str) -> None:
    """Register an optimiser of torch under its name in small letters."""

    def plain(parameters: Parameters, lr: float, weight_decay: float) -> torch.optim.Optimizer:
        made: torch.optim.Optimizer = getattr(torch.optim, kind)(
            parameters, lr, weight_decay=weight_decay
        )
        return made

    def with_moments(
        parameters: Parameters, lr: float, betas: tuple[float, float], weight_decay: float
    ) -> torch.optim.Optimizer:
        made: torch.optim.Optimizer = getattr(torch.optim, kind)(
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
