"""Losses of tasks: prototypical networks (Snell, Swersky, Zemel, NeurIPS 2017), Dice, symmetric cross-entropy."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from flray import devices
from flray.functional import numerics


def prototypical_logits(queries: Tensor, prototypes: Tensor) -> Tensor:
    """Return the negative squared Euclidean distances ``-||q - c||^2``.

    Parameters
    ----------
    queries : Tensor [..., Q, d]
    prototypes : Tensor [..., C, d]

    Returns
    -------
    Tensor [..., Q, C]
    """
    return -(queries.unsqueeze(-2) - prototypes.unsqueeze(-3)).square().sum(-1)


def prototypical_loss(embeddings: Tensor, labels: Tensor, shot: int) -> Tensor:
    """Return the cross-entropy of an episode's queries over the prototypes of its classes.

    Parameters
    ----------
    embeddings : Tensor [B, d]
    labels : Tensor of integers [B]
        The first `shot` samples of each class are its support, whose mean is the prototype; the
        others are queries.
    shot : int
        Support samples per class, at least 1.

    Returns
    -------
    Tensor, scalar
        Mean over the queries; a differentiable zero without any.

    Raises
    ------
    ValueError
        If the shapes differ from the above.
    """
    numerics.check_shapes(embeddings=(embeddings, "B d"), labels=(labels, "B"))
    # Who is support and who a query is found on the host: sizes depend on it.
    classes, index = torch.unique(numerics.check_labels(labels).cpu(), return_inverse=True)
    member = F.one_hot(index, len(classes))
    rank = member.cumsum(0).gather(1, index.unsqueeze(1)).squeeze(1) - 1
    support = rank < shot
    if bool(support.all()):
        return embeddings.sum() * 0
    shares = (member * support.unsqueeze(1)).to(embeddings.dtype)
    queries, targets, shares = (
        devices.to_device(made, embeddings.device)
        for made in ((~support).nonzero().flatten(), index[~support], shares)
    )
    prototypes = (shares / shares.sum(0)).T @ embeddings
    return F.cross_entropy(prototypical_logits(embeddings[queries], prototypes), targets)


def dice_loss(
    logits: Tensor, masks: Tensor, smooth: float = 1e-5, reduction: str = "mean"
) -> Tensor:
    """Return ``1 - (2 sum p g + s) / (sum p^2 + sum g^2 + s)``, p the sigmoid of the logits (Milletari et al. 2016).

    The sums run over the positions of one sample's structure. Structures are independent of each
    other, so that one may lie within another, as the cup does in the disc. LG-Mix names this loss
    for its retinal segmentation; it equals MONAI's ``DiceLoss(sigmoid=True, squared_pred=True)``.

    Parameters
    ----------
    logits : Tensor [B, K, ...]
    masks : Tensor [B, K, ...]
        0 or 1, of any dtype.
    smooth : float
        s, which makes the loss of an empty mask 0 for an empty prediction.
    reduction : {"mean", "none"}
        "none" keeps a value per sample: the mean over its structures.

    Returns
    -------
    Tensor, scalar or [B]
        In [0, 1].

    Raises
    ------
    ValueError
        If the shapes differ.
    """
    if logits.shape != masks.shape or logits.dim() < 3:
        raise ValueError(
            f"logits: shape {list(logits.shape)}, masks: shape {list(masks.shape)}, expected both "
            "[samples, structures, ...]"
        )
    p, g = torch.sigmoid(logits).flatten(2), masks.to(logits.dtype).flatten(2)
    overlap, sizes = (p * g).sum(2), p.square().sum(2) + g.square().sum(2)
    loss = 1 - (2 * overlap + smooth) / (sizes + smooth)
    return loss.mean() if reduction == "mean" else loss.mean(1)


def symmetric_cross_entropy(
    logits: Tensor, labels: Tensor, a: float = 0.1, b: float = 1.0
) -> Tensor:
    """Return ``a CE + b RCE`` (symmetric cross-entropy, RHFL's private loss).

    ``RCE = - sum_c p_c log y_c`` with the one-hot y clamped to at least 1e-4 and p to at least
    1e-7.

    Parameters
    ----------
    logits : Tensor [B, C]
    labels : Tensor [B] of integers
    a, b : float
        Weights of the cross-entropy and of the reverse cross-entropy.

    Returns
    -------
    Tensor, scalar
        Batch mean; zero for an empty batch.

    Raises
    ------
    ValueError
        If shapes differ from the above.
    """
    numerics.check_shapes(logits=(logits, "B C"), labels=(labels, "B"))
    labels = numerics.check_labels(labels)
    shares = torch.softmax(logits, dim=1).clamp(min=1e-7, max=1.0)
    # log y is 0 for the label and log 1e-4 for every other class
    wrong = torch.ones_like(shares, dtype=torch.bool).scatter(1, labels.unsqueeze(1), False)
    reverse = -math.log(1e-4) * torch.where(wrong, shares, 0).sum(1)
    return a * numerics.cross_entropy(logits, labels) + b * numerics.batch_mean(reverse)
