"""MOON: towards the global model's representation, away from the client's last one (Li, He, Song, CVPR 2021)."""

import torch
from torch import Tensor

from flray import functional, registry
from flray.algorithms.base import Algorithm, Client, Message
from flray.algorithms.common.samples import Batch, mean_over_positions
from flray.models import as_split
from flray.registry import Preset, hyper, register_algorithm


@register_algorithm("moon")
class MOON(Algorithm):
    """Clients minimise ``CE + mu l_con``: the received model's features attract, those of the last local model repel.

    Features are the classifier's inputs, with feature maps averaged over positions; the authors put
    a projection head of two layers there, which belongs to the network and so to every method that
    is compared. Client state: the model as it was after the client's own last training. In its
    first training both references are the received model, and the term has no gradient.
    """

    class Params(registry.Params):
        presets = (
            Preset("fcclplus", "FCCL+ Table VII", mu=1.0, tau=0.5),
            Preset("fedco2", "released code", mu=1.0, tau=0.5),
        )

        mu: float = hyper(
            1.0,
            "weight of the contrast",
            "FCCL+ Table VII; MOON: 1 for CIFAR-100 and Tiny-ImageNet, 5 for CIFAR-10",
            ge=0,
        )
        tau: float = hyper(0.5, "temperature", "MOON, experiments; FCCL+ Table VII", gt=0)

    hp: Params
    needs = frozenset({"features", "homogeneous"})

    def begin(self, client: Client) -> None:
        """Freeze the received model and the client's last one."""
        client.scratch["received"] = as_split(client.reference(role="received")).features
        client.scratch["previous"] = as_split(
            client.reference(client.state.get("previous"), "previous")
        ).features

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """Return the task's loss with the model-contrastive term."""
        with torch.no_grad():
            received = client.scratch["received"](batch.x)
            previous = client.scratch["previous"](batch.x)
        features, positive, negative = (
            mean_over_positions(one) for one in (batch.features, received, previous)
        )
        contrast = functional.model_contrastive_loss(features, positive, negative, self.hp.tau)
        return super().loss(client, batch) + self.hp.mu * contrast

    def report(self, client: Client) -> Message:
        """Keep the trained model for the next training."""
        client.state["previous"] = client.snapshot()
        return super().report(client)
