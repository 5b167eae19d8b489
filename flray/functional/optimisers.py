"""Steps on whole models: FedOpt's server optimisers, SCAFFOLD's control variates, Per-FedAvg's meta-gradient.

All take tensors or named trees, leave integer tensors as they are, compute in float64 and round
once.
"""

from typing import Literal

import torch
from torch import Tensor

from flray.functional.checks import TensorOrTree, check_choice, check_positive, map_floating


def momentum_step(
    mean_update: TensorOrTree, momentum: TensorOrTree, lr: float = 1.0, beta: float = 0.9
) -> tuple[TensorOrTree, TensorOrTree]:
    """Return FedAvgM's step: ``u <- beta u + update``, ``step = lr u`` (no factor 1 - beta, no Nesterov).

    Parameters
    ----------
    mean_update : Tensor or dict of Tensor
        Weighted mean of client minus server weights, so that the step is added to the server's
        weights.
    momentum : Tensor or dict of Tensor
        u, zero at the start.
    lr : float
        Server learning rate.
    beta : float
        Momentum.

    Returns
    -------
    step, momentum : like `mean_update`

    Raises
    ------
    ValueError
        If names or shapes differ.
    """
    moved = map_floating(lambda update, u: beta * u + update, mean_update, momentum=momentum)
    return map_floating(lambda u: lr * u, moved), moved


def adaptive_step(
    mean_update: TensorOrTree,
    momentum: TensorOrTree,
    variance: TensorOrTree,
    rule: Literal["adagrad", "adam", "yogi"] = "adam",
    lr: float = 0.1,
    beta1: float = 0.9,
    beta2: float = 0.99,
    tau: float = 1e-3,
) -> tuple[TensorOrTree, TensorOrTree, TensorOrTree]:
    """Return the step of FedAdagrad, FedAdam or FedYogi, without bias correction.

    ``m <- beta1 m + (1 - beta1) update``; v is ``v + update^2`` (adagrad), ``beta2 v + (1 - beta2)
    update^2`` (adam) or ``v - (1 - beta2) update^2 sign(v - update^2)`` (yogi); ``step = lr m /
    (sqrt(v) + tau)``.

    Parameters
    ----------
    mean_update : Tensor or dict of Tensor
        Weighted mean of client minus server parameters (not buffers); the step is added to the
        server's.
    momentum, variance : Tensor or dict of Tensor
        m (zero at the start) and v (0 or more; the paper starts at tau^2 or above).
    rule : {"adagrad", "adam", "yogi"}
    lr, beta1, beta2, tau : float
        tau is positive and outside the root.

    Returns
    -------
    step, momentum, variance : like `mean_update`

    Raises
    ------
    ValueError
        If names or shapes differ, the rule is unknown or tau is not positive.
    """
    check_choice("rule", rule, ("adagrad", "adam", "yogi"))
    check_positive("tau", tau)

    def second(update: Tensor, v: Tensor) -> Tensor:
        square = update.square()
        if rule == "adagrad":
            return v + square
        if rule == "adam":
            return beta2 * v + (1 - beta2) * square
        return v - (1 - beta2) * square * torch.sign(v - square)

    moved = map_floating(
        lambda update, m: beta1 * m + (1 - beta1) * update, mean_update, momentum=momentum
    )
    spread = map_floating(second, mean_update, variance=variance)
    return (
        map_floating(lambda m, v: lr * m / (v.sqrt() + tau), moved, variance=spread),
        moved,
        spread,
    )


def control_variate(
    own: TensorOrTree, common: TensorOrTree, start: TensorOrTree, end: TensorOrTree, lr_sum: float
) -> TensorOrTree:
    """Return SCAFFOLD's new client control variate, option II: ``c_i - c + (start - end) / lr_sum``.

    Parameters
    ----------
    own, common : Tensor or dict of Tensor
        c_i and c, parameter-shaped.
    start, end : Tensor or dict of Tensor
        Parameters received, and after local training by plain SGD (with momentum the displacement
        is no longer the sum of gradients).
    lr_sum : float
        Sum of the learning rates of all optimiser steps: steps (not epochs) times lr if lr is
        constant.

    Returns
    -------
    Tensor or dict of Tensor
        Like `own`.

    Raises
    ------
    ValueError
        If names or shapes differ or `lr_sum` is not positive.
    """
    check_positive("lr_sum", lr_sum)
    return map_floating(
        lambda c_i, c, w, theta: c_i - c + (w - theta) / lr_sum,
        own,
        common=common,
        start=start,
        end=end,
    )


def meta_gradient(
    gradient: TensorOrTree, ahead: TensorOrTree, behind: TensorOrTree, alpha: float, delta: float
) -> TensorOrTree:
    """Return Per-FedAvg's Hessian-free meta-gradient ``g - alpha (g_ahead - g_behind) / (2 delta)``.

    Parameters
    ----------
    gradient : Tensor or dict of Tensor
        g, at the adapted weights ``w - alpha grad``.
    ahead, behind : Tensor or dict of Tensor
        Gradients at ``w + delta g`` and ``w - delta g`` on a third batch.
    alpha : float
        Inner learning rate; 0 leaves the first-order form.
    delta : float
        Width of the difference, positive.

    Returns
    -------
    Tensor or dict of Tensor
        Like `gradient`.

    Raises
    ------
    ValueError
        If names or shapes differ or `delta` is not positive.
    """
    check_positive("delta", delta)
    return map_floating(
        lambda g, up, down: g - alpha * (up - down) / (2 * delta),
        gradient,
        ahead=ahead,
        behind=behind,
    )
