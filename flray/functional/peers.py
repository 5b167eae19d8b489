"""Learning from other clients' outputs and classifiers: FCCL+, Fed-CO2, RHFL, FedMatch.

Equation numbers are those of "Generalizable Heterogeneous Federated Cross-Correlation and Instance Similarity Learning"
(FCCL+: FCCM and FISL on public data) and "Fed-CO2: Cooperation of Online and Offline Models for Severe Data
Heterogeneity in Federated Learning". FCCL+'s local term FNTD and Fed-CO2's mutual distillation (Eq. 4-5) are in
`flray.functional.loss_terms`.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flray.functional import numerics
from flray.functional.loss_terms import distillation_loss
from flray.functional.numerics import batch_mean, masked_mean, unit


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
    sizes = numerics.check_shapes(logits=(logits, "B C"), mean_logits=(mean_logits, "B C"))
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
        If the shape differs from the above.
    """
    size = numerics.check_shapes(features=(features, "B d"))["B"]
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
    numerics.check_shapes(similarity=(similarity, "B n"), mean_similarity=(mean_similarity, "B n"))
    return distillation_loss(similarity, mean_similarity)


def peer_classifier_loss(
    features: Tensor, labels: Tensor, heads: Sequence[nn.Module], own: int
) -> Tensor:
    """Return the sum of the other clients' classifiers' cross-entropies on this client's features (Fed-CO2 Eq. 6).

    The gradient passes through the classifiers to the features. They are called as they are.

    Parameters
    ----------
    features : Tensor [B, d]
    labels : Tensor [B] of integers
    heads : sequence of N modules
        Each maps [B, d] to logits [B, C]; frozen and in eval mode.
    own : int
        Index of the client itself; that head is not called.

    Returns
    -------
    Tensor, scalar
        A sum over peers of batch means, not a mean over peers; a differentiable zero without peers.

    Raises
    ------
    ValueError
        If shapes differ from the above or `own` is not an index of `heads`.
    """
    numerics.check_shapes(features=(features, "B d"), labels=(labels, "B"))
    labels = numerics.check_labels(labels)
    if not 0 <= own < len(heads):
        raise ValueError(f"own: {own}, expected 0 to {len(heads) - 1}")
    outputs = {
        f"heads[{index}](features)": head(features)
        for index, head in enumerate(heads)
        if index != own
    }
    numerics.check_shapes(
        labels=(labels, "B"), **{name: (value, "B C") for name, value in outputs.items()}
    )
    if not outputs or not len(labels):
        return features[:0].sum()  # nothing, but part of the graph
    logits = torch.cat(list(outputs.values()))  # the peers' end to end, for a single cross-entropy
    return F.cross_entropy(logits, labels.repeat(len(outputs)), reduction="sum") / len(labels)


def fuse_predictions(online: Tensor, offline: Tensor) -> Tensor:
    """Return the sum of the raw logits of the online and the offline model (Fed-CO2 Eq. 3).

    Parameters
    ----------
    online, offline : Tensor [B, C]

    Returns
    -------
    Tensor [B, C]

    Raises
    ------
    ValueError
        If shapes differ from the above.
    """
    numerics.check_shapes(online=(online, "B C"), offline=(offline, "B C"))
    return online + offline


SMALLEST_LOSS = 1e-12
"""Losses below this count as this much in a client's learning efficiency, which divides by the loss."""


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
    numerics.check_shapes(losses=(losses, "K"))
    count = len(losses)
    if count == 1:
        return torch.zeros_like(losses)
    if previous_losses is None:
        return torch.full_like(losses, 1 / (count - 1))
    numerics.check_shapes(losses=(losses, "K"), previous_losses=(previous_losses, "K"))
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
    numerics.check_shapes(logits=(logits, "B C"), peers=(peers, "K B C"), weights=(weights, "K"))
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
    numerics.check_shapes(logits=(logits, "B C"))
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
    classes = numerics.check_shapes(logits=(logits, "M B C"))["C"]
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
    numerics.check_shapes(logits=(logits, "B C"), labels=(labels, "B"), keep=(keep, "B of bool"))
    return masked_mean(
        F.cross_entropy(logits, numerics.check_labels(labels), reduction="none"), keep
    )


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
    numerics.check_shapes(
        logits=(logits, "B C"), helpers=(helpers, "H B C"), keep=(keep, "B of bool")
    )
    log_helpers = torch.log_softmax(helpers.detach(), dim=2)
    divergence = (log_helpers.exp() * (log_helpers - torch.log_softmax(logits, dim=1))).sum(2)
    return masked_mean(divergence.sum(0) / max(len(helpers), 1), keep)
