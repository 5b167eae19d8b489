"""Typed models of the YAML file: the experiment, with its defaults and ranges, and the data that a sweep chooses by.

`flray.config.loader` reads files, applies overrides and formats the errors.
"""

import os
from collections.abc import Collection, Mapping
from operator import not_
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError

from flray.config import components, sections
from flray.config.sections import Section
from flray.config.start import Start
from flray.config.sweep import Domain, PaperTable, Sweep
from flray.config.yaml_files import Plain
from flray.files.tracking_address import at_home
from flray.metrics import AUTO, VALIDATION, is_test

MOST_ROUNDS = 10**9
"""Rounds of a run at most; a number beyond is a slip."""
AxisName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=40)]
Arm = Annotated[dict[str, Plain], BeforeValidator(lambda value: {} if value is None else value)]
ArmName = Annotated[str, Field(pattern=r"^[^\s].*$", max_length=100)]
Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]


Decay = Annotated[float, Field(ge=0, lt=1)]
Folder = Annotated[str, Field(min_length=1), AfterValidator(at_home)]


class Local(Section):
    """Local training of a client."""

    epochs: sections.Epochs = 1
    """passes over the client's training data per round; 0.5: half of its batches, drawn anew each round"""
    steps: int | None = Field(None, ge=1)
    """optimiser steps per round instead of epochs: passes go on until they are done, the last one unfinished; where a
    method sets the length of a phase itself, that stays"""
    batch_size: int = Field(32, ge=1)
    """samples of an optimiser step"""
    drop_last: bool = False
    """leave out an epoch's last batch where it has fewer samples; an only batch stays"""
    # Later settings are left out of files at their default, so that old runs keep their identity.
    loss: components.LossChoice | None = Field(None, exclude_if=not_)
    """minimised in training in place of the task's own, for example focal, or {name: cross-entropy, weights: balanced}
    (flray list losses); null: the task's. Tests measure the task's loss either way; a method with a loss of its own
    refuses others"""
    optimizer: components.Optimizer = "sgd"
    """of local training: sgd, adam, adamw, or another by its name, with its options (flray list optimizers)"""
    lr: float = Field(0.01, gt=0)
    """learning rate"""
    lr_decay: float = Field(1.0, gt=0, le=1)
    """the learning rate of round r is lr * lr_decay**r (r from 0)"""
    schedule: Literal["constant", "cosine"] = "constant"
    """cosine: the learning rate falls to zero along half a cosine until after the last round"""
    warmup: int = Field(0, ge=0)
    """first rounds, in which the learning rate rises to its value in equal steps"""
    momentum: float = Field(0.0, ge=0, lt=1)
    """SGD only"""
    weight_decay: float = Field(0.0, ge=0)
    """as torch's optimisers have it: L2 in sgd and adam, decoupled in adamw"""
    betas: tuple[Decay, Decay] = (0.9, 0.999)
    """Adam and AdamW only"""
    clip_norm: float | None = Field(None, gt=0)
    """clip the gradient's norm to this"""
    augment: components.Augment = "none"
    """of private training images: flip; crop: shift by up to 4 pixels, flip; resized or weak: a part of 20 to 100 % of
    the area resized to the image, flip; strong: also colours (FCCL+); or a list of steps, for example [crop, flip,
    {name: jitter, hue: 0.05}] (flray list augmentations)"""
    public_augment: components.Augment | None = None
    """of public images, where a method trains on augmented ones, written as augment; null: as the private ones"""
    precision: Literal["float32", "float64", "bfloat16", "tf32"] = "float32"
    """what networks compute in; tf32: float32, whose products and convolutions a GPU may compute with 10 bits of
    mantissa, faster; on a CPU it is float32; bfloat16: only what lies within the network, which torch's autocast
    decides, while weights, losses, methods' formulas, optimiser and averages stay float32"""
    compile: bool | Literal["reduce-overhead"] = False
    """torch.compile of the networks' passes over whole training batches, the small last one runs as written; costs up
    to a minute per network and process; reduce-overhead: on a GPU also CUDA graphs"""
    clients_per_step: int = Field(1, ge=1)
    """train so many neighbouring clients of a block (aggregation.block) in one step, for small networks on a GPU; the
    last bits depend on it. For methods that train as FedAvg does; slower on a CPU"""
    memory_format: Literal["channels_last", "contiguous"] = "channels_last"
    """layout of images; channels_last is the faster one for most networks, and without effect if all networks flatten
    the images first"""

    @property
    def of_public_images(self) -> components.Augment:
        """The augmentation of public images: `public_augment`, or `augment` if that is not set."""
        return self.augment if self.public_augment is None else self.public_augment


class Participation(Section):
    """Participation of clients in a round, drawn by key: independent of the number of workers."""

    fraction: float = Field(1.0, gt=0, le=1)
    """share of the clients sampled in each round"""
    clients: int | None = Field(None, ge=1)
    """number of clients sampled, instead of a fraction"""
    unseen: sections.Unseen = 0
    dropout: float = Field(0.0, ge=0, lt=1)
    """chance that a sampled client does not answer in a round"""
    sampler: components.SamplerChoice = Field(
        default_factory=lambda: components.SamplerChoice.model_validate("uniform"),
        json_schema_extra={"default": "uniform"},
    )
    """how the round's clients are chosen (flray list samplers)"""
    stragglers: sections.Fraction = 0.0
    """chance that a client is slow in a round"""
    straggler_work: sections.StragglerWork = 0.5
    """share of the local steps a slow client manages; drawn: a whole number of epochs (or steps, if local.steps is
    set) from 1 to all, drawn for each client and round, as FedProx's experiments have it"""
    work: dict[str, sections.Work] = Field(default_factory=dict, exclude_if=not_)
    """share of the local steps that single clients do in every round, by the name of a client or domain, or their
    epochs in place of local.epochs, for example {hospital-a: 0.25, hospital-b: {epochs: 20}}; phases whose length a
    method sets change in proportion. Other clients do all. train/work tracks the share of each client"""


class Episodes(Section):
    """Episodes of a few-shot task; other tasks have none."""

    way: int = Field(5, ge=2, le=10_000)
    """classes of an episode (fewer where a client has fewer)"""
    shot: int = Field(5, ge=1, le=10_000)
    """support samples per class"""
    queries: int = Field(15, ge=1, le=10_000)
    """queries per class (fewer where classes are smaller)"""
    test: int = Field(600, ge=1, le=1_000_000)
    """episodes of an evaluation, the same in every round"""


class Checkpointing(Section):
    """Checkpoint intervals. A resumed run repeats the rounds since, to the same bits."""

    every: int = Field(1, ge=1)
    """rounds between checkpoints"""
    min_seconds: float = Field(10.0, ge=0)
    """but not sooner than this after the last one, nor than ten times as long as that took to write; 0: whatever it
    takes"""
    keep: int = Field(2, ge=1)
    """checkpoints kept of a run; a sweep's trial keeps two"""

    def pause(self, writing: float) -> float:
        """Return the minimum pause after a checkpoint that took `writing` seconds."""
        return max(self.min_seconds, 10.0 * writing) if self.min_seconds else 0.0


class Stop(Section):
    """When a run ends before its last round."""

    metric: str = Field("auto", min_length=1)
    """auto: the method's own accuracy, on validation samples where there are some"""
    patience: int | None = Field(None, ge=1)
    """evaluations in a row without a better value"""
    min_delta: float = Field(0.0, ge=0)
    """a better value is better by more than this"""
    target: float | None = None
    """a value that is good enough"""

    @model_validator(mode="after")
    def _when(self) -> Self:
        if self.patience is None and self.target is None:
            raise PydanticCustomError("stop", "give patience, target or both")
        return self


class Tracking(Section):
    """Destinations of results."""

    uri: str | None = Field(
        default_factory=lambda: os.environ.get("MLFLOW_TRACKING_URI") or "sqlite:///mlflow.db"
    )
    """any MLflow tracking URI; null for no MLflow; default: MLFLOW_TRACKING_URI of the environment, or
    sqlite:///mlflow.db"""
    experiment: str = Field(
        default_factory=lambda: os.environ.get("MLFLOW_EXPERIMENT_NAME") or "flray", min_length=1
    )
    """the MLflow experiment; default: MLFLOW_EXPERIMENT_NAME of the environment, or flray"""
    every: int | None = Field(None, ge=1, le=MOST_ROUNDS)
    """MLflow gets only the rounds that this divides, and the last; the journals keep all; default: 1, or more in a
    sweep of more than 500 trials"""
    model: bool = False
    """log the trained global model, if the method has one, as an MLflow model with signature:
    mlflow.pyfunc.load_model('runs:/ID/model')"""
    features: bool = False
    """keep features, class correlations and distances of the models for the report's figures: those of up to 500 test
    samples, at the end of a run"""


class Experiment(Section):
    """One federation, completely described."""

    name: Name = "experiment"
    """of its folder, and in MLflow"""
    seed: int = Field(0, ge=0)
    """of what is drawn: partition, weights, order of samples, cohorts"""
    rounds: int = Field(10, ge=1, le=MOST_ROUNDS)
    """rounds of communication"""
    data: components.DatasetChoice
    """the data set"""
    public: components.PublicChoice | None = None
    """public data: another set's training images, brought to the private ones' shape; null: those that come with the
    data set"""
    subset: int | None = Field(None, ge=1)
    """at most so many training samples, and so many test samples, of each domain"""
    partition: components.PartitionChoice = Field(
        default_factory=lambda: components.PartitionChoice.model_validate("domains")
    )
    """who holds which samples; default: domains"""
    split: sections.Split = "official"
    shift: sections.Shift = sections.Shift()
    normalisation: sections.Normalisation = "data"
    model: components.ModelChoice
    """the clients' network"""
    models: components.Networks = Field(default_factory=dict)
    """other networks for single clients or domains, by their name; or a list, from which the seed deals one to every
    client, each as often as the others"""
    start: Start | None = None
    """weights to start from: a run, whose newest global model is meant, as demo/001, or a safetensors file (flray
    export); what they lack starts fresh; null: all does"""
    algorithm: components.AlgorithmChoice
    """the method"""
    local: Local = Local()
    participation: Participation = Field(
        default_factory=Participation, json_schema_extra={"default": {"sampler": "uniform"}}
    )
    evaluation: sections.Evaluation = sections.Evaluation()
    episodes: Episodes = Episodes()
    aggregation: sections.Aggregation = sections.Aggregation()
    resources: sections.Resources = sections.Resources()
    faults: sections.Faults = sections.Faults()
    stop: Stop | None = None
    """end early, for example {patience: 10} or {target: 0.9}; null: after all rounds"""
    checkpoint: Checkpointing = Checkpointing()
    tracking: Tracking = Field(default_factory=Tracking)
    callbacks: tuple[components.CallbackChoice, ...] = ()
    """called once after each round, for example [tensorboard] (flray list callbacks)"""
    output: Folder = "runs"
    """folder for runs and sweeps"""
    plugins: tuple[Annotated[str, Field(min_length=1)], ...] = ()
    """your own Python files that register components"""

    @model_validator(mode="before")
    @classmethod
    def _start_in_output(cls, value: Plain) -> Plain:
        """Look for the run to start from in `output`, before ``runs``."""
        given = value if isinstance(value, Mapping) else {}
        start, output = given.get("start"), given.get("output")
        if isinstance(start, str) and isinstance(output, str) and not Path(start).is_dir():
            run = Path(at_home(output)) / start
            return {**given, "start": str(run)} if run.is_dir() else value
        return value

    @model_validator(mode="after")
    def _whole_epochs(self) -> Self:
        whole = self.local.steps is None and self.local.epochs == int(self.local.epochs) >= 1
        for client, own in self.participation.work.items():
            if isinstance(own, sections.OwnEpochs) and not whole:
                why = "it counts beside local.epochs: set that to 1, 2, ... and local.steps to null"
                sub = "participation", "work", client, "epochs"
                raise PydanticCustomError("work", why, {"sub": sub, "found": own.epochs})
        return self


class Config(Section):
    """A whole YAML file."""

    experiment: Experiment
    arms: dict[AxisName, dict[ArmName, Arm]] = Field(default_factory=dict)
    """by axis and name: settings that are changed together; see flray.config.arms"""
    space: dict[str, Domain] = Field(default_factory=dict)
    """by path: the values that a sweep tries, such as local.lr: {loguniform: [0.01, 1.0]}"""
    sweep: Sweep = Sweep()
    paper: PaperTable | None = None
    """the paper's table that the sweep makes again"""


VALIDATION_SHARE = 0.2
"""``evaluation.validation`` of sweeps that choose, unless their file has one."""

PLACES = ("data", "partition", "split", "shift", "subset", "evaluation")
"""Settings under which other numbers are asked for: nobody chooses among them."""


def chooses(config: Mapping[str, Any]) -> bool:
    """Return whether a sweep chooses anything.

    Arms, methods without further options, and data are compared and not chosen; a space of anything
    else, a scheduler and a search choose.

    Parameters
    ----------
    config : mapping
        The resolved configuration of the sweep.
    """
    sweep, space = config.get("sweep") or {}, config.get("space") or {}
    return bool(sweep.get("scheduler") or sweep.get("tune")) or any(
        _is_choice(path.removeprefix("experiment."), domain) for path, domain in space.items()
    )


def selects_on_test(config: Mapping[str, Any]) -> str:
    """Return a warning line if a sweep chooses by a test metric, otherwise an empty text.

    Parameters
    ----------
    config : mapping
        As for `chooses`.
    """
    sweep = config.get("sweep") or {}
    where = "sweep.tune.metric" if sweep.get("tune") else "sweep.metric"
    metric = str((sweep.get("tune") or sweep).get("metric", "auto"))
    if not chooses(config) or not is_test(metric):
        return ""
    shares = isinstance((config.get("experiment") or {}).get("split"), list | tuple)
    how = "a second share of split" if shares else "evaluation.validation=0.2"
    return (
        f"this sweep selects on test data ({where}: {metric}), which makes the value of what it chooses too good; "
        f"{how} keeps samples to choose by, with {where}=validation"
    )


def choice_line(config: Mapping[str, Any]) -> str:
    """Return a line that names the data a sweep chooses by; empty if it chooses nothing.

    Parameters
    ----------
    config : mapping
        As for `chooses`.
    """
    share = config["experiment"]["evaluation"]["validation"]
    if not chooses(config) or selects_on_test(config):
        return selects_on_test(config)
    kept = f", for which {share:.3g} of each client's training samples are kept" if share else ""
    return f"this sweep chooses by validation values{kept}, and reports test values"


def choose_on_validation(config: Config) -> Config:
    """Return a sweep that chooses by validation values if its file does not name a metric.

    If the sweep chooses and names no ``sweep.metric``, the metric becomes ``validation``. It needs a
    share of each client's training data: the file or its split sets the share, otherwise flray does.
    If arms or the space change the share, or the file sets it to 0, the sweep selects on test data
    and prints a line that says so.

    Parameters
    ----------
    config : Config
        The sweep.
    """
    named = (config.sweep.tune or config.sweep).model_fields_set
    if "metric" in named or not chooses(config.model_dump(mode="json")):
        return config
    experiment, metric = config.experiment, VALIDATION
    evaluation, split = experiment.evaluation, experiment.split
    kept = (
        evaluation.validation > 0
        or split in sections.SETS_VALIDATION_APART
        or (isinstance(split, tuple) and split[1] > 0)
    )
    given = "validation" in evaluation.model_fields_set or split != "official"
    if _varies(config, "split", "evaluation") or (given and not kept):
        metric = AUTO
    elif not kept:
        evaluation = evaluation.model_copy(update={"validation": VALIDATION_SHARE})
        experiment = experiment.model_copy(update={"evaluation": evaluation})
    change: dict[str, object] = {"metric": metric}
    if config.sweep.tune is not None:
        change = {"tune": config.sweep.tune.model_copy(update=change)}
    sweep = config.sweep.model_copy(update=change)
    return config.model_copy(update={"experiment": experiment, "sweep": sweep})


def idle_line(config: Config) -> str:
    """Return a line on a scheduler of a sweep that ends no trial early; empty if it may."""
    sweep, rounds = config.sweep, config.experiment.rounds
    rule = sweep.tune.scheduler if sweep.tune else sweep.scheduler
    if rule is None or rule.grace_period < rounds or _varies(config, "rounds"):
        return ""
    where = "sweep.tune.scheduler" if sweep.tune else "sweep.scheduler"
    return f"{where}.grace_period: {rule.grace_period} of {rounds} rounds, so no trial ends early"


def _varies(config: Config, *parts: str) -> bool:
    """Return whether arms, their combinations or the space change parts of the experiment."""
    changed = [
        *config.space,
        *(path for one in config.arms.values() for arm in one.values() for path in arm),
        *(path for rule in config.sweep.where for path in rule.settings),
    ]
    return any(is_place(path, parts) for path in changed)


def is_place(path: str, parts: Collection[str] = PLACES) -> bool:
    """Return whether a path belongs to some parts of the experiment, by default to `PLACES`."""
    return path.removeprefix("experiment.").split(".")[0] in parts


def _is_choice(path: str, domain: Mapping[str, Any]) -> bool:
    if is_place(path):
        return False
    values = next(iter(domain.values()))
    if path not in ("algorithm", "algorithm.name"):
        return len(values) > 1
    names = [one["name"] if isinstance(one, Mapping) else one for one in values]
    return len(set(names)) < len(names)


RESUMABLE_SETTINGS = (
    "callbacks",
    "checkpoint",
    "faults",
    "name",
    "output",
    "plugins",
    "resources",
    "tracking",
)
"""Parts of an experiment that may change between a run's beginning and its resume."""
_FROZEN_RESOURCES = ("resources.bits", "resources.cpus_per_actor")
"""CPU instructions and torch threads, which affect the last bits."""
RESUMABLE_SWEEP_SETTINGS = (
    "sweep.concurrency",
    "sweep.max_failures",
    "sweep.reference",
    "sweep.reuse",
)


def may_change(key: str) -> bool:
    """Return whether a setting may change between the beginning and a resume."""
    return key not in _FROZEN_RESOURCES and (
        key.split(".")[0] in RESUMABLE_SETTINGS or key in RESUMABLE_SWEEP_SETTINGS
    )
