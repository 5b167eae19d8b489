"""Distillation terms: the teacher is a constant, probabilities are taken over all classes, means over the batch."""

import torch
from torch import Tensor

from flray.functional.checks import check_labels, check_positive, check_shapes
from flray.functional.numerics import batch_mean


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
        If shapes differ from the above or the temperature is not positive.
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
    single values may be negative. The factor tau^2 of the authors' released code is not included.

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
        If shapes differ from the above or the temperature is not positive.
    """
    check_shapes(student=(student, "B C"), labels=(labels, "B"))
    terms = _class_terms(student, teacher, temperature)
    target = torch.zeros_like(terms, dtype=torch.bool).scatter(
        1, check_labels(labels).unsqueeze(1), True
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
    check_shapes(scores=(scores, "B C"), consensus=(consensus, "B C"))
    return batch_mean((scores - consensus.detach()).abs())


def _class_terms(student: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    check_shapes(student=(student, "B C"), teacher=(teacher, "B C"))
    check_positive("temperature", temperature)
    log_student = torch.log_softmax(student / temperature, dim=1)
    log_teacher = torch.log_softmax(teacher.detach() / temperature, dim=1)
    return log_teacher.exp() * (log_teacher - log_student)
