"""COPA: a shared body under one classifier per domain, each trained by its domain alone (Wu, Gong, ICCV 2021)."""

import torch
from torch import Tensor

from flray import functional, trees
from flray.algorithms.base import Algorithm, Batch, Client, Server
from flray.algorithms.common.client_parts import classifier_of, heads_of
from flray.algorithms.types import Message, Predictor, Replies, View
from flray.models import as_split
from flray.registry import register_algorithm


@register_algorithm("copa")
class COPA(Algorithm):
    """Clients minimise ``CE(own head) + sum_j CE(head_j)`` over the others' heads as they were at the round's start.

    The others' heads are frozen; their gradient reaches the body. Down: body and all heads. Up:
    body and own head. The mean of all heads' logits on the new body predicts, for every client
    alike. Heads of clients that have not taken part yet are the initial one. The paper's hybrid
    norm and strong augmentation are not part of this, as in Fed-CO2 and MarsFL.
    """

    needs = frozenset({"split", "homogeneous", "classification"})
    averages_waited = True
    sent = ("heads",)
    shared = "features"
    views = ("personal",)

    def begin(self, client: Client) -> None:
        """Freeze the heads."""
        client.scratch["heads"] = heads_of(client)

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """Return CE through the client's head plus the sum of CE through the other heads."""
        peers = functional.peer_classifier_loss(
            batch.features, batch.y, client.scratch["heads"], client.id
        )
        return super().loss(client, batch) + peers

    def report(self, client: Client) -> Message:
        """Send the body and the client's head."""
        return {
            **super().report(client),
            "head": classifier_of(client.weights(client.resident.personal)),
        }

    def predictor(self, client: Client, view: View) -> Predictor:
        """Return the mean of all heads' logits."""
        body = as_split(client.model.eval()).features
        heads = heads_of(client)  # copies of the classifier, so in eval mode as well

        def predict(x: Tensor) -> Tensor:
            features = body(x)
            return torch.stack([head(features) for head in heads]).mean(0)

        return predict

    def server_setup(self, server: Server) -> None:
        """Start with the initial head for every client."""
        head = classifier_of(server.model)
        server.state["heads"] = {str(client): head for client in range(len(server.clients))}

    def after_average(self, server: Server, replies: Replies) -> None:
        """Collect the heads."""
        collected = {str(reply.client): trees.clone(reply["head"]) for reply in replies}
        server.state["heads"] = {**server.state["heads"], **collected}
