"""FedProx: a quadratic pull towards the round's global weights (Li et al., MLSys 2020)."""

from __future__ import annotations

import torch
from torch import Tensor

from flray.algorithms.base import Algorithm
from flray.algorithms.client import Client
from flray.algorithms.samples import Batch
from flray.registry import Params, hyper, register_algorithm


@register_algorithm("fedprox")
class FedProx(Algorithm):
    """Clients minimise ``F_k(w) + mu/2 ||w - w_t||^2``, ``w_t`` being the parameters received (no buffers)."""

    class Params(Params):
        """Hyper-parameters."""

        mu: float = hyper(0.01, "strength of the pull", "FCCL+ Table VII; default of litian96/FedProx", ge=0)

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """Return the task's loss with the proximal term."""
        received = client.message["weights"]
        distances = [(w - received[name]).square().sum() for name, w in client.parameters.items() if name in received]
        penalty: Tensor = self.hp.mu / 2 * torch.stack(distances).sum()
        return super().loss(client, batch) + penalty
