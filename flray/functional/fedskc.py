"""FedSKC: local contrastive learning, global discrepancy aggregation and global period review.

Equation numbers are those of "FedSKC: Federated Learning with Non-IID Data via Structural Knowledge
Collaboration". K clients, C classes, D entries of a knowledge vector (FedSKC: the logits, so D =
C). How the knowledge itself is made is in `flray.functional.class_vectors`.
"""

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from flray.functional import numerics
from flray.functional.numerics import (
    keep_rows,
    map_floating,
    masked_cross_entropy,
    masked_mean,
    unit,
)
from flray.trees import Tree, Weights


def local_contrastive_loss(
    logits: Tensor,
    labels: Tensor,
    prototypes: Tensor,
    present: Tensor,
    temperature: float = 0.08,
    normaliser: Literal["distance", "none"] = "distance",
    *,
    positive_twice: bool = False,
    without_prototype: Literal["skip", "own"] = "skip",
) -> Tensor:
    """Contrast samples with the global class knowledge (LCL, FedSKC Eq. 2-3).

    ``s(l, c_j) = cos(l, c_j) / U_j`` with ``U_j`` the mean over the batch of ``||l - c_j||_2``; the
    loss is the cross-entropy of ``s / temperature`` over the present classes. ``U_j`` and the
    prototypes are constants for the gradient. If ``U_j`` is zero (every sample equals the
    prototype), 1 is used; the cosine with a zero vector is 0 with zero gradient.

    Parameters
    ----------
    logits : Tensor [n, D]
        D = C logits; in few-shot learning D-dimensional embeddings.
    labels : Tensor [n] of integers
        Samples whose class is not present are skipped (see `without_prototype`): they count in
        ``U`` only.
    prototypes : Tensor [C, D]
        Global knowledge; rows that are not present may hold anything.
    present : Tensor [C] of bool
    temperature : float
        The paper's tau.
    normaliser : {"distance", "none"}
        "none" sets ``U = 1``, as the authors' released code does.
    positive_twice : bool
        Add the positive to the softmax's denominator once more, as the authors' released code does.
    without_prototype : {"skip", "own"}
        "own" keeps a sample without prototype: its logits, constant and with ``U = 1``, are the
        positive beside all prototypes, as in the authors' released code.

    Returns
    -------
    Tensor, scalar
        Mean over the samples that are not skipped; a differentiable zero if there are none.

    Raises
    ------
    ValueError
        If shapes differ from the above or the mask is not boolean.
    """
    numerics.check_shapes(
        logits=(logits, "n D"),
        labels=(labels, "n"),
        prototypes=(prototypes, "C D"),
        present=(present, "C of bool"),
    )
    labels = numerics.check_labels(labels)
    prototypes = keep_rows(prototypes.detach(), present)
    similarity = unit(logits) @ unit(prototypes).T
    if normaliser == "distance":
        distances = torch.cdist(
            logits.detach(), prototypes, compute_mode="donot_use_mm_for_euclid_dist"
        )
        mean_distance = distances.sum(0) / max(len(logits), 1)
        similarity = similarity / torch.where(mean_distance > 0, mean_distance, 1)
    scores = similarity / temperature
    if without_prototype == "skip" and not positive_twice:
        return masked_cross_entropy(scores, labels, present)
    scores = scores.masked_fill(~present, float("-inf"))
    own = (unit(logits) * unit(logits.detach())).sum(1) / temperature
    held = present[labels]
    positive = torch.where(held, scores.gather(1, labels.unsqueeze(1)).squeeze(1), own)
    once_more = positive.masked_fill(held & (not positive_twice), float("-inf")).unsqueeze(1)
    counted = held | (without_prototype == "own")
    return masked_mean(torch.logsumexp(torch.cat([scores, once_more], 1), 1) - positive, counted)


def knowledge_discrepancy(knowledge: Tensor, present: Tensor, global_: Tensor) -> Tensor:
    """Return ``d_k``, the distances of a client's knowledge to the global one summed over its classes (FedSKC III-B).

    Parameters
    ----------
    knowledge : Tensor [K, C, D]
        Rows that are not present may hold anything.
    present : Tensor [K, C] of bool
    global_ : Tensor [C, D]
        Rows of classes that no client holds may hold anything.

    Returns
    -------
    Tensor [K]
        0 for a client that holds no class.

    Raises
    ------
    ValueError
        If shapes differ from the above or the mask is not boolean.
    """
    numerics.check_shapes(
        knowledge=(knowledge, "K C D"), present=(present, "K C of bool"), global_=(global_, "C D")
    )
    difference = keep_rows(knowledge, present) - keep_rows(global_.expand_as(knowledge), present)
    distances: Tensor = torch.linalg.vector_norm(difference.double(), dim=2)
    return distances.sum(1).to(knowledge.dtype)


def discrepancy_weights(
    num_samples: Tensor, discrepancy: Tensor, *, sample_scale: Literal["raw", "fraction"] = "raw"
) -> Tensor:
    """Return the aggregation weights ``e_k`` of global discrepancy aggregation (GDA, FedSKC Eq. 4).

    ``e_k`` is proportional to ``sigmoid(N_k - a_k d_k + b_k)``, ``a_k = d_k / sum d`` and ``b_k =
    N_k / sum N``. Computed as the softmax of log-sigmoids, which neither saturates nor underflows
    where the plain ratio is 0 / 0. With ``N_k`` beyond about 40 every sigmoid is 1 and the weights
    are uniform.

    Parameters
    ----------
    num_samples : Tensor [K]
        Samples per client, integers or floats.
    discrepancy : Tensor [K]
        ``d_k`` of `knowledge_discrepancy`.
    sample_scale : {"raw", "fraction"}
        "fraction" puts ``N_k / sum N`` in place of ``N_k`` inside the sigmoid, so that the
        discrepancy can act.

    Returns
    -------
    Tensor [K]
        Sums to 1; dtype of `discrepancy`. All discrepancies zero: ``a_k = 0``. All sizes zero:
        ``b_k = 0``.

    Raises
    ------
    ValueError
        If shapes differ from the above or a value is negative or not finite.
    """
    numerics.check_shapes(num_samples=(num_samples, "K"), discrepancy=(discrepancy, "K"))
    for name, values in (("num_samples", num_samples), ("discrepancy", discrepancy)):
        if not bool((torch.isfinite(values) & (values >= 0)).all()):
            raise ValueError(f"{name}: {values.tolist()}, expected finite values of 0 or more")
    if not len(num_samples):
        raise ValueError("num_samples: shape [0], expected at least one client")
    distance = discrepancy.double()
    fraction = _shares(num_samples.double())
    size = num_samples.double() if sample_scale == "raw" else fraction
    weights = torch.softmax(F.logsigmoid(size - _shares(distance) * distance + fraction), dim=0)
    return weights.to(discrepancy.dtype) if discrepancy.is_floating_point() else weights


def _shares(values: Tensor) -> Tensor:
    largest = values.max()
    scaled = values / torch.where(largest > 0, largest, 1)
    return scaled / torch.where(largest > 0, scaled.sum(), 1)


def variance_change(
    knowledge_now: Tensor,
    knowledge_before: Tensor,
    present_now: Tensor | None = None,
    present_before: Tensor | None = None,
    *,
    classes: Literal["both", "each"] = "both",
) -> float | None:
    """Return ``rho``, the relative change of the knowledge's variance between two rounds (FedSKC Eq. 5).

    ``rho = (sum_j var_r(j) - sum_j var_{r-1}(j)) / sum_j var_{r-1}(j)``; the variance is over the D
    entries of a class's vector, divided by D.

    Parameters
    ----------
    knowledge_now, knowledge_before : Tensor [C, D]
        Rows that are not present may hold anything.
    present_now, present_before : Tensor [C] of bool, optional
        Without a mask every row whose entries are all finite counts.
    classes : {"both", "each"}
        Each sum is over the classes present in both rounds, or over those of its round, as in the
        authors' released code.

    Returns
    -------
    float or None
        None if ``rho`` is undefined: no class counts, or the earlier variance is zero.

    Raises
    ------
    ValueError
        If shapes differ from the above or a mask is not boolean.
    """
    numerics.check_shapes(
        knowledge_now=(knowledge_now, "C D"), knowledge_before=(knowledge_before, "C D")
    )
    masks = []
    for name, knowledge, present in (
        ("present_now", knowledge_now, present_now),
        ("present_before", knowledge_before, present_before),
    ):
        if present is not None:
            numerics.check_shapes(knowledge=(knowledge, "C D"), **{name: (present, "C of bool")})
        masks.append(torch.isfinite(knowledge).all(1) if present is None else present)
    if classes == "both":
        masks = [masks[0] & masks[1]] * 2
    now, before = (
        float(_spread(knowledge[mask]))
        for knowledge, mask in zip((knowledge_now, knowledge_before), masks, strict=True)
    )
    return (now - before) / before if before > 0 else None


def _spread(knowledge: Tensor) -> Tensor:
    # Shifted by a row's own first entry: a constant row then has a variance of exactly zero.
    shifted = knowledge.double() - knowledge[:, :1].double()
    return (shifted - shifted.mean(1, keepdim=True)).square().mean(1).sum()


def period_review(
    current: Tree,
    previous: Tree,
    knowledge_now: Tensor,
    knowledge_before: Tensor,
    beta: float = 0.95,
    *,
    present_now: Tensor | None = None,
    present_before: Tensor | None = None,
    review: Literal["paper", "interpolate"] = "paper",
    classes: Literal["both", "each"] = "both",
) -> Weights:
    """Correct the global model by the previous one (global period review, GPR, FedSKC Eq. 5).

    "paper": ``beta w + (1 - beta) rho (w' - w)``, as printed: its coefficients sum to `beta`, so
    that the model shrinks by ``1 - beta`` a round. "interpolate": ``w + (1 - beta) rho (w' - w)``.
    ``rho`` as in `variance_change`. Where ``rho`` is undefined there is nothing to review by and
    `current` is returned, as in the first round.

    Parameters
    ----------
    current, previous : dict of Tensor
        ``w`` and ``w'``. Integer and boolean tensors are returned as `current` has them.
    knowledge_now, knowledge_before : Tensor [C, D]
        Global structural knowledge of this round and of the one before.
    beta : float
        Momentum, 0 to 1.
    present_now, present_before : Tensor [C] of bool, optional
        Classes that each knowledge holds; without a mask, every row whose entries are all finite.
    review : {"paper", "interpolate"}
    classes : {"both", "each"}
        As in `variance_change`.

    Returns
    -------
    dict of Tensor
        Like `current`; computed in float64.

    Raises
    ------
    ValueError
        If shapes or names differ or a mask is not boolean.
    """
    masks = (present_now, present_before)
    rho = variance_change(knowledge_now, knowledge_before, *masks, classes=classes)
    if rho is None:
        return map_floating(lambda w, _: w.clone(), current, previous=previous)
    kept, pull = (beta if review == "paper" else 1.0), (1 - beta) * rho
    return map_floating(
        lambda w, w_before: kept * w + pull * (w_before - w), current, previous=previous
    )
