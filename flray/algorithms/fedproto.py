"""FedProto: class prototypes are shared, weights are not (Tan, Long, Liu, Zhou, Lu, Jiang, Zhang, AAAI 2022)."""

from typing import Literal

from torch import Tensor

from flray import functional, registry
from flray.algorithms.base import Algorithm, Batch, Client, Server
from flray.algorithms.common.client_parts import class_features, keep_class_means
from flray.algorithms.types import Message, Predictor, Replies, View
from flray.models import as_split
from flray.registry import Preset, hyper, register_algorithm


@register_algorithm("fedproto")
class FedProto(Algorithm):
    """Clients minimise ``CE + lam ||f(x) - P_y||^2``; networks may differ, but not in their number of features.

    Down: the prototypes P with the mask of their classes, once there are any. Up: the means of the
    trained model's features over the client's samples of each class, and their counts. A class
    keeps its prototype while nobody sends it; before the first round there is none, and the
    classifier predicts. In few-shot learning features are the embedding: the distance is added to
    an episode's loss, and unseen classes have their episode's prototypes.
    """

    class Params(registry.Params):
        presets = (Preset("fedskc", "its tables test one global model", aggregate_weights=True),)

        lam: float = hyper(
            1.0, "weight of the distance to the prototype", "yuetan031/FedProto: ld = 1", ge=0
        )
        per_feature: bool = hyper(
            True,
            "the squared distance is divided by the number of features",
            "yuetan031/FedProto, whose lam belongs to it; the paper: no",
        )
        weighting: Literal["uniform", "samples"] = hyper(
            "uniform",
            "weights of the clients in a prototype",
            "yuetan031/FedProto: plain mean over holders",
        )
        predict: Literal["prototype", "classifier"] = hyper(
            "prototype",
            "what the personal models predict by",
            "FedProto, section on inference: nearest prototype",
        )
        own_classes: bool = hyper(
            False,
            "the nearest prototype is sought among the client's own classes only",
            "a decision: all known classes; yuetan031/FedProto: own ones",
        )
        aggregate_weights: bool = hyper(
            False,
            "weights are averaged as well, which gives one global model",
            "FedProto: no; the table of FedSKC needs it, WenkeHuang/MarsFL has it",
        )

    hp: Params
    needs = frozenset({"features", "same_features", "labels"})
    sent = ("prototypes",)
    shared = "none"
    views: tuple[View, ...] = ("personal",)

    def __init__(self, hp: Params | None = None) -> None:
        super().__init__(hp)
        if self.hp.aggregate_weights:
            self.shared, self.views = "all", ("global", "personal")

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """Return CE with the distance to the prototypes; CE alone as long as there are none."""
        loss, known = super().loss(client, batch), client.message.get("prototypes")
        if known is None:
            return loss
        distance = functional.prototype_loss(
            batch.features, batch.y, known["vectors"], known["present"], self.hp.per_feature
        )
        return loss + self.hp.lam * distance

    def report(self, client: Client) -> Message:
        """Send the class means of the trained model's features."""
        return {**super().report(client), "prototypes": class_features(client)}

    def predictor(self, client: Client, view: View) -> Predictor:
        """Score by minus the distance to each prototype; in few-shot learning return the embedding."""
        model, known = as_split(client.model.eval()), client.message.get("prototypes")
        # Each episode has other classes, and so other prototypes.
        if known is None or self.hp.predict == "classifier" or not client.task.logits:
            return model
        candidates = known["present"]
        if self.hp.own_classes:
            candidates = candidates & (client.class_counts > 0)
        return lambda x: functional.prototype_scores(
            model.features(x), known["vectors"], candidates
        )

    def after_average(self, server: Server, replies: Replies) -> None:
        """Average the prototypes over the clients that hold the class."""
        keep_class_means(server, replies, "prototypes", self.hp.weighting)
