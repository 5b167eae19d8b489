"""FedSim: partial personalisation, both parts trained at the same time (Pillutla et al., ICML 2022)."""

from flray.algorithms.fedper import FedPer
from flray.registry import hyper, register_algorithm


@register_algorithm("fedsim")
class FedSim(FedPer):
    """Clients train personal part v and shared part u together and u is averaged.

    This is `FedPer` for a v of any kind; see `FedAlt` for training one after the other.
    """

    class Params(FedPer.Params):
        personal: str = hyper(
            "classifier",
            "v, the group that stays at the client (groups are joined by + and -)",
            "a decision: FedAlt's in LG-Mix, the output layer; Pillutla et al.: input layer, output layer or adapter",
        )
