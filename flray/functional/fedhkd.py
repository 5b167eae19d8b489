"""FedHKD: distillation from class-mean features and predictions (hyper-knowledge), and their noise.

C classes, d features. The means over clients are `flray.functional.class_vectors.merge_prototypes` with weighting
"samples".
"""

import torch
from torch import Tensor

from flray.functional.numerics import (
    check_labels,
    check_mask,
    check_positive,
    check_shapes,
    keep_rows,
    masked_mean,
)


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
        If shapes differ from the above, the mask is not boolean or the temperature is not positive.
    """
    check_shapes(logits=(logits, "C C"), predictions=(predictions, "C C"), present=(present, "C"))
    check_mask("present", present)
    check_positive("temperature", temperature)
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
    check_shapes(
        features=(features, "B d"),
        labels=(labels, "B"),
        class_features=(class_features, "C d"),
        present=(present, "C"),
    )
    check_mask("present", present)
    labels = check_labels(labels)
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
        If the shape differs or `clip` is not positive.
    """
    check_shapes(features=(features, "n d"))
    check_positive("clip", clip)
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
        If shapes differ from the above, `clip` is not positive or `noise` is negative.
    """
    check_shapes(means=(means, "C d"), counts=(counts, "C"))
    check_positive("clip", clip)
    if noise < 0:
        raise ValueError(f"noise: {noise}, expected 0 or more")
    deviation = noise * 2 * clip / counts.to(means.dtype).clamp(min=1).unsqueeze(1)
    draws = torch.randn(means.shape, dtype=means.dtype, device=means.device, generator=generator)
    return keep_rows(means + deviation * draws, counts > 0)
