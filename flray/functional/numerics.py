"""Safe pieces that several formulas share: directions of zero vectors, means of nothing, masked rows."""

import torch
import torch.nn.functional as F
from torch import Tensor


def unit(vectors: Tensor, dim: int = -1) -> Tensor:
    """Return vectors of length 1 along `dim`; a zero vector stays zero and gets a zero gradient; NaN stays NaN.

    The largest entry is divided out first, so that squares neither overflow nor underflow. The
    direction does not depend on that scale, which is why it is a constant for the gradient.

    Parameters
    ----------
    vectors : Tensor
        Any floating dtype and shape.
    dim : int
        The dimension that holds a vector's entries.
    """
    scale = vectors.detach().abs().amax(dim, keepdim=True)
    scaled = vectors / torch.where(scale == 0, 1, scale)
    norm = torch.linalg.vector_norm(scaled, dim=dim, keepdim=True)
    return torch.where(norm == 0, 0, scaled / torch.where(norm == 0, 1, norm))


def batch_mean(values: Tensor) -> Tensor:
    """Return the mean of values[n]; of an empty batch a zero that still has a gradient."""
    return values.sum() / max(values.numel(), 1)


def masked_mean(values: Tensor, counted: Tensor) -> Tensor:
    """Return the mean of values[n] where counted[n] is true; if all are false, a zero that still has a gradient."""
    return torch.where(counted, values, 0).sum() / counted.sum().clamp(min=1)


def keep_rows(rows: Tensor, present: Tensor) -> Tensor:
    """Return rows[..., D] with the rows that are not present[...] set to zero, whatever they hold, NaN included.

    Selected before anything is computed: multiplying by a mask would let a NaN or an infinity
    through, in the value or in the gradient.
    """
    return torch.where(present.unsqueeze(-1), rows, 0)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Return PyTorch's batch mean of the cross-entropy of logits[B, C] and labels[B]; zero for an empty batch."""
    return F.cross_entropy(logits, labels) if len(labels) else logits.sum()


def masked_cross_entropy(scores: Tensor, labels: Tensor, present: Tensor) -> Tensor:
    """Return the cross-entropy over the present classes, mean over the samples whose class is present.

    Parameters
    ----------
    scores : Tensor [n, C]
        Columns of absent classes must be finite; they get no share and no gradient.
    labels : Tensor [n] of int64
    present : Tensor [C] of bool
        No sample of a present class: a zero that still has a gradient.
    """
    # With no class present every sample is skipped; all classes stay candidates only to keep the
    # softmax finite.
    candidates = present | ~present.any()
    log_shares = torch.log_softmax(scores.masked_fill(~candidates, float("-inf")), dim=1)
    return masked_mean(-log_shares.gather(1, labels.unsqueeze(1)).squeeze(1), present[labels])
