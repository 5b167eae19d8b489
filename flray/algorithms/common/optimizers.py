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
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks


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
