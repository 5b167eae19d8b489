"""Steps and mixtures of whole models: FedOpt's server, SCAFFOLD, Per-FedAvg, APFL, L2SGD, FedFomo's choice of peers.

All take named trees, leave integer tensors as they are, compute in float64 and round
once.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
from torch import Tensor

from flray import devices, trees
from flray.functional import numerics
from flray.functional.numerics import map_floating
from flray.trees import Tree, Weights, check_like, check_names


def momentum_step(
    mean_update: Tree, momentum: Tree, lr: float = 1.0, beta: float = 0.9
) -> tuple[Weights, Weights]:
    """Return FedAvgM's step: ``u <- beta u + update``, ``step = lr u`` (no factor 1 - beta, no Nesterov).

    Parameters
    ----------
    mean_update : dict of Tensor
        Weighted mean of client minus server weights, so that the step is added to the server's
        weights.
    momentum : dict of Tensor
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
    mean_update: Tree,
    momentum: Tree,
    variance: Tree,
    rule: Literal["adagrad", "adam", "yogi"] = "adam",
    lr: float = 0.1,
    beta1: float = 0.9,
    beta2: float = 0.99,
    tau: float = 1e-3,
) -> tuple[Weights, Weights, Weights]:
    """Return the step of FedAdagrad, FedAdam or FedYogi, without bias correction.

    ``m <- beta1 m + (1 - beta1) update``; v is ``v + update^2`` (adagrad), ``beta2 v + (1 - beta2)
    update^2`` (adam) or ``v - (1 - beta2) update^2 sign(v - update^2)`` (yogi); ``step = lr m /
    (sqrt(v) + tau)``.

    Parameters
    ----------
    mean_update : dict of Tensor
        Weighted mean of client minus server parameters (not buffers); the step is added to the
        server's.
    momentum, variance : dict of Tensor
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
        If names or shapes differ.
    """

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
    step = map_floating(lambda m, v: lr * m / (v.sqrt() + tau), moved, variance=spread)
    return step, moved, spread


def control_variate(own: Tree, common: Tree, start: Tree, end: Tree, lr_sum: float) -> Weights:
    """Return SCAFFOLD's new client control variate, option II: ``c_i - c + (start - end) / lr_sum``.

    Parameters
    ----------
    own, common : dict of Tensor
        c_i and c, parameter-shaped.
    start, end : dict of Tensor
        Parameters received, and after local training by plain SGD (with momentum the displacement
        is no longer the sum of gradients).
    lr_sum : float
        Sum of the learning rates of all optimiser steps: steps (not epochs) times lr if lr is
        constant.

    Returns
    -------
    dict of Tensor
        Like `own`.

    Raises
    ------
    ValueError
        If names or shapes differ.
    """
    return map_floating(
        lambda c_i, c, w, theta: c_i - c + (w - theta) / lr_sum,
        own,
        common=common,
        start=start,
        end=end,
    )


def meta_gradient(gradient: Tree, ahead: Tree, behind: Tree, alpha: float, delta: float) -> Weights:
    """Return Per-FedAvg's Hessian-free meta-gradient ``g - alpha (g_ahead - g_behind) / (2 delta)``.

    Parameters
    ----------
    gradient : dict of Tensor
        g, at the adapted weights ``w - alpha grad``.
    ahead, behind : dict of Tensor
        Gradients at ``w + delta g`` and ``w - delta g`` on a third batch.
    alpha : float
        Inner learning rate; 0 leaves the first-order form.
    delta : float
        Width of the difference, positive.

    Returns
    -------
    dict of Tensor
        Like `gradient`.

    Raises
    ------
    ValueError
        If names or shapes differ.
    """
    return map_floating(
        lambda g, up, down: g - alpha * (up - down) / (2 * delta),
        gradient,
        ahead=ahead,
        behind=behind,
    )


def apfl_mix(personal: Tree, shared: Tree, alpha: float) -> Weights:
    """Return APFL's personal model ``alpha v + (1 - alpha) w``; at exactly 0 and 1 the other has no influence.

    Parameters
    ----------
    personal, shared : dict of Tensor
        v and w.
    alpha : float
        In [0, 1].

    Returns
    -------
    dict of Tensor
        Like `personal`.

    Raises
    ------
    ValueError
        If names or shapes differ.
    """
    return map_floating(lambda v, w: _mix(v, w, alpha, 1 - alpha), personal, shared=shared)


def _mix(one: Tensor, other: Tensor, share: float, rest: float) -> Tensor:
    """Return ``share one + rest other``; a tensor whose share is exactly 0 has no influence."""
    if 0.0 in (share, rest):
        return (one if share else other).clone()
    return share * one + rest * other


def apfl_alpha_gradient(personal: Tree, shared: Tree, gradient: Tree) -> float:
    """Return the derivative of the loss at APFL's mixture by alpha, ``<v - w, g>``.

    Parameters
    ----------
    personal, shared : dict of Tensor
        v and w, parameters only.
    gradient : dict of Tensor
        g, the loss's gradient at ``alpha v + (1 - alpha) w``.

    Returns
    -------
    float
        Accumulated in float64.

    Raises
    ------
    ValueError
        If names or shapes differ.
    """
    check_like("parameters", personal, shared=shared, gradient=gradient)
    products = [
        ((v.double() - shared[name].double()) * gradient[name].double()).sum()
        for name, v in personal.items()
    ]
    return trees.total(map(float, devices.to_host(products)))


def apfl_alpha_step(alpha: float, gradient: float, lr: float) -> float:
    """Return APFL's new alpha, ``alpha - lr gradient`` clipped to [0, 1].

    Parameters
    ----------
    alpha : float
        Share of the personal model in the mixture.
    gradient : float
        The loss's derivative by alpha, of `apfl_alpha_gradient`.
    lr : float
        Learning rate.
    """
    return min(max(alpha - lr * gradient, 0.0), 1.0)


def pull_to_mean(own: Tree, mean: Tree, strength: float) -> Weights:
    """Return L2SGD's aggregation step ``(1 - a) x + a mean``; a = 0 leaves x, a = 1 gives the mean, bit for bit.

    Parameters
    ----------
    own, mean : dict of Tensor
    strength : float
        a in [0, 1].

    Returns
    -------
    dict of Tensor
        Like `own`.

    Raises
    ------
    ValueError
        If names or shapes differ.
    """
    return map_floating(lambda x, m: _mix(x, m, 1 - strength, strength), own, mean=mean)


def fomo_affinities(
    reference_loss: float, losses: Tensor, distances: Tensor, epsilon: float = 1e-12
) -> Tensor:
    """Return how much each candidate model helps per distance, ``(L_ref - L_n) / (||theta_n - theta_ref|| + eps)``.

    Parameters
    ----------
    reference_loss : float
        Validation loss of the client's model before this round's training.
    losses : Tensor [M]
        Validation losses of the candidates (the client's new model included).
    distances : Tensor [M]
        Euclidean distances of their parameters to the reference's.
    epsilon : float
        Positive.

    Returns
    -------
    Tensor [M]
        FedFomo's weights before clipping. 0 if a loss or a distance is not finite: a broken model
        helps nobody.

    Raises
    ------
    ValueError
        If shapes differ from the above.
    """
    numerics.check_shapes(losses=(losses, "M"), distances=(distances, "M"))
    gains = (reference_loss - losses.double()) / (distances.double() + epsilon)
    return torch.where(torch.isfinite(gains), gains, 0).to(losses.dtype)


def fomo_weights(affinities: Tensor) -> Tensor:
    """Return FedFomo's mixing weights: the positive affinities, normalised.

    Parameters
    ----------
    affinities : Tensor [M]
        Of `fomo_affinities`, finite.

    Returns
    -------
    Tensor [M]
        Sums to 1, or all 0 if no candidate helps (`fomo_mix` then returns the reference).

    Raises
    ------
    ValueError
        If the shape differs from the above.
    """
    numerics.check_shapes(affinities=(affinities, "M"))
    positive = affinities.double().clamp(min=0)
    total = positive.sum()
    return (positive / torch.where(total > 0, total, 1)).to(affinities.dtype)


def fomo_mix(
    reference: Mapping[str, Tensor], candidates: Sequence[Mapping[str, Tensor]], weights: Tensor
) -> dict[str, Tensor]:
    """Return ``theta_ref + sum_n w_n (theta_n - theta_ref)``; a candidate of weight 0 has no influence.

    Parameters
    ----------
    reference : dict of Tensor
    candidates : sequence of M dicts of Tensor
        Names and shapes of `reference`.
    weights : Tensor [M]
        Of `fomo_weights`.

    Returns
    -------
    dict of Tensor
        Like `reference`, with its integer tensors.

    Raises
    ------
    ValueError
        If numbers, names or shapes differ.
    """
    if tuple(weights.shape) != (len(candidates),):
        raise ValueError(
            f"weights: shape {list(weights.shape)}, expected [{len(candidates)}], one per candidate"
        )
    chosen = [
        (tree, weight) for tree, weight in zip(candidates, weights.tolist(), strict=True) if weight
    ]
    for number, tree in enumerate(candidates):
        check_names(f"candidates[{number}]", tree, reference)

    def mix(base: Tensor, *others: Tensor) -> Tensor:
        total = base.clone()
        for other, (_, weight) in zip(others, chosen, strict=True):
            total += weight * (other - base)
        return total

    trees = {
        f"candidates with weight, number {number}": tree for number, (tree, _) in enumerate(chosen)
    }
    return map_floating(mix, reference, **trees)
