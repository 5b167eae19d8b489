"""Contrastive terms of MOON and FedRCL; FedSKC's is in `flray.functional.fedskc`."""

from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from flray.functional.checks import check_choice, check_labels, check_positive, check_shapes
from flray.functional.numerics import batch_mean, unit


def model_contrastive_loss(
    features: Tensor, global_features: Tensor, previous_features: Tensor, temperature: float = 0.5
) -> Tensor:
    """Return MOON's term: the global model's features are the positive, the previous local model's the negative.

    ``-log(e^{cos(r, r_g) / tau} / (e^{cos(r, r_g) / tau} + e^{cos(r, r_p) / tau}))``. Equal
    references, as in a client's first round, give log 2 and a gradient of exactly zero.

    Parameters
    ----------
    features : Tensor [B, d]
    global_features, previous_features : Tensor [B, d]
        No gradient reaches them.
    temperature : float
        tau.

    Returns
    -------
    Tensor, scalar
        Batch mean; zero for an empty batch.

    Raises
    ------
    ValueError
        If shapes differ from the above or the temperature is not positive.
    """
    check_shapes(
        features=(features, "B d"),
        global_features=(global_features, "B d"),
        previous_features=(previous_features, "B d"),
    )
    check_positive("temperature", temperature)
    pull = unit(previous_features.detach()) - unit(global_features.detach())
    return batch_mean(F.softplus((unit(features) * pull).sum(1) / temperature))


def relaxed_contrastive_loss(
    features: Tensor | Sequence[Tensor],
    labels: Tensor,
    temperature: float = 0.05,
    threshold: float = 0.7,
    penalty: float = 1.0,
    negatives: int = 2,
    pairs: Literal["top", "all"] = "top",
) -> Tensor:
    """Return FedRCL's term of one layer: supervised contrast plus a penalty on same-class pairs that are too close.

    Per sample, with cosines s: the mean over its positives p of ``-log(e^{s_p / tau} / (e^{s_p /
    tau} + sum_n e^{s_n / tau}))``, plus `penalty` times ``-log(e^{1 / tau} / (e^{1 / tau} + sum_c
    e^{s_c / tau}))`` over its close pairs c, those of `threshold` or more.

    Parameters
    ----------
    features : Tensor [B, d], or several of them
        Pooled features of one layer, or of several layers, whose mean is returned; d may differ
        between layers. The vectors' length does not matter.
    labels : Tensor [B] of integers
    temperature : float
        tau.
    threshold : float
        lambda; above 1 switches the penalty off.
    penalty : float
        beta.
    negatives : int
        How many of the most similar other-class samples count, with "top".
    pairs : {"top", "all"}
        "top": the least similar sample of the class is both the positive and the candidate for the
        penalty, the most similar others are the negatives, as in the authors' released code. "all":
        all pairs, as in the paper.

    Returns
    -------
    Tensor, scalar
        Batch mean; zero for an empty batch. A sample alone in its class counts as a positive of
        itself (s = 1, no gradient) and has no penalty; without other classes the contrast is 0.

    Raises
    ------
    ValueError
        If shapes differ from the above or a setting is out of range.
    """
    layers = [features] if isinstance(features, Tensor) else list(features)
    if not layers:
        raise ValueError("features: no layer, expected at least one")
    for layer in layers:
        check_shapes(features=(layer, "B d"), labels=(labels, "B"))
    size = len(labels)
    check_positive("temperature", temperature)
    check_choice("pairs", pairs, ("top", "all"))
    if negatives < 1:
        raise ValueError(f"negatives: {negatives}, expected at least 1")
    if not size:
        return torch.stack([layer.sum() for layer in layers]).sum()
    labels = check_labels(labels)
    own = torch.eye(size, dtype=torch.bool, device=labels.device)
    directions = [unit(layer) for layer in layers]
    similarity = torch.where(own, 1, torch.stack([d @ d.T for d in directions]))  # [layers, B, B]
    same = labels.unsqueeze(1) == labels
    partners, others = (mask.expand_as(similarity) for mask in (same & ~own, ~same))
    positives = partners | (own & ~partners.any(-1, keepdim=True))
    if pairs == "top":
        positives = _extreme(similarity, positives, 1, largest=False)
        others = _extreme(similarity, others, negatives, largest=True)
        partners = _extreme(similarity, partners, 1, largest=False)
    scaled = similarity / temperature
    repulsion, repelled = _masked_logsumexp(scaled, others)
    contrast = torch.where(positives & repelled, F.softplus(repulsion - scaled), 0).sum(
        -1
    ) / positives.sum(-1)
    closeness, close = _masked_logsumexp(scaled, partners & (similarity >= threshold))
    excess = torch.where(close, F.softplus(closeness - 1 / temperature), 0).squeeze(-1)
    return batch_mean(contrast + penalty * excess)


def _extreme(similarity: Tensor, mask: Tensor, count: int, largest: bool) -> Tensor:
    """Return the mask's `count` most (or least) similar entries of every row."""
    worst = float("-inf") if largest else float("inf")
    chosen = (
        similarity.detach()
        .masked_fill(~mask, worst)
        .topk(min(count, mask.shape[-1]), largest=largest)
        .indices
    )
    return torch.zeros_like(mask).scatter(-1, chosen, True) & mask


def _masked_logsumexp(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-sum-exp over a mask's entries of every row [..., 1] and whether there are any [..., 1]."""
    counted = mask.any(-1, keepdim=True)
    # rows without entries are summed whole, to stay finite, and not used
    return torch.logsumexp(
        values.masked_fill(~mask & counted, float("-inf")), -1, keepdim=True
    ), counted
