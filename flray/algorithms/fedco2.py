"""Fed-CO2: an online and an offline model cooperate, inside a client and through classifiers between clients."""

from collections.abc import Mapping, Sequence
from typing import Literal, Self

import torch
from torch import Tensor

from flray import functional, trees
from flray.algorithms.base import Algorithm, Batch, Client, Server
from flray.algorithms.common.client_parts import classifier_of, heads_of
from flray.algorithms.common.variants import VariantParams, either, require
from flray.algorithms.types import Message, Phase, Predictor, Replies, View
from flray.registry import hyper, register_algorithm

Which = Literal["online", "offline"]


@register_algorithm("fedco2")
class FedCO2(Algorithm):
    """Each client trains two models; the sum of their logits predicts (Eq. 3).

    Each of the two models trains in two phases: a mutual one that distils the other model as it was
    at the start (Eq. 4-5), then one with ``CE + mu * sum_j CE(head_j(features))`` over the other
    clients' offline classifiers (Eq. 6-7). Down: the online model's shared part and all clients'
    offline classifiers. Up: the online model's shared part and the client's offline classifier.
    Client state: the online model's personal part, the whole offline model. Classifiers of clients
    that have not taken part yet are the initial one. Paper and released code also differ in the
    Digits network's number of convolutions, which is an option of the model.
    """

    class Params(VariantParams):
        form: Literal["feature_skew", "label_skew"] = hyper(
            "feature_skew",
            "label_skew leaves out both transfers of knowledge: only predictions are fused",
            "Algorithms 1 and 2",
        )
        mu: float = hyper(
            1.0, "weight of the other clients' classifiers", "Eq. 7: 1 by default", ge=0
        )
        mutual_epochs: int = hyper(1, "epochs of the mutual phase", "released code: one", ge=0)
        intra: Literal["both", "to_online", "to_offline", "none"] | None = hyper(
            None,
            "which model learns from the other one in the mutual phase",
            "Algorithm 1: both; Algorithm 2: none",
        )
        inter: Literal["both", "online", "offline", "none"] | None = hyper(
            None,
            "which model learns from the other clients' classifiers",
            "Algorithm 1: both; Algorithm 2: none",
        )
        personal: Literal["batch_norm", "classifier"] = hyper(
            "batch_norm",
            "the online model's personal part",
            "section 3.2: batch norm; the classifier is an ablation",
        )
        first_mutual: bool | None = either(
            (True, False),
            "whether round 1 has a mutual phase",
            "Algorithm 1: yes; released code: skipped",
        )
        weights: Literal["uniform", "samples"] | None = hyper(
            None,
            "weights of the average",
            "Eq. 2: 1/N; released code for label skew: sample counts",
        )
        statistics: Literal["personal", "averaged"] | None = hyper(
            None,
            "running statistics of batch norms stay personal like the rest of them, or are averaged",
            "section 3.2: personal; released code for label skew: averaged",
        )

        def resolved(self) -> Self:
            """Fill in the values that follow from form and variant."""
            skewed = self.form == "label_skew"
            averages = skewed and self.variant == "released"
            transfers = "none" if skewed else "both"
            own = super().resolved()
            return own.filled(
                intra=transfers,
                inter=transfers,
                weights="samples" if averages else "uniform",
                statistics="averaged" if averages else "personal",
            )

    hp: Params
    needs = frozenset({"split", "homogeneous", "classification"})
    averages_waited = True
    sent = ("heads",)
    views = ("personal",)
    further = ("online", "offline")

    def __init__(self, hp: Params | None = None) -> None:
        super().__init__(hp)
        self.weighting = require(self.hp.weights)
        self.shared = "all-classifier" if self.hp.personal == "classifier" else "not_batch_norm"
        if self.hp.personal == "batch_norm" and self.hp.statistics == "averaged":
            self.shared = "not_batch_norm+buffers"

    # --- client -----------------------------------------------------------------------------------

    def setup(self, client: Client) -> None:
        """Start the offline model at the initial values."""
        client.state["offline"] = trees.clone(client.resident.initial)

    def begin(self, client: Client) -> None:
        """Freeze both models as teachers, and the other clients' classifiers."""
        online, offline = client.snapshot(), client.state["offline"]
        client.scratch.update(
            online=online,
            offline=offline,
            heads=heads_of(client),
            teacher_of_offline=client.reference(online, "online"),
            teacher_of_online=client.reference(offline, "offline"),
        )

    def phases(self, client: Client) -> Sequence[Phase]:
        """Distil the other model if that is on, then adapt."""
        mutual = self.hp.intra in ("both", f"to_{client.scratch['trains']}")
        if not mutual or (client.round == 0 and not self.hp.first_mutual):
            return (Phase(),)
        return (Phase("mutual", epochs=self.hp.mutual_epochs), Phase())

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """Return Eq. 4 or 5 in the mutual phase, Eq. 7 in the adaptation."""
        trains: Which = client.scratch["trains"]
        if batch.phase.tag == "mutual":
            with torch.no_grad():
                teacher = client.scratch[f"teacher_of_{trains}"](batch.x)
            return functional.distillation_loss(batch.outputs, teacher)
        loss = super().loss(client, batch)
        if self.hp.inter not in ("both", trains):
            return loss
        peers = functional.peer_classifier_loss(
            batch.features, batch.y, client.scratch["heads"], client.id
        )
        return loss + self.hp.mu * peers

    def train(self, client: Client) -> Message:
        """Train the offline, then the online model, both from the start-of-round copies."""
        self.receive(client)
        self.begin(client)
        for trains in ("offline", "online"):
            client.scratch["trains"] = trains
            client.load(client.scratch[trains])
            for phase in self.phases(client):
                self.train_phase(client, phase)
            if trains == "offline":
                client.state["offline"] = client.snapshot()
        return self.report(client)

    def report(self, client: Client) -> Message:
        """Send the online model's shared part and the offline classifier."""
        reply = super().report(client)
        if self.hp.inter == "none":
            return reply
        return {**reply, "head": classifier_of(client.state["offline"])}

    def predictor(self, client: Client, view: View) -> Predictor:
        """Add up both models' logits (Eq. 3)."""
        online, offline = self.parts(client).values()
        return lambda x: functional.fuse_predictions(online(x), offline(x))

    def parts(self, client: Client) -> Mapping[str, Predictor]:
        """Return both models, which Table 10 tests alone."""
        return {
            "online": client.model.eval(),
            "offline": client.reference(client.state["offline"], "offline"),
        }

    # --- server -----------------------------------------------------------------------------------

    def server_setup(self, server: Server) -> None:
        """Start with the initial classifier for every client."""
        if self.hp.inter != "none":
            head = classifier_of(server.model)
            server.state["heads"] = {str(client): head for client in range(len(server.clients))}

    def after_average(self, server: Server, replies: Replies) -> None:
        """Collect the offline classifiers."""
        if self.hp.inter != "none":
            server.state["heads"] = {
                **server.state["heads"],
                **{str(reply.client): trees.clone(reply["head"]) for reply in replies},
            }
