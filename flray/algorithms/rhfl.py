"""RHFL: robust learning of different networks, distilling from peers by confidence in them (Fang, Ye, CVPR 2022)."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from flray import functional
from flray.algorithms.base import Batch, Client, Message, Phase, Replies, Server
from flray.algorithms.common.client_parts import refuse_diverged
from flray.algorithms.common.public_exchange import Outputs, PublicCollaboration, PublicParams
from flray.algorithms.common.variants import either
from flray.registry import Preset, hyper, register_algorithm
from flray.trees import Tree


@register_algorithm("rhfl")
class RHFL(PublicCollaboration):
    """Per round: ``sum_j omega_j KL(p_j || p)`` over the peers on every public batch, then SCE on private data.

    Up: the probabilities of a public batch, with the first one the mean private loss L. Down:
    everyone's probabilities and confidences omega. Client state: the model. Server state: every
    client's last L; one that takes part for the first time, later than the others, counts as
    neither improving nor worsening.
    """

    class Params(PublicParams):
        presets = (Preset("fcclplus", "FCCL+ Table VII", a=0.1, b=1.0),)

        a: float = hyper(
            0.1, "weight of the cross-entropy", "FCCL+ Table VII: alpha; FangXiuwen/Robust_FL", ge=0
        )
        b: float = hyper(
            1.0,
            "weight of the reverse cross-entropy",
            "FCCL+ Table VII: beta; FangXiuwen/Robust_FL",
            ge=0,
        )
        eta: float = hyper(
            0.5, "strength of learning efficiency in the confidences", "FangXiuwen/Robust_FL", ge=0
        )
        private_epochs: Literal["local", "balanced"] | None = either(
            ("local", "balanced"),
            "epochs on private data: local.epochs, or public samples / own samples, at least one",
            "FCCL+ section 4: 20 for all methods; FangXiuwen/Robust_FL: balanced",
        )

    hp: Params

    def own_epochs(self) -> str:
        """Return the option, if epochs follow from the numbers of samples."""
        return "private_epochs: balanced" if self.hp.private_epochs == "balanced" else ""

    def collaborate(self, client: Client) -> Message:
        """Send probabilities; before the first public batch also the mean private loss."""
        logits = super().collaborate(client)["outputs"]["logits"]
        reply = {"probabilities": torch.softmax(logits, dim=1)}
        if client.stage_index == 0:
            outputs, labels = client.outputs()
            reply["loss"] = functional.symmetric_cross_entropy(
                outputs, labels, self.hp.a, self.hp.b
            )
        return reply

    def public_loss(self, client: Client, outputs: Outputs, reduced: Tree) -> Tensor:
        """Return the confidence-weighted divergence from the peers."""
        own = list(reduced["probabilities"]).index(str(client.id))
        peers = torch.stack(list(reduced["probabilities"].values()))
        return functional.peer_distillation_loss(
            outputs["logits"], peers, reduced["confidence"], own
        )

    def phases(self, client: Client) -> Sequence[Phase]:
        """Train everything, for as long as the variant says."""
        assert client.public is not None
        balanced = max(min(self.hp.public_size, len(client.public)) // client.num_samples, 1)
        return (Phase(epochs=balanced if self.hp.private_epochs == "balanced" else None),)

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """Return the symmetric cross-entropy."""
        return functional.symmetric_cross_entropy(batch.outputs, batch.y, self.hp.a, self.hp.b)

    def reduce(self, server: Server, replies: Replies) -> Message:
        """Collect the probabilities; renew the confidences where losses came with them."""
        arrived = replies.wait()
        losses = {
            str(reply.client): reply["loss"].clone()
            for reply in arrived
            if reply.get("loss") is not None
        }
        if losses:
            known = server.state.get("losses", {})
            now = torch.stack(list(losses.values()))
            refuse_diverged(server.config, "the losses on private data", now)
            before = [known.get(name, loss) for name, loss in losses.items()]
            confidence = functional.confidence_weights(
                now, torch.stack(before) if known else None, self.hp.eta
            )
            server.state.update(
                losses={**known, **losses}, confidence=dict(zip(losses, confidence, strict=True))
            )
            for client, weight in server.state["confidence"].items():
                server.log("rhfl/confidence", weight, int(client))
        weights = [server.state["confidence"][str(reply.client)] for reply in arrived]
        if not arrived:
            return {}
        probabilities = {str(reply.client): reply["probabilities"] for reply in arrived}
        return {"probabilities": probabilities, "confidence": torch.stack(weights)}

    def refine(self, server: Server) -> None:
        """Forget the round's outputs and confidences."""
        super().refine(server)
        server.state.pop("confidence", None)
