"""FedProc: features towards the global prototype of their class, away from the others (Mu et al., 2021)."""

from torch import Tensor

from flray import functional, registry
from flray.algorithms.base import Algorithm, Batch, Client, Message, Replies, Server
from flray.algorithms.common.client_parts import class_features, keep_class_means
from flray.registry import Preset, hyper, register_algorithm


@register_algorithm("fedproc")
class FedProc(Algorithm):
    """Clients minimise ``alpha CE + (1 - alpha) l_pc``, alpha growing over the rounds; CE alone in the first one.

    Down: weights, and from round 2 the prototypes P with the mask of their classes. Up: weights,
    the means of the trained model's features over the client's samples of each class, and their
    counts. P is the mean over all samples.
    """

    class Params(registry.Params):
        presets = (Preset("fcclplus", "FCCL+ Table VII", alpha=0.5),)

        alpha: float | None = hyper(
            None,
            "weight of CE; null: round / ramp, up to 1",
            "MuXutong/FedProc: grows; FCCL+ Table VII: 0.5",
            ge=0,
            le=1,
        )
        ramp: int = hyper(
            100, "rounds until CE is alone", "MuXutong/FedProc: 100, the number of rounds", ge=1
        )
        temperature: float = hyper(
            1.0, "divides the products with the prototypes", "MuXutong/FedProc: none", gt=0
        )
        cosine: bool = hyper(
            False,
            "features of length 1 in the products",
            "MuXutong/FedProc: no; WenkeHuang/MarsFL: yes",
        )

    hp: Params
    needs = frozenset({"split", "homogeneous", "classification"})
    averages_waited = True
    sent = ("prototypes",)

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """Return CE and the prototypical contrast in the round's proportion."""
        loss, known = super().loss(client, batch), client.message.get("prototypes")
        if known is None:
            return loss
        alpha = min(client.round / self.hp.ramp, 1.0) if self.hp.alpha is None else self.hp.alpha
        given = (known["vectors"], known["present"], self.hp.temperature, self.hp.cosine)
        contrast = functional.prototype_contrastive_loss(batch.features, batch.y, *given)
        return alpha * loss + (1 - alpha) * contrast

    def report(self, client: Client) -> Message:
        """Send the weights and the class means of the trained model's features."""
        return {**super().report(client), "prototypes": class_features(client)}

    def after_average(self, server: Server, replies: Replies) -> None:
        """Let the prototypes be the means over all samples."""
        keep_class_means(server, replies, "prototypes", "samples")
