"""FedSKC: structural knowledge collaboration, LCL + GDA + GPR (FedSKC, Algorithm 1)."""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from flray import functional
from flray.algorithms.base import Algorithm, Batch, Client, Server
from flray.algorithms.common.aggregation import average
from flray.algorithms.common.client_parts import refuse_diverged
from flray.algorithms.common.variants import VariantParams, either, refuse_overridden, require
from flray.algorithms.types import Message, Phase, Replies, Reply, Stage
from flray.config.experiment import Experiment
from flray.registry import hyper, register_algorithm
from flray.trees import Weights

EQUAL = 1e-5
"""Weights of GDA that differ from equal ones by less, relative to these, are equal ones."""
LEAST_STEP = 1e-3
"""A step of GPR that is smaller hardly changes the model."""
RAMP = 100
"""Rounds over which the released code raises the weight of LCL to 1."""


@register_algorithm("fedskc")
class FedSKC(Algorithm):
    """FedAvg with three modules on class knowledge, which are mean logits: LCL at clients, GDA and GPR at the server.

    Down: weights, and from round 2 the global knowledge c~ with the mask of its classes. Up:
    weights, the client's class knowledge and counts. Server state: knowledge and mask of the last
    round. With all three modules off, no knowledge is computed or sent: FedAvg. The released code
    also reports the maximum over rounds of a single seed, which is a matter of reporting and not of
    this file.
    """

    class Params(VariantParams):
        lcl: bool = hyper(True, "local contrastive learning", "Table V, last row")
        gda: bool | None = either(
            (True, False),
            "discrepancy aggregation; without it, weights as in FedAvg",
            "Eq. 4; the released code computes the weights, then overwrites the result by FedAvg's",
        )
        gpr: bool = hyper(True, "period review", "Table V, last row")
        tau: float = hyper(0.08, "temperature of LCL", "section IV, configurations", gt=0)
        neighbours: int = hyper(
            1, "M, nearest clients merged into each knowledge vector", "section IV, Fig. 3(b)", ge=0
        )
        beta: float | None = either(
            (0.95, 0.99), "momentum of GPR", "0.95 below Eq. 5; released code 0.99", ge=0, le=1
        )
        sample_scale: Literal["raw", "fraction"] = hyper(
            "raw",
            "N_k inside the sigmoid of GDA as printed, or as a share of the cohort's samples",
            "Eq. 4",
        )
        review: Literal["paper", "interpolate"] = hyper(
            "paper",
            "GPR as printed, which shrinks the model by 1 - beta a round, or w + (1 - beta) rho (w' - w)",
            "Eq. 5",
        )
        lr: float | None = either(
            (None, 0.1),
            "learning rate of local training; null in the paper's variant: local.lr",
            "0.01 in section IV, which is local.lr's default; released code 0.1",
            gt=0,
        )
        gate: bool | None = either(
            (True, False),
            "knowledge is c sigmoid(c), not c",
            "section III-A; not in the released code",
        )
        normaliser: Literal["distance", "none"] | None = either(
            ("distance", "none"),
            "cosines of LCL are divided by the mean distance U, or not",
            "Eq. 2; no U in the released code",
        )
        positive_twice: bool | None = either(
            (False, True),
            "LCL's denominator counts the positive once more",
            "Eq. 3: no; released code: yes",
        )
        lcl_weight: Literal["constant", "ramp"] | None = either(
            ("constant", "ramp"),
            "weight of LCL: 1, or min(round / 100, 1)",
            "Algorithm 1, line 37: 1; released code: ramp",
        )
        without_prototype: Literal["skip", "own"] | None = either(
            ("skip", "own"),
            "a sample whose class has no global knowledge is skipped, or is its own positive",
            "not said: skip, a decision; released code: own detached logits",
        )
        knowledge: Literal["after", "last_epoch"] | None = either(
            ("after", "last_epoch"),
            "knowledge from the trained model in eval mode, or from the logits of the last epoch's steps",
            "Algorithm 1, line 41; released code: train-mode logits of the last epoch",
        )
        review_buffers: bool | None = either(
            (False, True),
            "GPR also acts on BatchNorm's statistics",
            "not said: no, a decision; released code: all float entries",
        )
        review_classes: Literal["both", "each"] | None = either(
            ("both", "each"),
            "GPR compares variances over the classes known in both rounds, or each round's over its own",
            "not said: both, a decision; released code: each",
        )

    hp: Params
    needs = frozenset({"homogeneous", "labels"})
    averages_waited = True
    sent = ("knowledge",)

    def check(self, config: Experiment) -> None:
        """Refuse a local learning rate that the variant would override."""
        refuse_overridden(config, lr=self.hp.lr)

    def unused(self) -> dict[str, str]:
        """Add the weights of the mean, if GDA weighs the clients."""
        weighs = {"aggregation.weights": "weighs clients by GDA"} if self.hp.gda else {}
        return {**super().unused(), **weighs}

    @property
    def shares_knowledge(self) -> bool:
        """Whether any module needs the knowledge."""
        return bool(self.hp.lcl or self.hp.gda or self.hp.gpr)

    # --- client -----------------------------------------------------------------------------------

    def phases(self, client: Client) -> Sequence[Phase]:
        """Train everything once, at the variant's learning rate."""
        return (Phase(local={} if self.hp.lr is None else {"lr": self.hp.lr}),)

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """Return CE + LCL (Eq. 2-3); CE alone until there is global knowledge."""
        loss = super().loss(client, batch)
        known = client.message.get("knowledge")
        if known is None or not self.hp.lcl:
            return loss
        weight = 1.0 if self.hp.lcl_weight == "constant" else min((client.round + 1) / RAMP, 1.0)
        return loss + weight * functional.local_contrastive_loss(
            batch.outputs,
            batch.y,
            known["vectors"],
            known["present"],
            self.hp.tau,
            require(self.hp.normaliser),
            positive_twice=require(self.hp.positive_twice),
            without_prototype=require(self.hp.without_prototype),
        )

    def after_backward(self, client: Client, batch: Batch) -> None:
        """Keep the last epoch's logits where knowledge is made of them."""
        if self.hp.knowledge == "last_epoch" and batch.last_epoch:
            client.scratch.setdefault("seen", []).append((batch.outputs.detach(), batch.y))

    def report(self, client: Client) -> Message:
        """Send the weights, the class knowledge c_k and its counts."""
        reply = super().report(client)
        if not self.shares_knowledge:
            return reply
        if self.hp.knowledge == "after" or "seen" not in client.scratch:
            outputs, labels = client.outputs()
        else:
            outputs, labels = map(torch.cat, zip(*client.scratch["seen"], strict=True))
        vectors, counts = functional.structural_knowledge(
            outputs, labels, client.num_classes, require(self.hp.gate)
        )
        return {**reply, "knowledge": {"vectors": vectors, "counts": counts}}

    # --- server -----------------------------------------------------------------------------------

    def send(self, server: Server, stage: Stage) -> Message:
        """Send the global knowledge c~ and which classes it has, once there is any."""
        return super().send(server, stage) if self.hp.lcl else {}

    def aggregate(self, server: Server, stage: Stage, replies: Replies) -> None:
        """Merge the knowledge (Eq. 1), average by discrepancy (Eq. 4), review by the knowledge's change (Eq. 5)."""
        if not self.shares_knowledge:
            super().aggregate(server, stage, replies)
            return
        arrived = replies.wait()
        if not arrived:
            return
        sent = [reply["knowledge"] for reply in arrived]
        vectors = torch.stack([one["vectors"] for one in sent])
        present = torch.stack([one["counts"] > 0 for one in sent])
        merged, known = functional.global_structural_knowledge(vectors, present, self.hp.neighbours)
        before = server.state.get("knowledge")
        server.state["knowledge"] = {"vectors": merged, "present": known}
        weights = self.discrepancy_weights(server, arrived, vectors, present, merged)
        if before is not None:
            rho = functional.variance_change(
                merged,
                before["vectors"],
                known,
                before["present"],
                classes=require(self.hp.review_classes),
            )
            if rho is not None:
                server.log("fedskc/rho", rho)
                self.warn_of_small_step(server, rho)
        for architecture, mean in average(arrived, lambda reply: weights[reply.client]).items():
            if self.hp.gpr and before is not None:
                mean = self.apply_period_review(server, architecture, mean, before)
            self.apply(server, architecture, mean)

    def discrepancy_weights(
        self,
        server: Server,
        replies: Sequence[Reply],
        vectors: Tensor,
        present: Tensor,
        merged: Tensor,
    ) -> dict[int, float]:
        """Return each client's weight: e_k of GDA, or FedAvg's."""
        discrepancy = functional.knowledge_discrepancy(vectors, present, merged).double()
        refuse_diverged(server.config, "the distances of class knowledge", discrepancy)
        sizes = torch.tensor([reply.num_samples for reply in replies])
        e = functional.discrepancy_weights(sizes, discrepancy, sample_scale=self.hp.sample_scale)
        for reply, d_k, e_k in zip(replies, discrepancy, e, strict=True):
            server.log("fedskc/d_k", d_k, reply.client)
            server.log("fedskc/e_k", e_k, reply.client)
        if self.hp.gda and len(e) > 1 and float((e * len(e) - 1).abs().max()) < EQUAL:
            raw = self.hp.sample_scale == "raw"
            server.warn(
                "gda",
                f"round {server.round + 1}: the weights of GDA are equal to five digits, so it is a plain mean"
                + ("; algorithm.sample_scale=fraction lets the discrepancy act" if raw else ""),
            )
        # Relative to the largest, so that equal weights give the bits of the plain mean.
        if self.hp.gda:
            return {
                reply.client: float(e_k / e.max()) for reply, e_k in zip(replies, e, strict=True)
            }
        return {reply.client: self.weigh(server, reply) for reply in replies}

    def warn_of_small_step(self, server: Server, rho: float) -> None:
        """Warn where GPR moves the model by less than a thousandth of the way to the one before."""
        step = (1 - require(self.hp.beta)) * abs(rho)
        if self.hp.gpr and step < LEAST_STEP:
            as_printed = f"; as printed it also multiplies the model by {self.hp.beta:g}"
            server.warn(
                "gpr",
                f"round {server.round + 1}: GPR steps by (1 - beta) |rho| = {step:.1e} of the way to the "
                f"model before, less than {LEAST_STEP:g}, for class knowledge hardly changes any more"
                f"{as_printed if self.hp.review == 'paper' else ''}",
            )

    def apply_period_review(
        self, server: Server, architecture: str, mean: Weights, before: dict[str, Tensor]
    ) -> Weights:
        """Return the mean reviewed by the model that was sent out this round."""
        now, parameters = server.state["knowledge"], server.parameter_names[architecture]
        chosen = {
            name: w for name, w in mean.items() if self.hp.review_buffers or name in parameters
        }
        sent_out = {name: server.models[architecture][name] for name in chosen}
        reviewed = functional.period_review(
            chosen,
            sent_out,
            now["vectors"],
            before["vectors"],
            require(self.hp.beta),
            present_now=now["present"],
            present_before=before["present"],
            review=self.hp.review,
            classes=require(self.hp.review_classes),
        )
        return {**mean, **reviewed}
