"""FCCL: cross-correlation on public data, distillation from the previous and the pre-trained model (CVPR 2022)."""

from typing import Literal

from flray.algorithms.common.variants import either
from flray.algorithms.fcclplus import CollaborativeParams, FCCLPlus
from flray.registry import hyper, register_algorithm


@register_algorithm("fccl")
class FCCL(FCCLPlus):
    """Per round: FCCM on every public batch, then CE + KL(previous model) + KL(pre-trained model), temperature 1.

    FCCL+ without FISL and with two teachers in place of FNTD. Client state: the model, the one
    after its previous local updating, and the pre-trained one, which never changes. Where networks
    are alike, the released code lets all clients begin with the first one's pre-trained model,
    which is not copied.
    """

    # Without omega, mu, tau and so on, which FCCLPlus reads for its other terms alone: no `hp: Params`.
    class Params(CollaborativeParams):
        pretrain_epochs: int = hyper(
            50,
            "epochs of local training before a client's first round",
            "FCCL; FCCL+ section 4",
            ge=0,
        )
        fccm: Literal[True] = hyper(True, "cross-correlation on public data", "FCCL+ Eq. 2")
        fisl: Literal[False] = hyper(False, "instance similarity belongs to FCCL+", "FCCL")
        local_term: Literal["two_teachers"] = hyper(
            "two_teachers", "both distillations", "FCCL+ Eq. 19"
        )
        teacher: Literal["previous"] = hyper(
            "previous", "the model after the previous local updating", "FCCL+ Eq. 19"
        )
        average_after: Literal["public", "local"] | None = either(
            ("public", "local"),
            "with average: after the public stages, or after local updating",
            "FCCL+ section 4.4; released code of FCCL: local",
        )
