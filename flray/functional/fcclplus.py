"""FCCL+: cross-correlation (FCCM) and instance similarity (FISL) on public data.

Equation numbers are those of "Generalizable Heterogeneous Federated Cross-Correlation and Instance
Similarity Learning". The local term FNTD is in `flray.functional.loss_terms`.
"""

import torch
from torch import Tensor

from flray.functional.numerics import batch_mean, check_positive, check_shapes, unit


def cross_correlation(logits: Tensor, mean_logits: Tensor) -> Tensor:
    """Return the correlations over the batch of a model's logits with the participants' mean (FCCM, FCCL+ Eq. 1).

    ``M_uv`` is the correlation of column u of `logits` with column v of `mean_logits`. A column
    without variance, as in a batch of one, has no correlation: its entries are 0, with zero
    gradient.

    Parameters
    ----------
    logits, mean_logits : Tensor [B, C]
        B of at least 1.

    Returns
    -------
    Tensor [C, C]
        In [-1, 1] up to rounding.

    Raises
    ------
    ValueError
        If shapes differ from the above.
    """
    sizes = check_shapes(logits=(logits, "B C"), mean_logits=(mean_logits, "B C"))
    if not sizes["B"]:
        raise ValueError(f"logits: shape {list(logits.shape)}, expected at least one row")
    return _directions(logits).T @ _directions(mean_logits)


def _directions(logits: Tensor) -> Tensor:
    # Shifted by the first row before the mean is taken: a constant column is then exactly zero, not
    # rounding noise.
    shifted = logits - logits[:1].detach()
    return unit(shifted - shifted.mean(0), dim=0)


def cross_correlation_loss(
    logits: Tensor, mean_logits: Tensor, off_diagonal: float = 0.0051, *, shrunk: bool = False
) -> Tensor:
    """Return ``sum_u (1 - M_uu)^2 + off_diagonal sum_{u != v} (1 + M_uv)^2`` (FCCL+ Eq. 2).

    Parameters
    ----------
    logits : Tensor [B, C]
    mean_logits : Tensor [B, C]
        Mean over participants, own logits included; no gradient reaches it.
    off_diagonal : float
        The paper's lambda.
    shrunk : bool
        Multiply the correlations by (B - 1) / B, as the authors' released code does, which divides
        by the unbiased deviation and by B.

    Returns
    -------
    Tensor, scalar

    Raises
    ------
    ValueError
        If shapes differ from the above.
    """
    correlation = cross_correlation(logits, mean_logits.detach())
    if shrunk:
        correlation = correlation * ((len(logits) - 1) / len(logits))
    same = torch.eye(len(correlation), dtype=torch.bool, device=correlation.device)
    agree, differ = (1 - correlation).square(), (1 + correlation).square()
    return torch.where(same, agree, 0).sum() + off_diagonal * torch.where(same, 0, differ).sum()


def instance_similarity(features: Tensor, temperature: float = 0.02) -> Tensor:
    """Return the cosine similarities of each instance with the others of its batch (FISL, FCCL+ Eq. 3-4).

    Parameters
    ----------
    features : Tensor [B, d]
        The cosine with a zero vector is 0.
    temperature : float
        The paper's mu.

    Returns
    -------
    Tensor [B, B-1]
        Divided by the temperature, the diagonal removed, columns in batch order.

    Raises
    ------
    ValueError
        If the shape differs from the above or the temperature is not positive.
    """
    size = check_shapes(features=(features, "B d"))["B"]
    check_positive("temperature", temperature)
    directions = unit(features)
    rows = torch.arange(size, device=features.device).unsqueeze(1)
    columns = torch.arange(max(size - 1, 0), device=features.device).unsqueeze(0)
    others = columns + (columns >= rows)  # by number: for the size of a mask a GPU is waited for
    return (directions @ directions.T / temperature)[rows, others]


def instance_similarity_loss(similarity: Tensor, mean_similarity: Tensor) -> Tensor:
    """Return ``KL(softmax(mean) || softmax(own))`` of the rows, batch mean (FISL, FCCL+ Eq. 5).

    Parameters
    ----------
    similarity : Tensor [B, B-1]
        Own similarities of `instance_similarity`.
    mean_similarity : Tensor [B, B-1]
        Mean over participants, own similarities included; no gradient reaches it.

    Returns
    -------
    Tensor, scalar
        Zero for batches of 1 and 2, whose rows have at most one entry.

    Raises
    ------
    ValueError
        If shapes differ from the above.
    """
    check_shapes(similarity=(similarity, "B B-1"), mean_similarity=(mean_similarity, "B B-1"))
    log_own = torch.log_softmax(similarity, dim=1)
    log_mean = torch.log_softmax(mean_similarity.detach(), dim=1)
    return batch_mean((log_mean.exp() * (log_mean - log_own)).sum(1))
