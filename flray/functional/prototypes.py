"""Class prototypes: FedProto's and FedProc's terms, the mean over clients, nearest prototypes, FedNH's update.

C classes, d features. Rows of classes that are not present may hold anything and have no influence.
"""

from typing import Literal

import torch
from torch import Tensor

from flray.functional import checks
from flray.functional.numerics import keep_rows, masked_cross_entropy, masked_mean, unit


def prototype_loss(
    features: Tensor, labels: Tensor, prototypes: Tensor, present: Tensor, per_feature: bool = False
) -> Tensor:
    """Return the mean squared distance of samples to their class's prototype, ``||f - P_y||^2`` (FedProto).

    Parameters
    ----------
    features : Tensor [B, d]
    labels : Tensor [B] of integers
        Samples whose class is not present are skipped.
    prototypes : Tensor [C, d]
        No gradient reaches them.
    present : Tensor [C] of bool
    per_feature : bool
        Divide by d as well, as the authors' released code does.

    Returns
    -------
    Tensor, scalar
        Mean over the samples that are not skipped; a differentiable zero if there are none.

    Raises
    ------
    ValueError
        If shapes differ from the above or the mask is not boolean.
    """
    labels = _check(features, labels, prototypes, present)
    squares = (features - keep_rows(prototypes.detach(), present)[labels]).square().sum(1)
    return masked_mean(squares / features.shape[1] if per_feature else squares, present[labels])


def prototype_contrastive_loss(
    features: Tensor,
    labels: Tensor,
    prototypes: Tensor,
    present: Tensor,
    temperature: float = 1.0,
    cosine: bool = False,
) -> Tensor:
    """Return ``-log(e^{<r, P_y>} / sum_c e^{<r, P_c>})`` with unit prototypes over the present classes (FedProc).

    Parameters
    ----------
    features : Tensor [B, d]
        r, not normalised.
    labels : Tensor [B] of integers
        Samples whose class is not present are skipped.
    prototypes : Tensor [C, d]
        Of any length; no gradient reaches them.
    present : Tensor [C] of bool
    temperature : float
        Divides the products; the authors' code has none (1).
    cosine : bool
        Use features of length 1, as some other implementations do.

    Returns
    -------
    Tensor, scalar
        Mean over the samples that are not skipped; a differentiable zero if there are none.

    Raises
    ------
    ValueError
        If shapes differ from the above, the mask is not boolean or the temperature is not positive.
    """
    labels = _check(features, labels, prototypes, present)
    checks.check_positive("temperature", temperature)
    directions = unit(keep_rows(prototypes.detach(), present))
    scores = (unit(features) if cosine else features) @ directions.T
    return masked_cross_entropy(scores / temperature, labels, present)


def _check(features: Tensor, labels: Tensor, prototypes: Tensor, present: Tensor) -> Tensor:
    checks.check_shapes(
        features=(features, "B d"),
        labels=(labels, "B"),
        prototypes=(prototypes, "C d"),
        present=(present, "C"),
    )
    checks.check_mask("present", present)
    return checks.check_labels(labels)


def prototype_scores(features: Tensor, prototypes: Tensor, present: Tensor) -> Tensor:
    """Return scores whose largest entry is the nearest prototype's class (FedProto's prediction).

    Parameters
    ----------
    features : Tensor [B, d]
    prototypes : Tensor [C, d]
    present : Tensor [C] of bool

    Returns
    -------
    Tensor [B, C]
        Minus the Euclidean distance; minus infinity for classes that are not present.

    Raises
    ------
    ValueError
        If shapes differ from the above or the mask is not boolean.
    """
    checks.check_shapes(
        features=(features, "B d"), prototypes=(prototypes, "C d"), present=(present, "C")
    )
    checks.check_mask("present", present)
    distances = torch.cdist(
        features, keep_rows(prototypes, present), compute_mode="donot_use_mm_for_euclid_dist"
    )
    return (-distances).masked_fill(~present, float("-inf"))


def merge_prototypes(
    means: Tensor,
    counts: Tensor,
    weighting: Literal["uniform", "samples"] = "uniform",
    previous: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the mean of the clients' class vectors over the clients that hold the class.

    Parameters
    ----------
    means : Tensor [K, C, d]
        Class means of K clients.
    counts : Tensor [K, C]
        Samples behind each mean; 0 marks a class that the client does not hold or did not send.
    weighting : {"uniform", "samples"}
        Plain mean over holders (FedProto's released code), or weighted by counts, which equals the
        mean of all samples (FedProc, FedHKD).
    previous : (Tensor [C, d], Tensor [C] of bool), optional
        Kept for the classes that nobody sent.

    Returns
    -------
    prototypes : Tensor [C, d]
        Zero for a class that was never sent.
    present : Tensor [C] of bool

    Raises
    ------
    ValueError
        If shapes differ from the above or the weighting is unknown.
    """
    checks.check_shapes(means=(means, "K C d"), counts=(counts, "K C"))
    checks.check_choice("weighting", weighting, ("uniform", "samples"))
    held = counts > 0
    weights = torch.where(held, 1.0 if weighting == "uniform" else counts.double(), 0.0).double()
    total = weights.sum(0)
    present = held.any(0)
    sums = (keep_rows(means, held).double() * weights.unsqueeze(2)).sum(0)
    merged = (sums / torch.where(present, total, 1).unsqueeze(1)).to(means.dtype)
    if previous is not None:
        checks.check_shapes(
            means=(means, "K C d"),
            previous=(previous[0], "C d"),
            previous_present=(previous[1], "C"),
        )
        checks.check_mask("previous_present", previous[1])
        kept = keep_rows(previous[0], previous[1] & ~present)
        merged, present = torch.where(present.unsqueeze(1), merged, kept), present | previous[1]
    return merged, present


def update_directions(
    weight: Tensor, directions: Tensor, counts: Tensor, momentum: float = 0.9
) -> Tensor:
    """Return FedNH's class vectors after a round, ``normalise(rho W + (1 - rho) normalise(sum n u / sum n))``.

    Parameters
    ----------
    weight : Tensor [C, d]
        Unit rows W.
    directions : Tensor [K, C, d]
        The clients' normalised class means u.
    counts : Tensor [K, C]
        Samples behind each; 0 marks an absent class.
    momentum : float
        rho in [0, 1]; 1 returns W unchanged to the bit.

    Returns
    -------
    Tensor [C, d]
        Unit rows; the row of a class that nobody holds, or whose directions cancel, stays.

    Raises
    ------
    ValueError
        If shapes differ from the above or `momentum` is outside [0, 1].
    """
    checks.check_shapes(
        directions=(directions, "K C d"), counts=(counts, "K C"), weight=(weight, "C d")
    )
    if not 0 <= momentum <= 1:
        raise ValueError(f"momentum: {momentum}, expected 0 to 1")
    if momentum == 1:
        return weight.clone()
    merged, present = merge_prototypes(directions.double(), counts, "samples")
    moved = unit(momentum * weight.double() + (1 - momentum) * unit(merged))
    changed = (present & merged.any(1) & moved.any(1)).unsqueeze(1)
    return torch.where(changed, moved.to(weight.dtype), weight)
