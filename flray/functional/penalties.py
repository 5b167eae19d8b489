"""Quadratic penalties on parameters: FedProx's and elastic weight consolidation's. Never on buffers."""

from collections.abc import Mapping

import torch
from torch import Tensor

from flray.functional.checks import check_names


def proximal_penalty(
    parameters: Mapping[str, Tensor], reference: Mapping[str, Tensor], strength: float
) -> Tensor:
    """Return ``strength / 2 ||theta - w||^2`` (FedProx); its gradient is ``strength (theta - w)``.

    Parameters
    ----------
    parameters : dict of Tensor
        theta, the parameters being trained (not buffers).
    reference : dict of Tensor
        w, the weights received this round, with the same names and shapes; no gradient reaches
        them.
    strength : float
        mu.

    Returns
    -------
    Tensor, scalar

    Raises
    ------
    ValueError
        If `parameters` is empty, or names or shapes differ.
    """
    _check(parameters, reference=reference)
    # One subtraction instead of one per layer.
    theta = torch.cat([value.flatten() for value in parameters.values()])
    w = torch.cat([reference[name].detach().flatten() for name in parameters])
    return strength / 2 * (theta - w).square().sum()


def ewc_penalty(
    parameters: Mapping[str, Tensor],
    anchor: Mapping[str, Tensor],
    fisher: Mapping[str, Tensor],
    strength: float,
) -> Tensor:
    """Return ``strength / 2 sum_k F_k (theta_k - anchor_k)^2`` (elastic weight consolidation).

    Parameters
    ----------
    parameters : dict of Tensor
        theta, the parameters being trained (not buffers).
    anchor : dict of Tensor
        Earlier parameters with the same names and shapes; no gradient reaches them.
    fisher : dict of Tensor
        Diagonal Fisher information at the anchor: means over samples of squared gradients of ``log
        p(y | x)``.
    strength : float
        lambda.

    Returns
    -------
    Tensor, scalar

    Raises
    ------
    ValueError
        If `parameters` is empty, or names or shapes differ.
    """
    _check(parameters, anchor=anchor, fisher=fisher)
    terms = [
        (fisher[name].detach() * (value - anchor[name].detach()).square()).sum()
        for name, value in parameters.items()
    ]
    return strength / 2 * torch.stack(terms).sum()


def _check(parameters: Mapping[str, Tensor], **trees: Mapping[str, Tensor]) -> None:
    if not parameters:
        raise ValueError("parameters: none given, expected at least one")
    for argument, tree in trees.items():
        check_names(argument, tree, parameters)
        for name, value in parameters.items():
            if tree[name].shape != value.shape:
                raise ValueError(
                    f"{argument}[{name!r}]: shape {list(tree[name].shape)}, expected "
                    f"{list(value.shape)}"
                )
