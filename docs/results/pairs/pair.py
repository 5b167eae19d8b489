"""Two models per client that are added up and do not cooperate: the control of Fed-CO2's twin (local-pairs.yaml)."""

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from flray import functional, models, registry
from flray.algorithms.base import Algorithm, Client, Message, Phase, Predictor, Server, View
from flray.algorithms.common.aggregation import average
from flray.algorithms.types import Replies, Stage
from flray.registry import hyper, register_algorithm


@register_algorithm("pair")
class Pair(Algorithm):
    """The first model is that of local training or FedBN to the bit; the second starts elsewhere, with other batches.

    Down and up with FedBN: both models' shared parts. Client state: both personal parts.
    """

    class Params(registry.Params):
        of: Literal["local", "fedbn"] = hyper(
            "local", "how each of the two models is trained", "a control, not in the paper"
        )

    hp: Params
    needs = frozenset({"homogeneous"})
    weighting = "uniform"
    averages_waited = True
    sent = ("second",)
    views = ("personal",)

    def __init__(self, hp: Params | None = None) -> None:
        super().__init__(hp)
        self.shared = "none" if self.hp.of == "local" else "not_batch_norm"

    def setup(self, client: Client) -> None:
        """Draw the second model's initial values, which are the same for all clients."""
        chosen, x = client.config.model, client.train.take(torch.tensor([0]))[0]
        second = models.build(
            chosen.name, x.shape[1:], client.num_classes, chosen.options, client.seed + 1, x.dtype
        )
        client.state["second"] = second.state_dict()

    def second(self, client: Client) -> dict[str, Tensor]:
        """Return the second model's weights: the averaged ones, and else the client's own."""
        return {**client.state["second"], **client.message.get("second", {})}

    def train(self, client: Client) -> Message:
        """Train the second model, then the first."""
        self.receive(client)
        first = client.snapshot()
        client.load(self.second(client))
        self.train_phase(client, Phase("second"))  # a phase of another name draws other batches
        client.state["second"] = client.snapshot()
        client.load(first)
        self.train_phase(client, Phase())
        shared = {name: client.state["second"][name] for name in client.resident.shared}
        return {**self.report(client), "second": shared}

    def predictor(self, client: Client, view: View) -> Predictor:
        """Add up both models' logits, as Fed-CO2 does (Eq. 3)."""
        first, second = self.parts(client).values()
        return lambda x: functional.fuse_predictions(first(x), second(x))

    def parts(self, client: Client) -> Mapping[str, Predictor]:
        """Return both models, which are tested alone too."""
        second = client.reference(self.second(client), "second")
        return {"first": client.model.eval(), "second": second}

    def aggregate(self, server: Server, stage: Stage, replies: Replies) -> None:
        """Average the shared part of both models."""
        arrived = replies.wait()
        super().aggregate(server, stage, replies)
        for mean in average(arrived, lambda reply: self.weigh(server, reply), "second").values():
            server.state["second"] = mean
