"""FedRep: first the client's head on a fixed body, then the shared body under that head (Collins et al., ICML 2021)."""

from collections.abc import Sequence

from flray import registry
from flray.algorithms.base import Algorithm, Client, Phase, Predictor, View
from flray.registry import Preset, hyper, register_algorithm


@register_algorithm("fedrep")
class FedRep(Algorithm):
    """The body is averaged, the head stays at the client. The two phases have separate optimisers.

    The body's batch norms keep their statistics in the head's phase. ``local.epochs`` counts only
    for a phase whose number is null.
    """

    class Params(registry.Params):
        presets = (
            Preset(
                "lgmix",
                "one local epoch: one on the head, one on the body",
                head_epochs=1,
                body_epochs=1,
            ),
        )

        head_epochs: int | None = hyper(
            10,
            "epochs on the head; null: local.epochs",
            "lgcollins/FedRep: local_ep 11 less local_rep_ep 1",
            ge=0,
        )
        body_epochs: int | None = hyper(
            1, "epochs on the body; null: local.epochs", "lgcollins/FedRep: local_rep_ep 1", ge=0
        )
        evaluation_epochs: int = hyper(
            0,
            "epochs on the head before the model is tested, on a copy",
            "a decision: none; lgcollins/FedRep fits all heads for 10 epochs after the last round",
            ge=0,
        )

    hp: Params
    needs = frozenset({"split", "classification"})
    shared = "features"
    views = ("personal",)

    def own_epochs(self) -> str:
        """Return both options, if both are set."""
        return (
            "" if None in (self.hp.head_epochs, self.hp.body_epochs) else "head_epochs, body_epochs"
        )

    def phases(self, client: Client) -> Sequence[Phase]:
        """Train the head, then the body."""
        return (
            Phase("personal", "classifier", self.hp.head_epochs),
            Phase("train", "features", self.hp.body_epochs),
        )

    def predictor(self, client: Client, view: View) -> Predictor:
        """Return the body with the client's head, after `evaluation_epochs` that fit the head to the new body."""
        self.adapt(client, Phase("adapt", "classifier", self.hp.evaluation_epochs))
        return super().predictor(client, view)
