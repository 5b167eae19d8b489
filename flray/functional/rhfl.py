"""RHFL: the noise-robust local loss, confidence in peers, and their weighted distillation on public data."""

import math

import torch
from torch import Tensor

from flray.functional.numerics import batch_mean, check_labels, check_shapes, cross_entropy

SMALLEST_LOSS = 1e-12
"""Losses below this count as this much in a client's learning efficiency, which divides by the loss."""


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
    check_shapes(logits=(logits, "B C"), labels=(labels, "B"))
    labels = check_labels(labels)
    shares = torch.softmax(logits, dim=1).clamp(min=1e-7, max=1.0)
    # log y is 0 for the label and log 1e-4 for every other class
    wrong = torch.ones_like(shares, dtype=torch.bool).scatter(1, labels.unsqueeze(1), False)
    reverse = -math.log(1e-4) * torch.where(wrong, shares, 0).sum(1)
    return a * cross_entropy(logits, labels) + b * batch_mean(reverse)


def confidence_weights(
    losses: Tensor, previous_losses: Tensor | None = None, eta: float = 0.5
) -> Tensor:
    """Return RHFL's confidence in each participant, ``softmax(1 / (K - 1) + eta q / sum q)``, ``q = (L' - L) / L``.

    Parameters
    ----------
    losses : Tensor [K]
        Mean private losses L of this round; 0 or more.
    previous_losses : Tensor [K], optional
        L' of the round before. Without them (first round) every weight is ``1 / (K - 1)``, as in
        the paper: these sum to 1 over the K - 1 peers, the later ones over all K.
    eta : float
        Strength.

    Returns
    -------
    Tensor [K]
        Uniform where ``sum q`` is not positive: the printed rule would reverse the ranking there. A
        single participant has no peer and gets 0.

    Raises
    ------
    ValueError
        If shapes differ from the above or a loss is negative or not finite.
    """
    check_shapes(losses=(losses, "K"))
    count = len(losses)
    if count == 1:
        return torch.zeros_like(losses)
    if previous_losses is None:
        return torch.full_like(losses, 1 / (count - 1))
    check_shapes(losses=(losses, "K"), previous_losses=(previous_losses, "K"))
    for name, values in (("losses", losses), ("previous_losses", previous_losses)):
        if not bool((torch.isfinite(values) & (values >= 0)).all()):
            raise ValueError(f"{name}: {values.tolist()}, expected finite values of 0 or more")
    now = losses.double()
    efficiency = (previous_losses.double() - now) / now.clamp(min=SMALLEST_LOSS)
    total = efficiency.sum()
    relative = torch.where(
        total > SMALLEST_LOSS, efficiency / torch.where(total > SMALLEST_LOSS, total, 1), 0
    )
    return torch.softmax(1 / (count - 1) + eta * relative, dim=0).to(losses.dtype)


def peer_distillation_loss(logits: Tensor, peers: Tensor, weights: Tensor, own: int) -> Tensor:
    """Return ``sum_{j != own} weight_j KL(p_j || p)`` on a public batch (RHFL's collaborative loss).

    Parameters
    ----------
    logits : Tensor [B, C]
        The client's own logits.
    peers : Tensor [K, B, C]
        Everyone's probabilities, taken before anyone steps; no gradient reaches them. The client's
        row is not used.
    weights : Tensor [K]
        Of `confidence_weights`.
    own : int
        The client's index.

    Returns
    -------
    Tensor, scalar
        Sum over peers of batch means; a differentiable zero without peers.

    Raises
    ------
    ValueError
        If shapes differ from the above or `own` is not an index of `peers`.
    """
    check_shapes(logits=(logits, "B C"), peers=(peers, "K B C"), weights=(weights, "K"))
    if not 0 <= own < len(peers):
        raise ValueError(f"own: {own}, expected 0 to {len(peers) - 1}")
    log_own = torch.log_softmax(logits, dim=1)
    total = logits[:0].sum()  # nothing, but part of the graph
    for index, peer in enumerate(peers.detach()):
        if index != own:
            total = total + weights[index] * batch_mean(
                (torch.xlogy(peer, peer) - peer * log_own).sum(1)
            )
    return total
