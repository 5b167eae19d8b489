"""FedAlt: partial personalisation, personal part first, then the shared one (Pillutla et al., ICML 2022)."""

from collections.abc import Sequence

from flray.algorithms.base import Client, Phase
from flray.algorithms.fedper import FedPer
from flray.registry import hyper, register_algorithm


@register_algorithm("fedalt")
class FedAlt(FedPer):
    """The personal part v is trained with the shared part u frozen, then u with the new v frozen.

    The phases have separate optimisers, and the batch norms of the frozen part keep their
    statistics too. A round has the epochs of both phases: against a method of E local epochs, let
    them sum to E. With nothing personal this is FedAvg, with everything `Local`, with the
    classifier `FedRep`. Training starts from the initial model, not from one that FedAvg has
    trained as in the paper's code.
    """

    class Params(FedPer.Params):
        personal: str = hyper(
            "classifier",
            "v, the group that stays at the client (groups are joined by + and -)",
            "LG-Mix, section on results: the output layer; Pillutla et al.: input layer, output layer or adapter",
        )
        personal_epochs: int | None = hyper(
            1,
            "epochs on v; null: local.epochs",
            "facebookresearch/FL_partial_personalization: 1; LG-Mix: E = 1",
            ge=0,
        )
        shared_epochs: int | None = hyper(
            1,
            "epochs on u; null: local.epochs",
            "facebookresearch/FL_partial_personalization: 1; LG-Mix: E = 1",
            ge=0,
        )

    hp: Params

    def own_epochs(self) -> str:
        """Return both options, if both are set."""
        return (
            ""
            if None in (self.hp.personal_epochs, self.hp.shared_epochs)
            else "personal_epochs, shared_epochs"
        )

    def phases(self, client: Client) -> Sequence[Phase]:
        """Train v, then u; if nothing is shared, train in one phase as `Local` does."""
        if not client.resident.shared:
            return (Phase(epochs=self.hp.personal_epochs),)
        return (
            Phase("personal", self.hp.personal, self.hp.personal_epochs),
            Phase("train", self.shared, self.hp.shared_epochs),
        )
