"""FedMatch: sigma learns from labels, sparse psi from unlabelled data with helpers (Jeong, Yoon, Yang, Hwang, 2021)."""

from typing import Literal

import torch
from torch import Tensor, nn

from flray import devices, functional, registry, rng, trees
from flray.algorithms.base import Algorithm, Batch, Client, Message, Replies, Server, Stage, View
from flray.algorithms.common.aggregation import average
from flray.algorithms.common.public_exchange import public_subset
from flray.algorithms.common.samples import batches_per_epoch
from flray.data.augment import augment_batch
from flray.models import select
from flray.registry import Preset, hyper, register_algorithm
from flray.trees import Tree, Weights


@register_algorithm("fedmatch")
class FedMatch(Algorithm):
    """Every step is one on sigma, ``lam_s CE`` of labelled samples, then one on psi; the model is sigma + psi.

    The step on psi minimises, over public samples predicted with ``confidence`` or more, the
    divergence from the helpers and the CE of strongly augmented samples with the vote of the model
    and its helpers, plus ``l1 ||psi||_1 + l2 ||sigma - psi||^2``. Batch norm belongs to sigma
    alone, its statistics to the labelled samples. Helpers are the clients whose predictions for one
    image of noise are nearest; a client keeps those it was sent last. Down: sigma + psi, psi and
    the helpers' psi, which are run with the client's sigma. Up: sigma + psi, psi, and the
    prediction for the noise. Server state: psi, everyone's last psi and prediction.

    Without ``average``, sigma and psi stay at the clients, whose networks may then differ; helpers
    are whole models, and clients send whole models.
    """

    class Params(registry.Params):
        presets = (
            Preset(
                "fcclplus", "every client has another network; the rest is not said", average=False
            ),
        )

        average: bool = hyper(
            True,
            "average sigma and psi; false where networks differ",
            "FedMatch; FCCL+ runs it on different networks and does not say how: a decision",
        )
        lam_s: float = hyper(10.0, "weight of the labelled loss", "wyjeong/FedMatch", ge=0)
        lam_i: float = hyper(
            0.01, "weight of the divergence from the helpers", "wyjeong/FedMatch", ge=0
        )
        lam_a: float = hyper(0.01, "weight of the pseudo-labelled loss", "wyjeong/FedMatch", ge=0)
        l1: float = hyper(1e-4, "weight of ||psi||_1", "wyjeong/FedMatch", ge=0)
        l2: float = hyper(10.0, "weight of ||sigma - psi||^2", "wyjeong/FedMatch", ge=0)
        confidence: float = hyper(
            0.75,
            "least largest probability of a sample that is learnt from",
            "wyjeong/FedMatch",
            ge=0,
        )
        helpers: int = hyper(2, "H, nearest clients that help", "FedMatch, experiments", ge=0)
        interval: int = hyper(
            10,
            "rounds between two choices of helpers, the first in round 2",
            "FedMatch, experiments",
            ge=1,
        )
        ratio: float = hyper(
            0.2,
            "psi / sigma at the start, where their sum is the network as initialised",
            "wyjeong/FedMatch",
            ge=0,
        )
        threshold: float = hyper(
            5e-6, "entries of psi up to this are set to 0 after training", "wyjeong/FedMatch", ge=0
        )
        strong: Literal["none", "flip", "crop", "resized", "weak", "strong"] = hyper(
            "strong",
            "strong augmentation of public images",
            "a decision: FCCL+'s strong augmentation; wyjeong/FedMatch: RandAugment",
        )
        public_size: int = hyper(
            5000,
            "public samples, chosen once and spread over the labelled steps of every epoch",
            "FCCL+ section 4",
            ge=0,
        )

    hp: Params
    needs = frozenset({"public", "classification", "homogeneous"})
    views: tuple[View, ...] = ("global",)
    sent = ("psi",)

    def __init__(self, hp: Params | None = None) -> None:
        super().__init__(hp)
        if not self.hp.average:
            self.shared, self.views = "none", ("personal",)
            self.needs -= {"homogeneous"}

    # --- client -----------------------------------------------------------------------------------

    def begin(self, client: Client) -> None:
        """Take the model apart and freeze the helpers."""
        known = client.message.get("psi") or client.state.get("psi")
        share = self.hp.ratio / (1 + self.hp.ratio)
        norms = select(client.model, "batch_norm")
        theta = {name: w.detach() for name, w in client.parameters.items()}
        psi = {
            name: known[name] if known else share * w
            for name, w in theta.items()
            if name not in norms
        }
        sigma = {name: w - psi[name] if name in psi else w for name, w in theta.items()}
        settings = client.settings(self.phases(client)[0])
        for part, values in (("sigma", sigma), ("psi", psi)):
            leaves = {name: nn.Parameter(w.clone()) for name, w in values.items()}
            client.scratch[part] = leaves
            client.scratch[f"{part}_optimizer"] = client.optimizer_for(
                list(leaves.values()), settings
            )
        if "helpers" in client.message:
            client.state["helpers"] = trees.clone(client.message["helpers"])
        client.scratch["helpers"] = [
            self.helper(client, one, f"helper {number}", sigma)
            for number, one in enumerate(client.state.get("helpers", {}).values())
        ]

    def helper(self, client: Client, sent: Tree, role: str, sigma: Weights) -> nn.Module:
        """Return a helper's frozen model: the client's sigma with the helper's psi, or the helper's whole model."""
        if not self.hp.average:
            return client.reference(sent["weights"], role, sent["architecture"])
        return client.reference({name: sigma[name] + w for name, w in sent.items()}, role)

    def step(self, client: Client, batch: Batch, optimizer: torch.optim.Optimizer) -> None:
        """Step on sigma with the labelled batch, then on psi with a public one; `optimizer` only clears gradients."""
        optimizer.zero_grad(set_to_none=True)
        loss = self.hp.lam_s * self.loss(client, batch)
        loss.backward()
        self.descend(client, "sigma")
        client.record_loss(loss)
        x = self.public_batch(client, batch)
        if len(x) < 2:  # batch norm has no variance for a single sample
            return
        optimizer.zero_grad(set_to_none=True)
        buffers = client.snapshot(frozenset(client.resident.entries) - client.parameters.keys())
        self.unlabelled_loss(client, x, batch).backward()
        client.load(buffers)
        self.descend(client, "psi")

    def descend(self, client: Client, part: Literal["sigma", "psi"]) -> None:
        """Step on sigma or psi by the model's gradients plus those of the losses on this part alone."""
        leaves = client.scratch[part]
        for name, w in client.parameters.items():
            if name not in leaves:
                w.grad = None
            elif (own := leaves[name].grad) is not None:
                w.grad = own if w.grad is None else w.grad + own
        client.clip_gradients()
        for name, leaf in leaves.items():
            leaf.grad = client.parameters[name].grad
        client.scratch[f"{part}_optimizer"].step()
        client.scratch[f"{part}_optimizer"].zero_grad(set_to_none=True)
        self.compose(client)

    @torch.no_grad()
    def compose(self, client: Client) -> None:
        """Load sigma + psi."""
        sigma, psi = client.scratch["sigma"], client.scratch["psi"]
        client.load({name: w + psi[name] if name in psi else w for name, w in sigma.items()})

    def unlabelled_loss(self, client: Client, x: Tensor, batch: Batch) -> Tensor:
        """Return the loss that the step on psi minimises."""
        hp, extra = self.hp, f"unlabelled/{batch.step}"
        how = client.settings(batch.phase).of_public_images
        weak = augment_batch(x, how, client.generator("augmentation", extra))
        logits = client.model(weak)
        with torch.no_grad():
            helpers = torch.stack([logits, *(helper(weak) for helper in client.scratch["helpers"])])
        keep = functional.confident(logits, hp.confidence)
        strong = augment_batch(x, hp.strong, client.generator("augmentation", f"{extra}/strong"))
        pseudo = functional.pseudo_label_loss(client.model(strong), functional.vote(helpers), keep)
        sigma, psi = client.scratch["sigma"], client.scratch["psi"]
        client.log("fedmatch/confident", keep.double().mean())
        loss: Tensor = (
            hp.lam_i * functional.helper_consistency_loss(logits, helpers[1:], keep)
            + hp.lam_a * pseudo
            + functional.decomposition_penalty(
                psi, {name: sigma[name] for name in psi}, hp.l1, hp.l2
            )
        )
        return loss

    def public_batch(self, client: Client, batch: Batch) -> Tensor:
        """Return the public samples that go with a labelled batch: one pass over them per epoch."""
        assert client.public is not None
        chosen = public_subset(client.seed, len(client.public), self.hp.public_size)
        local, norm = client.settings(batch.phase), client.resident.batch_norm
        steps = batches_per_epoch(client.num_samples, local.batch_size, norm, local.drop_last)
        order = torch.randperm(len(chosen), generator=client.generator("public", batch.epoch))
        x, _ = client.public.take(chosen[order][batch.step % steps :: steps])
        return x

    def report(self, client: Client) -> Message:
        """Make psi sparse; send the model, psi, and the prediction for the noise."""
        psi = client.scratch["psi"]
        for w in psi.values():
            w.data.masked_fill_(w.data.abs() <= self.hp.threshold, 0)
        self.compose(client)
        prediction = self.prediction(client)
        if self.hp.average:
            return {**super().report(client), "psi": trees.clone(psi), "prediction": prediction}
        client.state["psi"] = trees.clone(psi)
        return {"model": client.snapshot(), "prediction": prediction}

    @torch.no_grad()
    def prediction(self, client: Client) -> Tensor:
        """Return the model's probabilities [C] for one image of noise, the same for all clients in all rounds."""
        like, _ = client.train.take(torch.zeros(1, dtype=torch.int64))
        generator = rng.torch_generator(client.seed, "noise", client=-1, extra="probe")
        noise = torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like.dtype)
        image = devices.to_device(noise, like.device)
        return torch.softmax(client.model.eval()(image)[0], dim=0)

    # --- server -----------------------------------------------------------------------------------

    def send_private(self, server: Server, client: int, stage: Stage) -> Message:
        """Send the helpers at an interval of rounds."""
        if stage.name != "train" or (server.round - 1) % self.hp.interval:
            return {}
        chosen = {
            helper: server.state["helpers"][helper] for helper in self.nearest(server, client)
        }
        return {"helpers": chosen} if chosen else {}

    def nearest(self, server: Server, client: int) -> list[str]:
        """Return the other clients whose predictions are nearest to this client's."""
        known = server.state.get("predictions", {})
        if str(client) not in known:
            return []
        own = known[str(client)].double()
        distances = {
            int(other): float((prediction.double() - own).square().sum())
            for other, prediction in known.items()
            if other != str(client)
        }
        nearest = sorted(distances, key=lambda other: (distances[other], other))
        return [str(other) for other in nearest[: self.hp.helpers]]

    def after_average(self, server: Server, replies: Replies) -> None:
        """Average psi; keep the values that make each client a helper."""
        for psi in average(replies, lambda reply: self.weigh(server, reply), "psi").values():
            server.state["psi"] = psi
        helpers = dict(server.state.get("helpers", {}))
        predictions = dict(server.state.get("predictions", {}))
        for reply in replies:
            helpers[str(reply.client)] = (
                trees.clone(reply["psi"])
                if self.hp.average
                else {"architecture": reply.architecture, "weights": trees.clone(reply["model"])}
            )
            predictions[str(reply.client)] = reply["prediction"].clone()
        server.state.update(helpers=helpers, predictions=predictions)
