"""Sections of an experiment: shift, split and normalisation of the data, evaluation, aggregation, resources, faults."""

import math
from typing import Annotated, Any, Literal, Self

import pydantic
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    Tag,
)
from pydantic_core import PydanticCustomError

from flray.config.components import MetricChoice
from flray.config.yaml_files import Plain

Fraction = Annotated[float, Field(ge=0.0, le=1.0)]


class Section(BaseModel):
    """A part of the YAML file: unknown keys are rejected, values do not change after loading."""

    model_config = ConfigDict(
        extra="forbid",
        frozen=True,
        allow_inf_nan=False,
        defer_build=True,
        use_attribute_docstrings=True,
    )

    @classmethod
    def __pydantic_init_subclass__(cls, **options: Any) -> None:
        """Let a setting's description be one line."""
        for field in cls.model_fields.values():
            field.description = field.description and " ".join(field.description.split())


_Share = Annotated[float, Field(gt=0, le=1), Tag("[share]")]
StragglerWork = Annotated[
    Annotated[Literal["drawn"], Tag("[name]")] | _Share,
    Discriminator(lambda value: "[name]" if value == "drawn" else "[share]"),
]
# A whole number stays one, in files and identities too.
_WHOLE = AfterValidator(lambda value: int(value) if value == int(value) else value)
_PLAIN = PlainSerializer(lambda value: value)
Epochs = Annotated[float, Field(ge=0), _WHOLE, _PLAIN]


class OwnEpochs(Section):
    """Local epochs of a client, in a number."""

    epochs: Annotated[float, Field(gt=0), _WHOLE, _PLAIN]
    """passes over the client's training data per round, in place of local.epochs"""


Work = Annotated[
    Annotated[OwnEpochs, Tag("[epochs]")] | _Share,
    Discriminator(lambda value: "[epochs]" if isinstance(value, OwnEpochs | dict) else "[share]"),
]


class Shift(Section):
    """Changes to the data before partitioning; combines with any partition."""

    long_tail: float | None = Field(None, ge=1)
    """class sizes of each domain's training data fall exponentially from the first class to the last, which is this
    many times smaller (Cao et al. 2019; FedSKC: 10, 50, 100); applied first, test samples stay"""
    test_long_tail: float | None = Field(None, ge=1)
    """the same of each domain's test part, for a test that is as imbalanced as the training data"""
    sizes: dict[str, Annotated[int, Field(ge=1)]] = Field(default_factory=dict)
    """training samples of single domains, by name, a subset chosen by the seed (FCCL+ Table V); applied before the
    partition"""
    ratio: float = Field(1.0, gt=0, le=10)
    """share of each client's training data that is used (Fed-CO2 F.4); above 1 only with split fedbn-digits, in which
    1 are 743 images"""
    noise: float = Field(0.0, ge=0, le=1e6)
    """standard deviation of Gaussian noise on the last client's samples, in units of normalised inputs; it grows
    linearly from 0 at the first client (Fed-CO2 F.3); each sample has its own noise, always the same"""


class Aggregation(Section):
    """Details of the average that hold for every method."""

    buffers: Literal["average", "local"] = "average"
    """floating buffers (BatchNorm statistics): averaged, or personal to each client, with which it then tests the
    global model too (global/local; no global/common)"""
    weights: Literal["method", "samples", "uniform"] = "method"
    """weights of the mean: as the method declares, by sample counts, or equal; where a method weighs replies in another
    way (GDA of FedSKC), that stays"""
    block: int | None = Field(None, ge=1)
    """add the weights up in blocks of so many neighbouring clients (client number // block) near the clients, so that
    the server gets one sum per block: as they train, or, for methods whose weights follow from all replies, when
    all have arrived (flray list algorithms NAME says which). The last bits depend on it, and on nothing else. A
    block is one actor's unit of work, and what a crash or faults.round_timeout leaves out: have several blocks per
    actor. bytes/up counts what reached the server"""


def _as_whole(shares: tuple[float, float, float]) -> tuple[float, float, float]:
    if not math.isclose(sum(shares), 1.0, abs_tol=1e-9) or not (shares[0] > 0 and shares[2] > 0):
        raise PydanticCustomError(
            "split",
            "the shares for training, validation and test must sum to 1, the first and the last above 0",
        )
    return shares


Shares = Annotated[tuple[Fraction, Fraction, Fraction], AfterValidator(_as_whole)]
SplitName = Literal["official", "fedbn-digits", "fedbn-office", "fedbn-domainnet", "lgmix-digits"]
SETS_VALIDATION_APART = frozenset({"fedbn-office", "fedbn-domainnet", "lgmix-digits"})
Split = Annotated[
    Annotated[SplitName, Tag("[name]")] | Annotated[Shares, Tag("[shares]")],
    Discriminator(lambda value: "[name]" if isinstance(value, str) else "[shares]"),
    Field(
        description=(
            "official: the data set's own test set; [train, validation, test]: shares of each client's samples, "
            "official parts pooled; fedbn-digits: pooled, 80 to 20, 743 training images per domain; fedbn-office: own "
            "test sets, 0.5 and 0.4 of the smallest domain's training length for training and validation in every "
            "domain; fedbn-domainnet: the same with 0.05 and 0.05; lgmix-digits: own test sets, a quarter of each "
            "domain's training samples for validation. Of FedBN's archives they take the files' own parts and order"
        )
    ),
]


def _as_count(value: float) -> float:
    if value >= 1 and value != int(value):
        raise PydanticCustomError("unseen", "a whole number of clients, or a share below 1")
    return value


Unseen = Annotated[
    Annotated[float, Field(ge=0), AfterValidator(_as_count), Tag("[number]")]
    | Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Tag("[names]")],
    Discriminator(lambda value: "[names]" if isinstance(value, list | tuple) else "[number]"),
    Field(
        description="clients that are kept out of training and tested alone: how many, or below 1 which share of them, "
        "drawn by the partition's seed; or a list of names, of clients or whole domains. global/unseen is the global "
        "model on them, adapted/unseen the same after evaluation.adapt_steps at each"
    ),
]


class Evaluation(Section):
    """Evaluation: metrics and intervals."""

    every: int = Field(1, ge=1)
    """evaluate every so many rounds, and after the last one"""
    batch_size: int = Field(512, ge=1)
    """samples of a forward pass"""
    metrics: tuple[MetricChoice, ...] = ()
    """also measure these, wherever the task's own are measured, for example [balanced-accuracy] (flray list metrics)"""
    adapt_steps: int = Field(0, ge=0, le=1_000_000)
    """optimiser steps from the global model, with the settings of `local` but always its full lr, on the training
    samples of each client of participation.unseen before it is tested again, as adapted/unseen; 0: not measured"""
    others: bool = False
    """also test personal models on the other clients' data (inter)"""
    validation: float = Field(0.0, ge=0, lt=1)
    """share of each client's training data kept for validation"""
    pooled: bool = False
    """also test personal models on all clients' test parts together, each sample by its own client's model:
    personal/pooled/accuracy is the share of all samples that are right, in which a client counts by its samples"""
    top_k: int | None = Field(None, ge=2)
    """also measure top-k accuracy, as top5 for 5: the label is among the k largest logits; classification of more than
    k classes"""
    last: int = Field(5, ge=1)
    """evaluated rounds in `mean of the last k rounds`"""
    protocol: Literal["last", "best", "mean-last"] = "last"
    """the number that tables report: of the last round; of the round with the best mean validation value (needs
    validation samples); or the mean of the `last` evaluated rounds"""


class ChannelStatistics(Section):
    """Mean and standard deviation of pixels scaled to [0, 1]: one for all channels, or one for each."""

    mean: tuple[Annotated[float, Field(ge=-1e6, le=1e6)], ...] = Field(min_length=1)
    std: tuple[Annotated[float, Field(ge=1e-6, le=1e6)], ...] = Field(min_length=1)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _both(cls, value: Plain) -> Plain:
        if isinstance(value, dict) and not {"mean", "std"} <= value.keys():
            raise PydanticCustomError("normalisation", "give mean and std, a list of numbers each")
        return value

    @pydantic.model_validator(mode="after")
    def _as_many(self) -> Self:
        if len(self.mean) != len(self.std):
            raise PydanticCustomError(
                "normalisation",
                "mean has {means} values and std {stds}: give as many of both",
                {"means": len(self.mean), "stds": len(self.std)},
            )
        return self


Normalisation = Annotated[
    Annotated[Literal["data", "imagenet", "none"], Tag("[name]")]
    | Annotated[ChannelStatistics, Tag("[statistics]")],
    Discriminator(lambda value: "[name]" if isinstance(value, str) else "[statistics]"),
    Field(
        description="of 8-bit images, private and public, after scaling to [0, 1]: data: by the data set's own mean "
        "and deviation; imagenet: by ImageNet's; none: scaled only; or {mean: [...], std: [...]}, one "
        "value for all channels or one for each"
    ),
]


LEAST_SHARE = 0.0001
"""The smallest share of a CPU or GPU that Ray counts."""


class Resources(Section):
    """Resources of the client tasks."""

    executor: Literal["ray", "inline"] = "ray"
    """ray: on actors, here or on a cluster; inline: in this process, one client after another"""
    actors: Literal["auto"] | Annotated[int, Field(ge=1)] = "auto"
    """client actors; auto: as many as the CPUs and GPUs carry, at most one per cohort member"""
    cpus_per_actor: float = Field(1.0, ge=LEAST_SHARE, le=4096)
    """CPUs, and so torch threads (at least one), of an actor"""
    gpus_per_actor: Literal["auto"] | Annotated[float, Field(ge=0)] = "auto"
    """share of a GPU, or a whole number of them; auto: the memory of a task is measured, and at most 4 actors share a
    GPU, as many as its free memory carries, if the run or sweep ends sooner that way"""
    gpu_model: str = Field("one", min_length=1)
    """one: all GPUs are of one model, and a cluster that has several is refused, for the last bits would depend on
    which GPU runs which client; any: whatever there is; or a model as Ray names it, such as A100 or L4: only nodes
    with it"""
    data: Literal["head", "node"] = "head"
    """head: the driver reads the data and each node gets one copy in shared memory; node: each node reads them itself,
    once, from its FLRAY_DATA (a folder; or, for mnist, usps and digits5-local, s3://... or gs://...)"""
    bits: Literal["native", "portable", "fast"] = "native"
    """native: each process computes with the best instructions of its CPU, so the last bits depend on the kind of CPU;
    portable: with AVX2 (in MKL SSE2) on every x86-64 CPU, so they do not, at a price. On a GPU they depend on the
    GPU either way; fast: as native, and a GPU takes the algorithms that it finds fastest, repeatable or not, so that
    two runs of one seed, and a run with and without a kill, may differ in their last bits"""
    queued: int = Field(2, ge=1, le=16)
    """tasks waiting at each actor; two hide the call's latency"""

    @pydantic.field_validator("gpus_per_actor")
    @classmethod
    def _whole_above_one(cls, value: Plain) -> Plain:
        if value != "auto" and value > 1 and value != int(value):
            raise PydanticCustomError(
                "gpus", "Ray gives an actor a share of one GPU (0 to 1) or a whole number"
            )
        if value != "auto" and 0 < value < LEAST_SHARE:
            why = "Ray gives an actor 0.0001 of a GPU at least; 0 is a CPU alone"
            raise PydanticCustomError("gpus", why)
        return value


class Faults(Section):
    """Handling of failures."""

    on_client_error: Literal["fail", "skip"] = "fail"
    """fail: the run ends if a client's task raises; skip: the round goes without that client"""
    round_timeout: float | None = Field(None, gt=0, le=10_000_000)
    """seconds; clients that have not answered a stage by then are left out and reported"""
    attempts: int = Field(3, ge=1)
    """times a task is run when its actor dies, before it counts as failed; the loss of a node does not count"""
