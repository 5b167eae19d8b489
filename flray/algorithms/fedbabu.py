"""FedBABU: one random head, never trained during federation; fine-tuning at the end (Oh, Kim, Yun, ICLR 2022)."""

from collections.abc import Sequence
from typing import Literal

from flray import registry
from flray.algorithms.base import Algorithm, Client, Phase, Predictor, View
from flray.registry import hyper, register_algorithm


@register_algorithm("fedbabu")
class FedBABU(Algorithm):
    """FedAvg on the body under the initial head, which all clients share and nobody changes.

    Personal models are made for the test alone: a copy of body and head is fine-tuned on the
    client's training data and then forgotten. The global model is the one before fine-tuning.
    """

    class Params(registry.Params):
        fine_tune_epochs: int = hyper(
            5,
            "epochs of fine-tuning before a personal model is tested",
            "jhoon-oh/FedBABU: 5",
            ge=0,
        )
        fine_tune: Literal["all", "classifier", "features"] = hyper(
            "all", "what fine-tuning changes", "FedBABU: the full model is its default"
        )

    hp: Params
    needs = frozenset({"split", "classification"})
    shared = "features"
    weighting = "uniform"
    views = ("personal", "global")

    def phases(self, client: Client) -> Sequence[Phase]:
        """Train the body."""
        return (Phase("train", "features"),)

    def predictor(self, client: Client, view: View) -> Predictor:
        """Return the fine-tuned model; nothing of it outlives the test."""
        self.adapt(client, Phase("adapt", self.hp.fine_tune, self.hp.fine_tune_epochs))
        return super().predictor(client, view)
