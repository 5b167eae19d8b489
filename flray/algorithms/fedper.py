"""FedPer: the last layers stay personal, everything is trained together (Arivazhagan et al., 2019)."""

from flray import registry
from flray.algorithms.base import Algorithm
from flray.models import complement
from flray.registry import hyper, register_algorithm


@register_algorithm("fedper")
class FedPer(Algorithm):
    """FedAvg on everything but the personal group, which each client keeps between its rounds.

    All clients begin with the same personal values. With nothing personal this is FedAvg, with
    everything `Local`.
    """

    class Params(registry.Params):
        personal: str = hyper(
            "classifier",
            "group that stays at the client (groups are joined by + and -)",
            "FedPer: the last layers; Fed-CO2's code: the classifier (digit-cnn and alexnet cut it by `split`)",
        )

    hp: Params
    needs = frozenset({"split"})
    shared = "features"
    views = ("personal",)

    def __init__(self, hp: Params | None = None) -> None:
        super().__init__(hp)
        self.shared = complement(self.hp.personal)
        if not any(part in self.hp.personal for part in ("features", "classifier")):
            self.needs = frozenset()
