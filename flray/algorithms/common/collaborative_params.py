"""Hyper-parameters that FCCL and FCCL+ share, with the values of the paper and of the authors' released code."""

import math
from typing import Literal

from flray.algorithms.common.public_exchange import PublicParams
from flray.algorithms.common.variants import either
from flray.config.components import Augment
from flray.registry import hyper

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
