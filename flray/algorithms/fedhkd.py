"""FedHKD: noisy class-mean features and predictions as targets to distil (Chen, Wang, Vikalo, ICLR 2023)."""

import torch
from torch import Tensor

from flray import devices, functional, registry
from flray.algorithms.base import Algorithm, Batch, Client, Server
from flray.algorithms.common.client_parts import features_of, keep_class_means
from flray.algorithms.types import Message, Predictor, Replies, View
from flray.models import as_split
from flray.registry import Preset, hyper, register_algorithm


@register_algorithm("fedhkd")
class FedHKD(Algorithm):
    """Clients minimise ``CE + lam / C sum_c ||softmax(head(H_c) / T) - Q_c|| + gamma ||f(x) - H_y||``.

    Down: weights, and from round 2 the hyper-knowledge H, Q with the mask of its classes. Up:
    weights, and of the classes above the threshold the means of clipped features with noise, the
    means of soft predictions without noise, and counts. The noise is that of one release, without a
    claim of privacy over the rounds. The personal model is the client's own after its last
    training.
    """

    class Params(registry.Params):
        presets = (Preset("lgmix", "FedHKD's code: every class is sent", threshold=0.0),)

        lam: float = hyper(
            0.05, "weight of the distance between predictions", "FedHKD, experiments", ge=0
        )
        gamma: float = hyper(
            0.05, "weight of the distance between features", "FedHKD, experiments", ge=0
        )
        temperature: float = hyper(0.5, "T of the soft predictions", "FedHKD, experiments", gt=0)
        threshold: float = hyper(
            0.25,
            "least share of a client's samples for a class to be sent, nu",
            "FedHKD, experiments",
            ge=0,
            le=1,
        )
        noise: float = hyper(
            7.0, "sigma: the deviation is sigma 2 clip / n_c", "FedHKD, experiments", ge=0
        )
        clip: float = hyper(
            3.0,
            "zeta: norm to which features are clipped",
            "a decision: FedHKD's code does not clip, KarhouTam/FL-bench takes the data's largest",
            gt=0,
        )

    hp: Params
    needs = frozenset({"split", "homogeneous", "classification", "exact_logits"})
    averages_waited = True
    sent = ("knowledge",)
    views = ("personal", "global")

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """Return CE with both distances to the hyper-knowledge; CE alone as long as there is none."""
        loss, known = super().loss(client, batch), client.message.get("knowledge")
        if known is None:
            return loss
        # Class means are not a batch to take statistics from.
        head = as_split(client.model).classifier.eval()
        predictions = functional.hyper_prediction_loss(
            head(known["features"]), known["predictions"], known["present"], self.hp.temperature
        )
        head.train()
        features = functional.hyper_feature_loss(
            batch.features, batch.y, known["features"], known["present"]
        )
        return loss + self.hp.lam * predictions + self.hp.gamma * features

    def report(self, client: Client) -> Message:
        """Keep the trained model; send the weights and the client's hyper-knowledge."""
        client.state["trained"] = client.snapshot()
        return {**super().report(client), "knowledge": self.knowledge(client)}

    @torch.no_grad()
    def knowledge(self, client: Client) -> dict[str, Tensor]:
        """Return class means of features and predictions with the counts of the classes that are sent."""
        hp, C = self.hp, client.num_classes
        raw, labels = features_of(client)
        soft = torch.softmax(as_split(client.model).classifier(raw) / hp.temperature, dim=1)
        clipped, soft, labels = devices.to_host([functional.clip_norms(raw, hp.clip), soft, labels])
        features, counts = functional.class_means(clipped, labels, C)
        predictions, _ = functional.class_means(soft, labels, C)
        counts = torch.where(counts >= hp.threshold * len(labels), counts, 0)
        client.log("fedhkd/classes_sent", int((counts > 0).sum()))
        features = functional.noisy_class_means(
            features, counts, hp.clip, hp.noise, client.generator("noise")
        )
        predictions = torch.where((counts > 0).unsqueeze(1), predictions, 0)
        return {"features": features, "predictions": predictions, "counts": counts}

    def predictor(self, client: Client, view: View) -> Predictor:
        """Return the client's own last model, or the received one before its first training."""
        client.load(client.state.get("trained", {}))
        return super().predictor(client, view)

    def server_setup(self, server: Server) -> None:
        """Warn if no class will ever be sent."""
        share = max(
            float(client.class_counts.max()) / client.num_samples for client in server.clients
        )
        if share < self.hp.threshold:
            server.warn(
                "threshold",
                f"the largest class of any client has {share:.1%} of its samples, less than "
                f"algorithm.threshold={self.hp.threshold:g}, so nothing is sent and it trains as "
                "fedavg; lower the threshold",
            )

    def after_average(self, server: Server, replies: Replies) -> None:
        """Average the hyper-knowledge by counts."""
        keep_class_means(server, replies, "knowledge", "samples")
