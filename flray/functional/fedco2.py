"""Fed-CO2: supervision by the peers' classifiers and the fusion of two models' predictions.

Equation numbers are those of "Fed-CO2: Cooperation of Online and Offline Models for Severe Data
Heterogeneity in Federated Learning". Its mutual distillation (Eq. 4-5) is
`flray.functional.loss_terms.distillation_loss`.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from flray.functional.numerics import check_labels, check_shapes


def peer_classifier_loss(
    features: Tensor, labels: Tensor, heads: Sequence[nn.Module], own: int
) -> Tensor:
    """Return the sum of the other clients' classifiers' cross-entropies on this client's features (Fed-CO2 Eq. 6).

    The classifiers are evaluated in eval mode and frozen: the gradient passes through them to the
    features but not to their parameters. Their modes and buffers do not change.

    Parameters
    ----------
    features : Tensor [B, d]
    labels : Tensor [B] of integers
    heads : sequence of N modules
        Each maps [B, d] to logits [B, C].
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
    check_shapes(features=(features, "B d"), labels=(labels, "B"))
    labels = check_labels(labels)
    if not 0 <= own < len(heads):
        raise ValueError(f"own: {own}, expected 0 to {len(heads) - 1}")
    outputs = {
        f"heads[{index}](features)": _frozen_call(head, features)
        for index, head in enumerate(heads)
        if index != own
    }
    check_shapes(labels=(labels, "B"), **{name: (value, "B C") for name, value in outputs.items()})
    if not outputs or not len(labels):
        return features[:0].sum()  # nothing, but part of the graph
    logits = torch.cat(list(outputs.values()))  # the peers' end to end, for a single cross-entropy
    return F.cross_entropy(logits, labels.repeat(len(outputs)), reduction="sum") / len(labels)


def _frozen_call(head: nn.Module, features: Tensor) -> Tensor:
    if not any(module.training for module in head.modules()) and not any(
        p.requires_grad for p in head.parameters()
    ):
        logits: Tensor = head(features)
        return logits
    modes = [(module, module.training) for module in head.modules()]
    constants = {
        name: value.detach() for name, value in (*head.named_parameters(), *head.named_buffers())
    }
    try:
        head.eval()
        logits = functional_call(head, constants, (features,))
    finally:
        for module, training in modes:
            module.training = training
    return logits


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
    check_shapes(online=(online, "B C"), offline=(offline, "B C"))
    return online + offline
