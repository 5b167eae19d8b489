"""The Dice loss of segmentation."""

import torch
from torch import Tensor

from flray.functional.checks import check_choice


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
    check_choice("reduction", reduction, ("mean", "none"))
    if logits.shape != masks.shape or logits.dim() < 3:
        raise ValueError(
            f"logits: shape {list(logits.shape)}, masks: shape {list(masks.shape)}, expected both "
            "[samples, structures, ...]"
        )
    p, g = torch.sigmoid(logits).flatten(2), masks.to(logits.dtype).flatten(2)
    overlap, sizes = (p * g).sum(2), p.square().sum(2) + g.square().sum(2)
    loss = 1 - (2 * overlap + smooth) / (sizes + smooth)
    return loss.mean() if reduction == "mean" else loss.mean(1)
