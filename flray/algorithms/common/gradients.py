"""Gradients at other parameters than the model's, for methods whose step looks somewhere else first."""

from collections.abc import Mapping

import torch
from torch import Tensor
from torch.func import functional_call

from flray.algorithms.base import Batch, Client


def gradient_at(
    client: Client,
    batch: Batch,
    parameters: Mapping[str, Tensor],
    buffers: Mapping[str, Tensor] | None = None,
) -> tuple[dict[str, Tensor], Tensor]:
    """Return the gradient of the task's loss on a batch at given parameters; the model itself does not change.

    The random state is restored, so that the next forward pass drops out the same units.

    Parameters
    ----------
    client : Client
        Its model computes the gradient, in its current mode.
    batch : Batch
        Only its inputs and labels are used, never its outputs.
    parameters : dict of Tensor
        A value for each of the model's parameters.
    buffers : dict of Tensor, optional
        Buffers to use, and to update in place; by default the model's own.

    Returns
    -------
    gradient : dict of Tensor
        By the parameters' names.
    loss : Tensor
        Scalar.
    """
    leaves = {
        name: parameters[name].detach().clone().requires_grad_() for name in client.parameters
    }
    with torch.random.fork_rng(devices=[client.device] if client.device.type == "cuda" else []):
        outputs = functional_call(client.model, {**leaves, **(buffers or {})}, (batch.x,))
    loss = client.task.loss(outputs, batch.y)
    return dict(
        zip(leaves, torch.autograd.grad(loss, list(leaves.values())), strict=True)
    ), loss.detach()
