"""FedMD: different networks digest their consensus on public data, then revisit their private data (Li, Wang, 2019)."""

from collections.abc import Sequence

import torch
from torch import Tensor

from flray import functional, rng
from flray.algorithms.base import Client, Message, Phase
from flray.algorithms.common.public_exchange import ExchangeParams, Outputs, PublicExchange
from flray.algorithms.common.samples import Samples
from flray.registry import Preset, hyper, register_algorithm


@register_algorithm("fedmd")
class FedMD(PublicExchange):
    """Per round, one exchange: scores of a public subset up, their mean down; then digest, then private training.

    Scores are logits in eval mode of images that are not augmented, and so are the digested images.
    The public data have no labels here, so that the original's training on them before round 1 is
    left out; its training on private data before round 1 is `pretrain_epochs`. Client state: the
    model.
    """

    class Params(ExchangeParams):
        presets = (Preset("fcclplus", "section 4", public_size=5000, digest_batch_size=512),)

        public_size: int = hyper(
            5000,
            "public samples, drawn anew each round (all where there are fewer)",
            "diogenes0319/FedMD_clean; FCCL+ section 4",
            ge=2,
        )
        digest_epochs: int = hyper(
            1, "passes over them towards the consensus", "diogenes0319/FedMD_clean", ge=0
        )
        digest_batch_size: int = hyper(
            256,
            "samples of a batch of these",
            "diogenes0319/FedMD_clean; FCCL+ section 4: 512",
            ge=2,
        )

    hp: Params

    def unused(self) -> dict[str, str]:
        """Add the augmentation of public images."""
        return {**super().unused(), "local.public_augment": "takes public images as they are"}

    def public_order(self, seed: int, round: int, available: int) -> Sequence[Tensor]:
        """Return the positions of the round's public subset, as a single batch."""
        generator = rng.torch_generator(seed, "public", round=round, client=-1, extra="subset")
        chosen = torch.randperm(available, generator=generator)[: self.hp.public_size]
        return [chosen] if self.hp.digest_epochs else []

    def subset(self, client: Client) -> Samples:
        """Return the round's public subset, labelled with the numbers of the consensus' rows."""
        assert client.public is not None
        return client.public.relabelled_by_index(
            self.public_order(client.seed, client.round, len(client.public))[0]
        )

    def collaborate(self, client: Client) -> Message:
        """Send the scores of the subset."""
        self.begin_stage(client)
        return {"outputs": {"scores": client.outputs(self.subset(client))[0]}}

    def apply_reduced(self, client: Client, reduced: Outputs) -> None:
        """Digest the consensus."""
        digest = Phase(
            "digest",
            epochs=self.hp.digest_epochs,
            local={"batch_size": self.hp.digest_batch_size, "augment": "none"},
        )
        for batch, optimizer in client.run(digest, self.subset(client)):
            self.public_step(
                client, functional.digest_loss(batch.outputs, reduced["scores"][batch.y]), optimizer
            )
