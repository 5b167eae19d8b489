"""FedMatch: pseudo-labels by vote, consistency with helpers, and the penalties that keep psi sparse and near sigma."""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from flray.functional.numerics import check_labels, check_mask, check_shapes, masked_mean
from flray.trees import check_like


def confident(logits: Tensor, threshold: float = 0.75) -> Tensor:
    """Return which samples of logits[B, C] have a largest probability of `threshold` or more: a mask [B].

    Parameters
    ----------
    logits : Tensor [B, C]
        Of one model.
    threshold : float
        Least probability.

    Raises
    ------
    ValueError
        If the shape differs.
    """
    check_shapes(logits=(logits, "B C"))
    return torch.softmax(logits.detach(), dim=1).amax(1) >= threshold


def vote(logits: Tensor) -> Tensor:
    """Return the classes that most models predict.

    Parameters
    ----------
    logits : Tensor [M, B, C]
        The client's model first, then its helpers.

    Returns
    -------
    Tensor [B] of int64
        A tie goes to the class of the client's model if it is among the tied, else to the lowest.

    Raises
    ------
    ValueError
        If the shape differs from the above or M is 0.
    """
    classes = check_shapes(logits=(logits, "M B C"))["C"]
    if not len(logits):
        raise ValueError(f"logits: shape {list(logits.shape)}, expected at least one model")
    votes = F.one_hot(logits.detach().argmax(2), classes)
    return (2 * votes.sum(0) + votes[0]).argmax(1)


def pseudo_label_loss(logits: Tensor, labels: Tensor, keep: Tensor) -> Tensor:
    """Return the cross-entropy with pseudo-labels over the samples that `keep` selects.

    Parameters
    ----------
    logits : Tensor [B, C]
        On strongly augmented images.
    labels : Tensor [B] of integers
        Of `vote`.
    keep : Tensor [B] of bool
        Of `confident`, on images without strong augmentation.

    Returns
    -------
    Tensor, scalar
        Mean over kept samples; a differentiable zero if there are none.

    Raises
    ------
    ValueError
        If shapes differ from the above or the mask is not boolean.
    """
    check_shapes(logits=(logits, "B C"), labels=(labels, "B"), keep=(keep, "B"))
    check_mask("keep", keep)
    return masked_mean(F.cross_entropy(logits, check_labels(labels), reduction="none"), keep)


def helper_consistency_loss(logits: Tensor, helpers: Tensor, keep: Tensor) -> Tensor:
    """Return the mean over helpers of ``KL(p_helper || p)`` over the samples that `keep` selects.

    Parameters
    ----------
    logits : Tensor [B, C]
    helpers : Tensor [H, B, C]
        The helpers' logits; no gradient reaches them.
    keep : Tensor [B] of bool

    Returns
    -------
    Tensor, scalar
        Mean over kept samples; a differentiable zero without any or without helpers.

    Raises
    ------
    ValueError
        If shapes differ from the above or the mask is not boolean.
    """
    check_shapes(logits=(logits, "B C"), helpers=(helpers, "H B C"), keep=(keep, "B"))
    check_mask("keep", keep)
    log_helpers = torch.log_softmax(helpers.detach(), dim=2)
    divergence = (log_helpers.exp() * (log_helpers - torch.log_softmax(logits, dim=1))).sum(2)
    return masked_mean(divergence.sum(0) / max(len(helpers), 1), keep)


def decomposition_penalty(
    psi: Mapping[str, Tensor], sigma: Mapping[str, Tensor], l1: float = 1e-4, l2: float = 10.0
) -> Tensor:
    """Return ``l1 ||psi||_1 + l2 ||sigma - psi||^2``, which belongs to the step on psi alone.

    Parameters
    ----------
    psi : dict of Tensor
        The parameters trained on unlabelled data.
    sigma : dict of Tensor
        Those trained on labelled data, with the same names and shapes; no gradient reaches them.
    l1, l2 : float

    Returns
    -------
    Tensor, scalar

    Raises
    ------
    ValueError
        If `psi` is empty, or names or shapes differ.
    """
    check_like("psi", psi, sigma=sigma)
    # One subtraction instead of one per layer.
    sparse = torch.cat([value.flatten() for value in psi.values()])
    dense = torch.cat([sigma[name].detach().flatten() for name in psi])
    return l1 * sparse.abs().sum() + l2 * (dense - sparse).square().sum()
