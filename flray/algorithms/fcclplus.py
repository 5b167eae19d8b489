"""FCCL+: cross-correlation and instance similarity on public data, non-target distillation locally."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import grad, vmap

from flray import functional
from flray.algorithms.base import Batch, Client, Message, Phase, Server, Stage
from flray.algorithms.common.client_parts import call_at
from flray.algorithms.common.public_exchange import Outputs, PublicCollaboration, PublicParams
from flray.algorithms.common.variants import either, refuse_overridden, require
from flray.config.components import Augment
from flray.config.experiment import Experiment
from flray.errors import ConfigError
from flray.models import as_split
from flray.registry import hyper, register_algorithm
from flray.trees import Weights

FINAL_LR = 0.1
"""Where the released code's linear decay would end after one round more, as a share of the learning rate."""
PRETRAIN_LR = 1e-6
"""Where the cosine of its pre-training ends."""


class CollaborativeParams(PublicParams):
    """Hyper-parameters that FCCL and FCCL+ share; those without a default here depend on the variant."""

    off_diagonal: float = hyper(
        0.0051, "weight of different classes' correlations", "FCCL+ Eq. 2, Table VII", ge=0
    )
    shrunk: bool | None = either(
        (False, True),
        "correlations times (B - 1) / B",
        "FCCL+ Eq. 1: no; released code: unbiased deviation, divided by B",
    )
    batch_size: int | None = either(
        (None, 128),
        "private batch; null in the paper's variant: local.batch_size",
        "FCCL+ section 4: 256; released code: 128",
        ge=1,
    )
    lr_schedule: Literal["constant", "linear"] | None = either(
        ("constant", "linear"),
        "learning rate over the rounds, of private and of public steps: linear is "
        "1 - 0.9 (r - 2) / rounds of it in round r, from round 2 on",
        "FCCL+ section 4: 0.001; released code: to 0.145 of it in round 40",
    )
    epoch_optimizer: Literal["kept", "fresh"] | None = either(
        ("kept", "kept"),
        "the local optimiser lives for all epochs of a round, or for a single one",
        "FCCL+ section 4: Adam, no more; released code: one for all epochs of a round",
    )
    weight_decay: float | None = either(
        (None, 1e-5),
        "weight decay on private data; null in the paper's variant: local.weight_decay",
        "released code: 1e-5",
        ge=0,
    )
    public_weight_decay: float | None = either(
        (None, 0.0),
        "weight decay on public data; null in the paper's variant: as on private data",
        "not said; released code: none",
        ge=0,
    )
    pretrain_weight_decay: float | None = either(
        (None, 0.0),
        "weight decay in pre-training; null in the paper's variant: as on private data",
        "not said; released code: none",
        ge=0,
    )
    pretrain_schedule: Literal["constant", "cosine"] | None = either(
        ("constant", "cosine"),
        "learning rate over the epochs of pre-training; cosine: to 1e-6, one epoch late",
        "not said; released code: cosine",
    )
    augment: Augment | None = either(
        (None, "none"),
        "augmentation of private images; null in the paper's variant: local.augment",
        "FCCL+ section 4 augments public data; released code: private images as they are",
    )
    public_augment: Augment | None = either(
        (None, "crop"),
        "weak augmentation of public images; null in the paper's variant: local.public_augment",
        "FCCL+ section 4: resized crops; released code: shifted crops",
    )
    teacher_mode: Literal["eval", "train"] | None = either(
        ("eval", "train"),
        "mode of the frozen teachers",
        "not said: eval, as everywhere here; released code: train",
    )
    average_after: Literal["public", "local"] | None = either(
        ("public", "public"),
        "with average: after the public stages, or after local updating",
        "FCCL+ section 4.4 and its released code; released code of FCCL: local",
    )

    def decay(self, round: int, rounds: int) -> float:
        """Return the factor of the learning rate in a round, from 0: the released code sets it after its use."""
        if self.lr_schedule != "linear":
            return 1.0
        return 1 - (1 - FINAL_LR) * max(round - 1, 0) / rounds

    def pretrain_lr(self, lr: float, epoch: int) -> float:
        """Return the learning rate in an epoch of pre-training, from 0."""
        if self.pretrain_schedule != "cosine":
            return lr
        share = (1 + math.cos(math.pi * max(epoch - 1, 0) / self.pretrain_epochs)) / 2
        return PRETRAIN_LR + (lr - PRETRAIN_LR) * share


FISHER_BATCH = 64
OVERRIDDEN = ("batch_size", "weight_decay", "augment", "public_augment")
"""Settings of ``local`` that the variant may set."""


@register_algorithm("fcclplus")
class FCCLPlus(PublicCollaboration):
    """Per round: FCCM + omega FISL on every public batch, then CE + FNTD on private data.

    Client state: the model, and ``teacher``, the model after its previous local updating (before
    the first one: the initial model). Participants may have different architectures.
    """

    class Params(CollaborativeParams):
        fccm: bool = hyper(True, "cross-correlation on public data", "Eq. 2")
        fisl: bool = hyper(True, "instance similarity on public data", "Eq. 5")
        omega: float = hyper(3.0, "weight of FISL", "Table VII", ge=0)
        mu: float = hyper(
            0.02, "temperature of FISL", "text and released code; Table VII prints 0.002", gt=0
        )
        second_forward: bool | None = either(
            (False, True),
            "the features of FISL come from a forward pass of their own, which moves the batch "
            "norms' statistics a second time",
            "not said: no; released code: yes",
        )
        local_term: Literal["fntd", "ewc", "two_teachers", "none"] = hyper(
            "fntd",
            "what keeps local updating from forgetting: FNTD, EWC (Table XVI), or FCCL's two teachers",
            "Eq. 14",
        )
        tau: float = hyper(3.0, "temperature of FNTD and KD", "Table VII", gt=0)
        tau_squared: bool | None = either(
            (True, True), "FNTD times tau^2, as KD", "Eq. 10, 12 and released code; Eq. 14 omits it"
        )
        kd_share: float = hyper(
            0.0, "share of plain distillation in place of FNTD", "Table XVII: 0", ge=0, le=1
        )
        teacher: Literal["previous", "current"] = hyper(
            "previous",
            "the model after the previous local updating, or after this round's collaborative updating",
            "section 3.3; current is an ablation",
        )
        ewc: float = hyper(0.1, "strength of EWC", "Table XVI tries 0.01, 0.1, 0.7 and 1", ge=0)

    hp: Params

    def __init__(self, hp: Params | None = None) -> None:
        super().__init__(hp)
        if self.hp.fisl:
            self.needs |= {"split"}

    def check(self, config: Experiment) -> None:
        """Refuse settings of ``local`` that the variant would override, and parts of epochs with an optimiser each."""
        refuse_overridden(config, **{name: getattr(self.hp, name) for name in OVERRIDDEN})
        epochs, steps = config.local.epochs, config.local.steps
        if self.hp.epoch_optimizer == "kept":
            return
        why = f"{config.algorithm.name} counts epochs (algorithm.epoch_optimizer: fresh); set"
        if steps is not None:
            raise ConfigError("experiment.local.steps", str(steps), f"{why} null and local.epochs")
        if epochs != int(epochs):
            raise ConfigError("experiment.local.epochs", str(epochs), f"{why} a whole number")

    # --- public data ------------------------------------------------------------------------------

    def public_outputs(self, client: Client, x: Tensor) -> Outputs:
        """Return the logits Z_i and, for FISL, the similarities S_i (Eq. 3-4)."""
        if not self.hp.fisl:
            return super().public_outputs(client, x)
        model = as_split(client.model)
        features = model.features(x)
        logits = model.classifier(features)
        if self.hp.second_forward:
            features = model.features(x)
        similarity = functional.instance_similarity(features, self.hp.mu)
        return {"logits": logits, "similarity": similarity}

    def public_loss(self, client: Client, outputs: Outputs, reduced: Outputs) -> Tensor:
        """Return FCCM + omega FISL (Eq. 6)."""
        loss = outputs["logits"].sum() * 0
        if self.hp.fccm:
            loss = loss + functional.cross_correlation_loss(
                outputs["logits"],
                reduced["logits"],
                self.hp.off_diagonal,
                shrunk=require(self.hp.shrunk),
            )
        if self.hp.fisl:
            loss = loss + self.hp.omega * functional.instance_similarity_loss(
                outputs["similarity"], reduced["similarity"]
            )
        return loss

    # --- stages -----------------------------------------------------------------------------------

    @property
    def averages_last(self) -> bool:
        """Whether all models are averaged after local updating."""
        return self.hp.average and self.hp.average_after == "local"

    def exchanges(self, server: Server) -> Iterable[Stage]:
        """Skip the public stages if nothing is learnt from them; average if the variant does."""
        left_out = set() if self.hp.fccm or self.hp.fisl else {"collaborate"}
        if self.averages_last:
            left_out.add("merge")
        yield from (stage for stage in super().exchanges(server) if stage.name not in left_out)
        if self.averages_last:
            yield Stage("adopt")

    def adopt(self, client: Client) -> Message:
        """Take over the averaged model, and send nothing."""
        self.receive(client)
        client.load(client.message.get("merged", {}))
        return {}

    # --- client -----------------------------------------------------------------------------------

    def pretrain(self, client: Client) -> None:
        """Pre-train, and begin with that model as the teacher."""
        settings = {**self.local_settings(client), "lr": client.local.lr}
        if self.hp.pretrain_weight_decay is not None:
            settings["weight_decay"] = self.hp.pretrain_weight_decay
        phase = Phase("pretrain", epochs=self.hp.pretrain_epochs, local=settings)
        for batch, optimizer in client.run(phase):
            for group in optimizer.param_groups:
                group["lr"] = self.hp.pretrain_lr(client.lr, batch.epoch)
            self.step(client, batch, optimizer)
        client.state["teacher"] = client.snapshot()
        if self.hp.local_term == "two_teachers":
            client.state["pretrained"] = client.snapshot()

    def begin(self, client: Client) -> None:
        """Freeze the teachers."""
        previous = None if self.hp.teacher == "current" else client.state["teacher"]
        client.scratch["teacher"] = self.frozen(client, previous, "teacher")
        if self.hp.local_term == "two_teachers":
            client.scratch["pretrained"] = self.frozen(
                client, client.state["pretrained"], "pretrained"
            )
        if self.hp.local_term == "ewc":
            teacher = client.scratch["teacher"].eval()
            anchor = {name: teacher.get_parameter(name).detach() for name in client.parameters}
            fisher = diagonal_fisher(client, teacher, anchor)
            client.scratch.update(anchor=anchor, fisher=fisher)

    def frozen(self, client: Client, weights: Mapping[str, Tensor] | None, role: str) -> nn.Module:
        """Return a frozen model in the teachers' mode; without weights, the client's current ones."""
        return client.reference(weights, role).train(self.hp.teacher_mode == "train")

    def phases(self, client: Client) -> Sequence[Phase]:
        """Train everything, with one optimiser or with a new one for every epoch."""
        local, epochs = self.local_settings(client), client.local.epochs
        if self.hp.epoch_optimizer == "kept":
            return (Phase(local=local),)
        return tuple(
            Phase(f"epoch {number}", epochs=1, local=local) for number in range(int(epochs))
        )

    def needs_rounds(self) -> str:
        """Return the schedule of the learning rate that falls until the last round."""
        return "algorithm.lr_schedule: linear" if self.hp.lr_schedule == "linear" else ""

    def local_settings(self, client: Client) -> dict[str, object]:
        """Return the settings of ``local`` that the variant changes."""
        own = {name: getattr(self.hp, name) for name in OVERRIDDEN}
        if self.hp.lr_schedule == "linear":
            own["lr"] = client.local.lr * self.hp.decay(client.round, client.config.rounds)
        return {name: value for name, value in own.items() if value is not None}

    def public_settings(self, client: Client) -> dict[str, object]:
        """Return the same with the weight decay of public data."""
        decay = self.hp.public_weight_decay
        own: dict[str, object] = {} if decay is None else {"weight_decay": decay}
        return {**self.local_settings(client), **own}

    def loss(self, client: Client, batch: Batch) -> Tensor:
        """Return CE and the term against forgetting (Eq. 14); CE alone in pre-training."""
        loss = super().loss(client, batch)
        if batch.phase.tag == "pretrain" or self.hp.local_term == "none":
            return loss
        return loss + self.memory_term(client, batch)

    def memory_term(self, client: Client, batch: Batch) -> Tensor:
        """Return FNTD and KD in their shares, EWC's penalty, or FCCL's two distillations."""
        hp, scratch = self.hp, client.scratch
        if hp.local_term == "ewc":
            return functional.ewc_penalty(
                client.parameters, scratch["anchor"], scratch["fisher"], hp.ewc
            )
        with torch.no_grad():
            teacher = scratch["teacher"](batch.x)
            pretrained = scratch["pretrained"](batch.x) if hp.local_term == "two_teachers" else None
        if pretrained is not None:
            return functional.distillation_loss(
                batch.outputs, teacher
            ) + functional.distillation_loss(batch.outputs, pretrained)
        scale = (1 - hp.kd_share) * (hp.tau**2 if hp.tau_squared else 1.0)
        term: Tensor = scale * functional.non_target_distillation_loss(
            batch.outputs, teacher, batch.y, hp.tau
        )
        if hp.kd_share:
            term = term + hp.kd_share * functional.scaled_distillation_loss(
                batch.outputs, teacher, hp.tau
            )
        return term

    def report(self, client: Client) -> Message:
        """Keep the trained model as the next round's teacher; send it where models are averaged last."""
        client.state["teacher"] = client.snapshot()
        return {"weights": client.snapshot()} if self.averages_last else {}


def diagonal_fisher(client: Client, model: nn.Module, at: Weights) -> dict[str, Tensor]:
    """Return the mean over private samples of the squared gradients of log p(y | x) at a frozen model's parameters."""
    buffers = dict(model.named_buffers())

    def surprise(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        logits = call_at(model, {**parameters, **buffers}, x.unsqueeze(0))
        return F.cross_entropy(logits, y.unsqueeze(0))

    sums = {name: torch.zeros_like(w) for name, w in at.items()}
    for x, y in client.train.in_order(FISHER_BATCH):
        for name, gradients in vmap(grad(surprise), (None, 0, 0))(at, x, y).items():
            sums[name] += gradients.square().sum(0)
    return {name: total / len(client.train) for name, total in sums.items()}
