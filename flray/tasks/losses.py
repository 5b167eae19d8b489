"""Losses that training may minimise in place of the task's: ``local.loss``.

A loss is a function of the network's ``outputs`` and the ``targets`` of a batch; it returns a mean over the batch. Its
keyword-only parameters are its options. A third parameter, ``counts`` [C], is the client's training samples of each
class; such a loss needs a task whose outputs are the logits of fixed classes.
"""

from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from pydantic import Discriminator, Field, Tag
from torch import Tensor

from flray import devices
from flray.errors import ConfigError
from flray.registry import register_loss

Weight = Annotated[float, Field(gt=0, le=1e6)]
ClassWeights = Annotated[
    Annotated[Literal["balanced"] | None, Tag("[name]")]
    | Annotated[tuple[Weight, ...], Tag("[numbers]")],
    Discriminator(lambda value: "[numbers]" if isinstance(value, list | tuple) else "[name]"),
    Field(
        description="of the classes, a number for each; balanced: at each client so that all classes which it holds "
        "weigh the same in an epoch (n / (k n_c) for k classes); null: all the same"
    ),
]


@register_loss("cross-entropy")
def cross_entropy(
    outputs: Tensor,
    targets: Tensor,
    counts: Tensor,
    *,
    weights: ClassWeights = None,
    smoothing: Annotated[
        float, Field(ge=0, lt=1, description="share of each label that is spread over all classes")
    ] = 0.0,
) -> Tensor:
    """Cross-entropy of logits and labels, with class weights and label smoothing (Szegedy et al. 2016)."""
    return F.cross_entropy(
        outputs, targets, _class_weights(weights, outputs, counts), label_smoothing=smoothing
    )


@register_loss("focal")
def focal(
    outputs: Tensor,
    targets: Tensor,
    counts: Tensor,
    *,
    gamma: Annotated[
        float,
        Field(
            ge=0,
            le=100,
            description="how much less a sample counts that is right; 0: cross-entropy",
        ),
    ] = 2.0,
    weights: ClassWeights = None,
) -> Tensor:
    """Focal loss ``-(1 - p)^gamma log p`` of the label's probability p (Lin et al., ICCV 2017, Eq. 4 and 5)."""
    log_p = F.log_softmax(outputs, dim=1).gather(1, targets.unsqueeze(1)).squeeze(1)
    # The least number instead of 0, where the slope of a root is infinite.
    rest = (-torch.expm1(log_p)).clamp_min(torch.finfo(log_p.dtype).tiny)
    losses = -rest.pow(gamma) * log_p
    of_class = _class_weights(weights, outputs, counts)
    if of_class is None:
        return losses.mean()
    of_sample = of_class[targets]
    return (of_sample * losses).sum() / of_sample.sum()


@register_loss("huber")
def huber(
    outputs: Tensor,
    targets: Tensor,
    *,
    delta: Annotated[
        float, Field(gt=0, le=1e6, description="error from which on it counts linearly")
    ] = 1.0,
) -> Tensor:
    """Huber loss of numbers, less moved by outliers than least squares (Huber 1964)."""
    if outputs.shape != targets.shape:
        why = f"it compares numbers: outputs are {list(outputs.shape)}, targets {list(targets.shape)}; leave it out"
        raise ConfigError("experiment.local.loss", "huber", why)
    return F.huber_loss(outputs, targets.to(outputs.dtype), delta=delta)


def _class_weights(
    weights: Literal["balanced"] | tuple[float, ...] | None, outputs: Tensor, counts: Tensor
) -> Tensor | None:
    """Return the weight of each output, 0 for outputs beyond the classes; None if all weigh the same."""
    if weights is None:
        return None
    if isinstance(weights, str):
        held, sizes = counts > 0, counts.to(outputs.dtype)
        found = torch.where(held, sizes.sum() / (held.sum() * sizes.clamp(min=1)), 0.0)
    elif len(weights) == len(counts):
        found = devices.to_device(torch.tensor(weights, dtype=outputs.dtype), outputs.device)
    else:
        why = f"the data have {len(counts)} classes; give a weight for each, or balanced"
        raise ConfigError("experiment.local.loss.weights", f"{len(weights)} weights", why)
    return F.pad(found, (0, outputs.shape[1] - len(counts)))
