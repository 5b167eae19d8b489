"""FedProx: a quadratic pull towards the round's global weights (Li et al., MLSys 2020)."""

from torch import Tensor

from flray import functional, registry
from flray.algorithms.base import Algorithm, Batch, Client
from flray.registry import Preset, hyper, register_algorithm


@register_algorithm("fedprox")
class FedProx(Algorithm):
    """Clients minimise ``F_k(w) + mu/2 ||w - w_t||^2``, ``w_t`` being the parameters received (no buffers)."""

    class Params(registry.Params):
        presets = (
            Preset("fcclplus", "FCCL+ Table VII", mu=0.01),
            Preset("fedco2", "released code, feature skew", mu=0.001),
            Preset("fedco2-label-skew", "released code, label skew", mu=1.0),
            Preset("fedbn", "med-air/FedBN", mu=0.01),
        )

        mu: float = hyper(
            0.01, "strength of the pull", "FCCL+ Table VII; default of litian96/FedProx", ge=0
        )

    hp: Params
    vectorised = True

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """Return the task's loss with the proximal term."""
        received = {name: client.message["weights"][name] for name in client.parameters}
        return super().loss(client, batch) + functional.proximal_penalty(
            client.parameters, received, self.hp.mu
        )
