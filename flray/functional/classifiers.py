"""Terms at the classifier: FedRoD's balanced softmax, FedRS's restricted softmax, FedNH's cosine logits."""

import torch
import torch.nn.functional as F
from torch import Tensor

from flray.functional.checks import check_labels, check_shapes
from flray.functional.numerics import cross_entropy, unit


def balanced_softmax_loss(logits: Tensor, labels: Tensor, class_counts: Tensor) -> Tensor:
    """Return the cross-entropy of ``z + log pi``, pi being the client's class shares (FedRoD, generic predictor).

    Parameters
    ----------
    logits : Tensor [B, C]
    labels : Tensor [B] of integers
    class_counts : Tensor [C]
        Training samples per class, 0 or more. ``log max(pi, 1e-12)`` is used, so that an absent
        class stays finite; with no samples at all the loss is the plain cross-entropy.

    Returns
    -------
    Tensor, scalar
        Batch mean; zero for an empty batch.

    Raises
    ------
    ValueError
        If shapes differ from the above.
    """
    check_shapes(logits=(logits, "B C"), labels=(labels, "B"), class_counts=(class_counts, "C"))
    counts = class_counts.to(logits.dtype)
    total = counts.sum()
    log_shares = (counts / torch.where(total > 0, total, 1)).clamp(min=1e-12).log()
    return cross_entropy(logits + log_shares, check_labels(labels))


def restricted_scale(class_counts: Tensor, alpha: float = 0.5, graded: bool = False) -> Tensor:
    """Return FedRS's scale per class: 1 for the classes a client holds, `alpha` for the others.

    Parameters
    ----------
    class_counts : Tensor [C]
        Training samples per class.
    alpha : float
        In [0, 1].
    graded : bool
        ``alpha + (1 - alpha) n_c / max n`` instead, as the authors' released code does.

    Returns
    -------
    Tensor [C]
        Of the counts' dtype if that is floating, else of the default dtype. All `alpha` for a
        client without samples.

    Raises
    ------
    ValueError
        If the shape differs from the above or `alpha` is outside [0, 1].
    """
    check_shapes(class_counts=(class_counts, "C"))
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha: {alpha}, expected 0 to 1")
    counts = (
        class_counts
        if class_counts.is_floating_point()
        else class_counts.to(torch.get_default_dtype())
    )
    if not graded:
        return torch.where(counts > 0, 1.0, torch.full_like(counts, alpha))
    largest = counts.max()
    return alpha + (1 - alpha) * counts / torch.where(largest > 0, largest, 1)


def restricted_softmax_logits(
    features: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor
) -> Tensor:
    """Return FedRS's training logits ``scale_c <h, W_c> + b_c``; the bias is not scaled.

    The rows of W are scaled, so that a scale of 1 gives the bits of the plain linear layer and its
    gradients, and a scale of 0 gives W_c a gradient of exactly 0.

    Parameters
    ----------
    features : Tensor [B, d]
    weight : Tensor [C, d]
    bias : Tensor [C] or None
    scale : Tensor [C]
        Of `restricted_scale`.

    Returns
    -------
    Tensor [B, C]

    Raises
    ------
    ValueError
        If shapes differ from the above.
    """
    check_shapes(features=(features, "B d"), weight=(weight, "C d"), scale=(scale, "C"))
    if bias is not None:
        check_shapes(weight=(weight, "C d"), bias=(bias, "C"))
    return F.linear(features, weight * scale.to(weight.dtype).unsqueeze(1), bias)


def cosine_logits(features: Tensor, weight: Tensor, scale: Tensor | float) -> Tensor:
    """Return FedNH's logits ``s <f / ||f||, W_c>``.

    Parameters
    ----------
    features : Tensor [B, d]
        A zero row gives zero logits with zero gradient.
    weight : Tensor [C, d]
        Unit rows; not trained by gradient in FedNH, which is the caller's to see to.
    scale : Tensor, scalar, or float
        s; trainable in FedNH.

    Returns
    -------
    Tensor [B, C]
        Bounded by ``|s|``.

    Raises
    ------
    ValueError
        If shapes differ from the above.
    """
    check_shapes(features=(features, "B d"), weight=(weight, "C d"))
    return scale * (unit(features) @ weight.T)
