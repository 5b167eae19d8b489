"""Terms that methods add to a client's loss: contrast, distillation, terms at the classifier, penalties.

A teacher is a constant, probabilities are taken over all classes, means over the batch. Penalties
are on parameters, never on buffers. FedSKC's contrast is in `flray.functional.fedskc`.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from flray.functional import numerics
from flray.functional.numerics import batch_mean, unit
from flray.trees import check_like


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
        If shapes differ from the above.
    """
    numerics.check_shapes(
        features=(features, "B d"),
        global_features=(global_features, "B d"),
        previous_features=(previous_features, "B d"),
    )
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
        If shapes differ from the above.
    """
    layers = [features] if isinstance(features, Tensor) else list(features)
    if not layers:
        raise ValueError("features: no layer, expected at least one")
    for layer in layers:
        numerics.check_shapes(features=(layer, "B d"), labels=(labels, "B"))
    size = len(labels)
    if not size:
        return torch.stack([layer.sum() for layer in layers]).sum()
    labels = numerics.check_labels(labels)
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
    candidates = similarity.detach().masked_fill(~mask, float("-inf") if largest else float("inf"))
    chosen = candidates.topk(min(count, mask.shape[-1]), largest=largest).indices
    return torch.zeros_like(mask).scatter(-1, chosen, True) & mask


def _masked_logsumexp(values: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the log-sum-exp over a mask's entries of every row [..., 1] and whether there are any [..., 1]."""
    counted = mask.any(-1, keepdim=True)
    # rows without entries are summed whole, to stay finite, and not used
    return torch.logsumexp(
        values.masked_fill(~mask & counted, float("-inf")), -1, keepdim=True
    ), counted


def distillation_loss(student: Tensor, teacher: Tensor, temperature: float = 1.0) -> Tensor:
    """Return ``KL(teacher || student)`` of softened predictions, without the factor tau^2 (FCCL+ Eq. 7-8).

    Also Fed-CO2 Eq. 4-5, FCCL Eq. 19 of FCCL+, and FedDF with the mean of the clients' logits as
    the teacher.

    Parameters
    ----------
    student, teacher : Tensor [B, C]
        Logits; no gradient reaches the teacher.
    temperature : float
        tau.

    Returns
    -------
    Tensor, scalar
        Batch mean; 0 or more; zero for an empty batch.

    Raises
    ------
    ValueError
        If shapes differ from the above.
    """
    return batch_mean(_class_terms(student, teacher, temperature).sum(1))


def scaled_distillation_loss(student: Tensor, teacher: Tensor, temperature: float = 3.0) -> Tensor:
    """Return ``tau^2 KL(teacher || student)``, the usual knowledge distillation term (FCCL+ Eq. 10).

    Parameters
    ----------
    student, teacher : Tensor [B, C]
        Logits; no gradient reaches the teacher.
    temperature : float
        tau.

    Raises
    ------
    ValueError
        As `distillation_loss`.
    """
    return temperature**2 * distillation_loss(student, teacher, temperature)


def non_target_distillation_loss(
    student: Tensor, teacher: Tensor, labels: Tensor, temperature: float = 3.0
) -> Tensor:
    """Return federated non-target distillation (FNTD, FCCL+ Eq. 13): the KL's terms of all classes but the target.

    Probabilities are over all classes and not renormalised after the target is dropped, so that
    single values may be negative. The factor tau^2 of Eq. 12 and of the authors' released code is not
    included.

    Parameters
    ----------
    student, teacher : Tensor [B, C]
        Logits; no gradient reaches the teacher.
    labels : Tensor [B] of integers
    temperature : float
        tau.

    Returns
    -------
    Tensor, scalar
        Batch mean; zero for an empty batch.

    Raises
    ------
    ValueError
        If shapes differ from the above.
    """
    numerics.check_shapes(student=(student, "B C"), labels=(labels, "B"))
    terms = _class_terms(student, teacher, temperature)
    target = torch.zeros_like(terms, dtype=torch.bool).scatter(
        1, numerics.check_labels(labels).unsqueeze(1), True
    )
    return batch_mean(terms.masked_fill(target, 0).sum(1))


def digest_loss(scores: Tensor, consensus: Tensor) -> Tensor:
    """Return FedMD's digest term, the mean absolute difference of scores to the consensus.

    Parameters
    ----------
    scores, consensus : Tensor [B, C]
        Logits on public data; no gradient reaches the consensus.

    Returns
    -------
    Tensor, scalar
        Mean over all entries; zero for an empty batch.

    Raises
    ------
    ValueError
        If shapes differ.
    """
    numerics.check_shapes(scores=(scores, "B C"), consensus=(consensus, "B C"))
    return batch_mean((scores - consensus.detach()).abs())


def _class_terms(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    numerics.check_shapes(student=(student, "B C"), teacher=(teacher, "B C"))
    log_student = torch.log_softmax(student / temperature, dim=1)
    log_teacher = torch.log_softmax(teacher.detach() / temperature, dim=1)
    return log_teacher.exp() * (log_teacher - log_student)


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
    numerics.check_shapes(
        logits=(logits, "B C"), labels=(labels, "B"), class_counts=(class_counts, "C")
    )
    counts = class_counts.to(logits.dtype)
    total = counts.sum()
    log_shares = (counts / torch.where(total > 0, total, 1)).clamp(min=1e-12).log()
    return numerics.cross_entropy(logits + log_shares, numerics.check_labels(labels))


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
        If the shape differs from the above.
    """
    numerics.check_shapes(class_counts=(class_counts, "C"))
    floating = class_counts.is_floating_point()
    counts = class_counts if floating else class_counts.to(torch.get_default_dtype())
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
    numerics.check_shapes(features=(features, "B d"), weight=(weight, "C d"), scale=(scale, "C"))
    if bias is not None:
        numerics.check_shapes(weight=(weight, "C d"), bias=(bias, "C"))
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
    numerics.check_shapes(features=(features, "B d"), weight=(weight, "C d"))
    return scale * (unit(features) @ weight.T)


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
    check_like("parameters", parameters, reference=reference)
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
    check_like("parameters", parameters, anchor=anchor, fisher=fisher)
    terms = [
        (fisher[name].detach() * (value - anchor[name].detach()).square()).sum()
        for name, value in parameters.items()
    ]
    return strength / 2 * torch.stack(terms).sum()


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
