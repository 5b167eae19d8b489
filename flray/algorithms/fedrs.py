"""FedRS: do not push away the classifier's rows of classes one does not have (Li, Zhan, KDD 2021)."""

from torch import Tensor, nn

from flray import functional, registry
from flray.algorithms.base import Algorithm, Batch, Client, Server
from flray.models import linear_classifier
from flray.registry import Preset, hyper, register_algorithm


@register_algorithm("fedrs")
class FedRS(Algorithm):
    """Clients train on ``alpha_c <h, W_c> + b_c`` with ``alpha_c < 1`` for the classes they lack; tests do not scale.

    Where every client holds every class, the binary rule is FedAvg.
    """

    class Params(registry.Params):
        presets = (
            Preset("fcclplus", "Table VII; graded, as its numbers imply", alpha=0.5, graded=True),
        )

        alpha: float = hyper(
            0.5, "scale of the missing classes", "FCCL+ Table VII; FedRS, experiments", ge=0, le=1
        )
        graded: bool = hyper(
            False,
            "the scale grows with a class's share: alpha + (1 - alpha) n_c / max n "
            "(lxcnju/FedRepo; FCCL+, by its numbers)",
            "FedRS, restricted softmax: 1 or alpha",
        )

    hp: Params
    needs = frozenset({"split", "classification", "exact_logits"})

    def network(self, model: nn.Module) -> nn.Module:
        """Refuse classifiers of several layers."""
        linear_classifier(model)
        return model

    def server_setup(self, server: Server) -> None:
        """Warn if no logit is scaled."""
        everywhere = all(bool((client.class_counts > 0).all()) for client in server.clients)
        if everywhere and not self.hp.graded and self.hp.alpha < 1:
            server.warn(
                "scale",
                "every client has every class, so no logit is scaled and it trains as fedavg; "
                "algorithm.graded=true scales by a class's share",
            )

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """Return the cross-entropy of the restricted logits."""
        head = linear_classifier(client.model)
        scale = functional.restricted_scale(
            client.class_counts.to(head.weight.dtype), self.hp.alpha, self.hp.graded
        )
        logits = functional.restricted_softmax_logits(batch.features, head.weight, head.bias, scale)
        return client.task.loss(logits, batch.y)
