"""One vector per class: means, prototypes (FedProto, FedProc, FedNH), FedSKC's and FedHKD's knowledge of classes.

K clients, C classes, d features, D entries of a knowledge vector (FedSKC: the logits, so D = C).
Rows of classes that are not present may hold anything and have no influence. Equation numbers are
those of "FedSKC: Federated Learning with Non-IID Data via Structural Knowledge Collaboration".
"""

from typing import Literal

import torch
from torch import Tensor

from flray import devices
from flray.functional import numerics
from flray.functional.numerics import keep_rows, masked_cross_entropy, masked_mean, unit


def class_means(outputs: Tensor, labels: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Return the mean output of every class (FedSKC section III-A, before the gate).

    Parameters
    ----------
    outputs : Tensor [n, D]
        One row per sample; sums are accumulated in float64.
    labels : Tensor [n] of integers
        Classes in ``[0, num_classes)``.
    num_classes : int
        C.

    Returns
    -------
    means : Tensor [C, D], dtype of `outputs`
        A class without samples has a row of zeros.
    counts : Tensor [C] of int64
        Samples per class; 0 marks an absent class.

    Raises
    ------
    ValueError
        If shapes differ from the above or a label is out of range.
    """
    numerics.check_shapes(outputs=(outputs, "n D"), labels=(labels, "n"))
    labels = numerics.check_labels(labels)
    on_host = labels.cpu()
    if on_host.numel() and (int(on_host.min()) < 0 or int(on_host.max()) >= num_classes):
        raise ValueError(
            f"labels: values {int(on_host.min())} to {int(on_host.max())}, expected 0 to {num_classes - 1}"
        )
    numbers = torch.bincount(on_host, minlength=num_classes)
    counts = devices.to_device(numbers, labels.device)
    # Sorted and summed class by class: unlike a scattered addition this has one order on a GPU, and
    # unlike a product with one-hot rows it keeps a sample that is not finite within its own class.
    groups = torch.split(outputs[labels.argsort(stable=True)], numbers.tolist())
    sums = torch.stack([group.double().sum(0) for group in groups])
    return (sums / counts.clamp(min=1).unsqueeze(1)).to(outputs.dtype), counts


def structural_knowledge(
    outputs: Tensor, labels: Tensor, num_classes: int, gate: bool = True
) -> tuple[Tensor, Tensor]:
    """Return a client's class knowledge ``c * sigmoid(c)``, c being the class means (FedSKC section III-A).

    Parameters
    ----------
    outputs : Tensor [n, D]
        The client's logits.
    labels : Tensor [n] of integers
    num_classes : int
        C.
    gate : bool
        False leaves the plain class means, as the authors' released code does.

    Returns
    -------
    knowledge : Tensor [C, D]
        Rows of absent classes are zero.
    counts : Tensor [C] of int64

    Raises
    ------
    ValueError
        As `class_means`.
    """
    means, counts = class_means(outputs, labels, num_classes)
    return (means * torch.sigmoid(means) if gate else means), counts


def global_structural_knowledge(
    knowledge: Tensor, present: Tensor, neighbours: int = 1
) -> tuple[Tensor, Tensor]:
    """Merge the clients' knowledge, each vector first averaged with its nearest ones (FedSKC Eq. 1).

    Per class, over the clients that hold it: every vector is averaged with its `neighbours` nearest
    others by Euclidean distance (or all, if there are fewer), then the plain mean over holders is
    taken. Of equally near clients the first is chosen. A single holder's vector is the result.

    Parameters
    ----------
    knowledge : Tensor [K, C, D]
        Rows that are not present may hold anything.
    present : Tensor [K, C] of bool
        Which client holds which class.
    neighbours : int
        The paper's M.

    Returns
    -------
    global_ : Tensor [C, D]
        Zero if no client holds the class.
    present : Tensor [C] of bool

    Raises
    ------
    ValueError
        If shapes differ from the above or the mask is not boolean.
    """
    sizes = numerics.check_shapes(knowledge=(knowledge, "K C D"), present=(present, "K C of bool"))
    merged = []
    for held, vectors in zip(present.T, knowledge.transpose(0, 1), strict=True):
        holders = vectors[held]
        if not len(holders):
            merged.append(knowledge.new_zeros(sizes["D"]))
            continue
        values = holders.detach().double()
        distances = torch.linalg.vector_norm(values.unsqueeze(1) - values.unsqueeze(0), dim=2)
        distances.fill_diagonal_(-1.0)  # every vector comes first in its own group
        nearest = distances.argsort(dim=1, stable=True)[:, : neighbours + 1]
        merged.append(holders.double()[nearest].mean(1).mean(0).to(knowledge.dtype))
    return torch.stack(merged) if merged else knowledge.new_zeros(0, sizes["D"]), present.any(0)


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
    labels = _check(features, labels, present, prototypes=prototypes)
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
        If shapes differ from the above or the mask is not boolean.
    """
    labels = _check(features, labels, present, prototypes=prototypes)
    directions = unit(keep_rows(prototypes.detach(), present))
    scores = (unit(features) if cosine else features) @ directions.T
    return masked_cross_entropy(scores / temperature, labels, present)


def _check(features: Tensor, labels: Tensor, present: Tensor, **vectors: Tensor) -> Tensor:
    numerics.check_shapes(
        features=(features, "B d"),
        labels=(labels, "B"),
        **{name: (value, "C d") for name, value in vectors.items()},
        present=(present, "C of bool"),
    )
    return numerics.check_labels(labels)


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
    numerics.check_shapes(
        features=(features, "B d"), prototypes=(prototypes, "C d"), present=(present, "C of bool")
    )
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
        If shapes differ from the above.
    """
    numerics.check_shapes(means=(means, "K C d"), counts=(counts, "K C"))
    held = counts > 0
    weights = torch.where(held, 1.0 if weighting == "uniform" else counts.double(), 0.0).double()
    total = weights.sum(0)
    present = held.any(0)
    sums = (keep_rows(means, held).double() * weights.unsqueeze(2)).sum(0)
    merged = (sums / torch.where(present, total, 1).unsqueeze(1)).to(means.dtype)
    if previous is not None:
        numerics.check_shapes(
            means=(means, "K C d"),
            previous=(previous[0], "C d"),
            previous_present=(previous[1], "C of bool"),
        )
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
        If shapes differ from the above.
    """
    numerics.check_shapes(
        directions=(directions, "K C d"), counts=(counts, "K C"), weight=(weight, "C d")
    )
    if momentum == 1:
        return weight.clone()
    merged, present = merge_prototypes(directions.double(), counts, "samples")
    moved = unit(momentum * weight.double() + (1 - momentum) * unit(merged))
    changed = (present & merged.any(1) & moved.any(1)).unsqueeze(1)
    return torch.where(changed, moved.to(weight.dtype), weight)


def hyper_prediction_loss(
    logits: Tensor, predictions: Tensor, present: Tensor, temperature: float = 0.5
) -> Tensor:
    """Return ``1/C sum_c ||softmax(head(H_c) / T) - Q_c||_2`` over the present classes (FedHKD).

    Parameters
    ----------
    logits : Tensor [C, C]
        The client's head applied to the global class features H; rows that are not present may hold
        anything.
    predictions : Tensor [C, C]
        Global class predictions Q; no gradient reaches them.
    present : Tensor [C] of bool
    temperature : float
        T.

    Returns
    -------
    Tensor, scalar
        Divided by C, absent classes counting as 0; the norm's gradient at 0 is 0.

    Raises
    ------
    ValueError
        If shapes differ from the above or the mask is not boolean.
    """
    numerics.check_shapes(
        logits=(logits, "C C"), predictions=(predictions, "C C"), present=(present, "C of bool")
    )
    shares = torch.softmax(keep_rows(logits, present) / temperature, dim=1)
    difference = keep_rows(shares - keep_rows(predictions.detach(), present), present)
    distances: Tensor = torch.linalg.vector_norm(difference, dim=1)
    return distances.mean()


def hyper_feature_loss(
    features: Tensor, labels: Tensor, class_features: Tensor, present: Tensor
) -> Tensor:
    """Return the mean of ``||f(x) - H_y||_2`` (FedHKD).

    Parameters
    ----------
    features : Tensor [B, d]
    labels : Tensor [B] of integers
        Samples whose class is not present are skipped.
    class_features : Tensor [C, d]
        Global class features H; no gradient reaches them.
    present : Tensor [C] of bool

    Returns
    -------
    Tensor, scalar
        Mean over the samples that are not skipped; a differentiable zero if there are none.

    Raises
    ------
    ValueError
        If shapes differ from the above or the mask is not boolean.
    """
    labels = _check(features, labels, present, class_features=class_features)
    distances = torch.linalg.vector_norm(
        features - keep_rows(class_features.detach(), present)[labels], dim=1
    )
    return masked_mean(distances, present[labels])


def clip_norms(features: Tensor, clip: float) -> Tensor:
    """Return features[n, d] with rows longer than `clip` shortened to it, which bounds a class mean's sensitivity.

    Parameters
    ----------
    features : Tensor [n, d]
        One row per sample.
    clip : float
        Largest Euclidean norm of a row, positive.

    Raises
    ------
    ValueError
        If the shape differs.
    """
    numerics.check_shapes(features=(features, "n d"))
    norms = torch.linalg.vector_norm(features, dim=1, keepdim=True)
    return torch.where(
        norms > clip, features * (clip / torch.where(norms > clip, norms, 1)), features
    )


def noisy_class_means(
    means: Tensor, counts: Tensor, clip: float, noise: float, generator: torch.Generator
) -> Tensor:
    """Return class means with Gaussian noise of standard deviation ``noise * 2 clip / n_c`` per coordinate (FedHKD).

    Parameters
    ----------
    means : Tensor [C, d]
        Means of features of norm `clip` or less.
    counts : Tensor [C]
        Samples n_c; rows without samples become zero.
    clip : float
        zeta.
    noise : float
        sigma; 0 returns the exact means.
    generator : torch.Generator
        On the means' device.

    Returns
    -------
    Tensor [C, d]

    Raises
    ------
    ValueError
        If shapes differ from the above.
    """
    numerics.check_shapes(means=(means, "C d"), counts=(counts, "C"))
    deviation = noise * 2 * clip / counts.to(means.dtype).clamp(min=1).unsqueeze(1)
    draws = torch.randn(means.shape, dtype=means.dtype, device=means.device, generator=generator)
    return keep_rows(means + deviation * draws, counts > 0)
