"""torch's optimisers by its functional forms: the classes of `torch.optim` import torch's compiler when they are made.

That import takes two seconds and 70 MiB in each process that trains. The arithmetic is torch's own, so the bits are the
same on every device.
"""

from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.adamw import adamw
from torch.optim.sgd import sgd


class _Optimizer(torch.optim.Optimizer):
    """The part of `torch.optim.Optimizer` that methods and schedules use, without its hooks."""

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

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Change the parameters that have gradients."""
        value = None
        if closure is not None:
            with torch.enable_grad():
                value = closure()
        for group in self.param_groups:
            moving = [one for one in group["params"] if one.grad is not None]
            if moving:
                self.update(group, moving, [one.grad for one in moving])
        return value

    @abstractmethod
    def update(self, group: dict[str, Any], moving: list[Tensor], gradients: list[Tensor]) -> None:
        """Change some parameters of a group."""


class SGD(_Optimizer):
    """Stochastic gradient descent as `torch.optim.SGD`; the memory of a parameter is ``momentum_buffer``."""

    def update(self, group: dict[str, Any], moving: list[Tensor], gradients: list[Tensor]) -> None:
        """See `torch.optim.SGD`."""
        kept = group["momentum"] != 0
        buffers = [self.state[one].get("momentum_buffer") if kept else None for one in moving]
        sgd(
            moving,
            gradients,
            buffers,
            weight_decay=group["weight_decay"],
            momentum=group["momentum"],
            lr=group["lr"],
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        for one, buffer in zip(moving, buffers, strict=True) if kept else ():
            self.state[one]["momentum_buffer"] = buffer


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
