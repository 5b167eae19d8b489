"""A client as an algorithm's hooks see it in one task: model, data, message, state, keyed randomness, optimisers."""

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn

from flray import devices, registry, rng, trees
from flray.algorithms.common.optimizers import SGD, Adam
from flray.algorithms.common.samples import Batch, ResidentModel, Samples, batch_indices
from flray.algorithms.types import Message, Phase
from flray.config.components import OptimizerChoice
from flray.config.experiment import Experiment, Local
from flray.data.augment import augment_pair
from flray.errors import ConfigError, FlrayError, MethodError
from flray.tasks.base import Task, bound_loss, with_loss
from flray.trees import Tree

TRACKED = ("loss", "steps", "samples", "seconds", "work")
"""Numbers of a client that flray tracks without a method's doing."""


@dataclass(kw_only=True, eq=False, repr=False)
class Client:
    """One client during one task: a stage of a round, or an evaluation.

    Attributes
    ----------
    id : int
        Position in the partition.
    round, seed, stage_index : int
        Where we are; rounds count from 0.
    message : dict
        The server's message: ``weights`` and the algorithm's own entries. Read-only.
    state : dict
        The client's memory, a plain tree. Its tensors are read-only; put new ones in their place.
    model : nn.Module
        The resident model of the client's architecture.
    train, validation, public : Samples
        The client's data.
    class_counts : Tensor of int64 [C]
        Training samples by class.
    work : float
        Share of the local steps to do; below 1 for stragglers, above 1 for a client with more epochs.
    residents : callable
        Returns the resident model of another architecture.
    steps : int
        Optimiser steps done so far.
    samples_seen : int
        Samples in the batches of the phases so far, each as often as it came.
    scratch : dict
        Values that hooks hand to each other within the task; gone afterwards.
    """

    id: int
    round: int
    stage_index: int
    config: Experiment
    resident: ResidentModel
    task: Task
    message: Message
    state: Message
    train: Samples
    validation: Samples
    public: Samples | None
    num_classes: int
    work: float
    device: torch.device
    residents: Callable[[str], ResidentModel]

    def __post_init__(self) -> None:
        self._logged: dict[str, float | Tensor] = {}
        self._loss_sum: float | Tensor = (
            0.0
            if self.device.type == "cpu"
            else torch.zeros((), dtype=torch.float64, device=self.device)
        )
        self.steps = self.samples_seen = 0
        given = {"message": self.message, "state": self.state}
        self._given = [
            (name, one, one._version)
            for name, one in trees.flatten(given)
            if isinstance(one, Tensor)
        ]
        # Dicts of this task's own: a process's tasks have one message.
        self.message, self.state = trees.to_device(given, self.device).values()
        self.seed, self.local = self.config.seed, self.config.local
        self.scratch: dict[str, Any] = {}
        self._loaded: set[str] = set()
        self._trainable: list[nn.Parameter] = []
        self._clip_norm = self.local.clip_norm
        if self.local.loss is not None:
            loss = bound_loss(self.local.loss, lambda: self.class_counts)
            self.task = with_loss(self.task, loss)

    # --- model ------------------------------------------------------------------------------------

    @property
    def model(self) -> nn.Module:
        """The resident model of the client's architecture."""
        return self.resident.model

    @property
    def bench(self) -> ResidentModel:
        """The former name of `resident`, for methods written against the first release."""
        return self.resident

    @property
    def num_samples(self) -> int:
        """Number of training samples."""
        return len(self.train)

    @cached_property
    def class_counts(self) -> Tensor:
        """Training samples by class, int64 [C]."""
        labels = self.train.labels
        if labels.dim() > 1:
            raise FlrayError(f"class_counts: samples of {self.task.name} have no classes to count")
        if labels.device.type == "cpu":
            return torch.bincount(labels, minlength=self.num_classes)
        # For the length of its result bincount would wait.
        return (labels.unsqueeze(1) == torch.arange(self.num_classes, device=labels.device)).sum(0)

    @property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The model's trainable parameters by name (no buffers)."""
        return self.resident.parameters

    def load(self, weights: Mapping[str, Tensor]) -> None:
        """Copy values into the model, in place."""
        self.resident.load(weights)
        self._loaded.update(weights)

    def load_personal(self) -> None:
        """Set the personal group: from the client's state, or to the initial values before its first task."""
        if self.resident.personal:
            initial = {name: self.resident.initial[name] for name in self.resident.personal}
            self.load(self.state.get("personal") or initial)

    def weights(self, names: frozenset[str] | None = None) -> dict[str, Tensor]:
        """Return the model's current values of some names, by default the shared group. They follow the model."""
        names = self.resident.shared if names is None else names
        return {
            name: entry.detach() for name, entry in self.resident.entries.items() if name in names
        }

    def snapshot(self, names: frozenset[str] | None = None) -> dict[str, Tensor]:
        """Return copies of the model's current values, by default of all parameters and buffers."""
        return trees.clone(
            self.weights(frozenset(self.resident.entries) if names is None else names)
        )

    def reference(
        self,
        weights: Mapping[str, Tensor] | None = None,
        role: str = "reference",
        architecture: str | None = None,
    ) -> nn.Module:
        """Return a frozen copy of the model, or a model of another architecture, frozen and in eval mode.

        Parameters
        ----------
        weights : tree, optional
            Its values; names that are missing keep the model's current ones.
        role : str
            One copy per role lives in each process; asking again for a role overwrites it.
        architecture : str, optional
            Key of another client's architecture; the weights must then be complete.
        """
        values = {**(self.resident.entries if architecture is None else {}), **(weights or {})}
        frozen = (self.resident if architecture is None else self.residents(architecture)).frozen(
            role
        )
        entries = frozen.state_dict(keep_vars=True)
        trees.copy_into(entries, {name: values[name] for name in entries})
        return frozen

    @torch.no_grad()
    def outputs(
        self, samples: Samples | None = None, of: nn.Module | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the model's outputs and the labels of all samples in their stored order, in eval mode.

        Parameters
        ----------
        samples : Samples, optional
            Default: the training data.
        of : nn.Module, optional
            A part of the model; default: all of it.

        Returns
        -------
        outputs : Tensor [n, ...]
        labels : Tensor of int64 [n]
        """
        self.model.eval()
        network = self.model if of is None else of
        samples = self.train if samples is None else samples
        batches = samples.in_order(self.config.evaluation.batch_size)
        found = [(network(x), y) for x, y in batches]
        outputs, labels = map(torch.cat, zip(*found, strict=True))
        return outputs, labels

    # --- randomness -------------------------------------------------------------------------------

    def generator(self, purpose: rng.Purpose, extra: int | str = 0) -> torch.Generator:
        """Return this client's generator for one purpose in this round."""
        return rng.torch_generator(
            self.seed, purpose, round=self.round, client=self.id, extra=extra
        )

    def dropout_seed(self, extra: str) -> int | None:
        """Return the seed of the network's random layers for a stream of batches; None if it has no such layer."""
        if not self.resident.random:
            return None
        return rng.key(self.seed, "dropout", round=self.round, client=self.id, extra=extra)

    @property
    def lr(self) -> float:
        """Learning rate of this round's training, without a phase's own settings."""
        return learning_rate(self.local, self.round, self.config.rounds)

    # --- training ---------------------------------------------------------------------------------

    def run(
        self, phase: Phase, samples: Samples | None = None
    ) -> Iterator[tuple[Batch, torch.optim.Optimizer]]:
        """Yield the batches of a phase with its optimiser, the model in train mode and the other groups frozen.

        A group without parameters, such as the features of a linear model, has nothing to train and
        yields no batches.

        Parameters
        ----------
        phase : Phase
            The group to train, the number of passes, and the settings.
        samples : Samples, optional
            Other samples than the client's training data.
        """
        samples = self.train if samples is None else samples
        local = self.settings(phase)
        optimizer = self.optimizer(phase)
        stream = f"{phase.tag}/{self.stage_index}"
        reseed = self.dropout_seed(stream)
        try:
            if not self._trainable:
                return
            epochs: float | None = phase.epochs
            steps = phase.steps
            if epochs is None and local.steps is not None:
                steps = local.steps if steps is None else min(steps, local.steps)
            elif epochs is None:
                epochs = local.epochs
            batches = batch_indices(
                samples,
                self.task,
                local.batch_size,
                epochs,
                self.generator("batches", stream),
                steps=steps,
                work=self.work,
                batch_norm=self.resident.batch_norm,
                drop_last=local.drop_last,
            )
            for step, (where, epoch, last) in enumerate(batches):
                if reseed is not None:
                    rng.seed_default_generators(reseed + step, self.device)
                self.samples_seen += where.numel()
                x, y = samples.take(where)
                if local.augment != "none":
                    draws = self.generator("augmentation", f"{stream}/{step}")
                    x, y = augment_pair(x, y, local.augment, draws, samples.normalisation)
                yield Batch(self.model, x, y, step, phase, last, epoch), optimizer
        finally:
            for parameter in self.parameters.values():
                parameter.requires_grad_(True)
                parameter.grad = None

    def settings(self, phase: Phase) -> Local:
        """Return the settings of ``local`` that hold in a phase."""
        return self.local.model_copy(update=dict(phase.local)) if phase.local else self.local

    def optimizer(self, phase: Phase) -> torch.optim.Optimizer:
        """Return a phase's fresh optimiser; freeze the other groups and put the model into train mode.

        A batch norm outside the trained group is in eval mode: its statistics are as frozen as its
        parameters.
        """
        local = self.settings(phase)
        trained, frozen, resting = self.resident.plan(phase.trainable)
        for parameters, trains in ((trained, True), (frozen, False)):
            for parameter in parameters:
                parameter.requires_grad_(trains)
        self._trainable, self._clip_norm = list(trained), local.clip_norm
        if not all(module.training for module in self.resident.modules):
            self.model.train()
        for norm in resting:
            norm.eval()
        return self.optimizer_for(self._trainable, local)

    def optimizer_for(
        self, parameters: list[nn.Parameter], local: Local | None = None
    ) -> torch.optim.Optimizer:
        """Return a fresh optimiser of some parameters at this round's learning rate.

        Parameters
        ----------
        parameters : list of Parameter
            The parameters that it may change.
        local : Local, optional
            Settings other than the experiment's, see `settings`.
        """
        return make_optimizer(parameters, local or self.local, self.round, self.config.rounds)

    def clip_gradients(self, parameters: Iterable[nn.Parameter] | None = None) -> None:
        """Clip the norm of the trained, or of other parameters' gradient if the phase or the experiment says so."""
        if self._clip_norm is not None:
            chosen = self._trainable if parameters is None else parameters
            nn.utils.clip_grad_norm_(chosen, self._clip_norm)

    def log(self, name: str, value: float | Tensor) -> None:
        """Track a number of this client in this round; one of a device is copied when the task ends.

        Raises
        ------
        MethodError
            If the name is one of `TRACKED`.
        """
        if name in TRACKED:
            raise MethodError(
                f"client.log({name!r}) would replace train/{name}, which flray tracks by itself; take another name, "
                f"such as {self.config.algorithm.name}/{name}"
            )
        if isinstance(value, Tensor) and value.device.type != "cpu":
            self._logged[name] = value.detach().clone()
        else:
            self._logged[name] = float(value.detach() if isinstance(value, Tensor) else value)

    def record_loss(self, loss: Tensor) -> None:
        """Add a step's loss to the task's mean."""
        self._loss_sum += loss.item() if loss.device.type == "cpu" else loss.detach()
        self.steps += 1

    def numbers(self) -> tuple[float, dict[str, float]]:
        """Return the mean loss and the logged numbers, copied from a device at once."""
        values = [self._loss_sum, *self._logged.values()]
        held = iter(devices.to_host([value for value in values if isinstance(value, Tensor)]))
        total, *logged = (float(next(held)) if isinstance(v, Tensor) else v for v in values)
        loss = total / self.steps if self.steps else math.nan
        return loss, dict(zip(self._logged, logged, strict=True))

    def check(self) -> None:
        """Assert that the task has set all values of the model, and has written to no tensor that it was given."""
        if missing := self.resident.entries.keys() - self._loaded:
            raise RuntimeError(
                f"receive() left {len(missing)} values of the model unset, {min(missing)!r} among "
                "them: a task must set all parameters and buffers"
            )
        if changed := [name for name, one, version in self._given if one._version != version]:
            raise RuntimeError(
                f"client.{changed[0].replace('/', ': ', 1)} was changed in place, where other tasks read it, and "
                "this one again after a kill; change a clone() of it"
            )


def learning_rate(local: Local, round: int, rounds: int) -> float:
    """Return a round's learning rate: `local.lr` decayed by `local.lr_decay`, times the factor of schedule or warm-up.

    The decay is `lr_decay` to the power of the round. In W rounds of warm-up the factor is ``(round
    + 1) / W``; then a cosine schedule has ``(1 + cos(pi (round - W) / (rounds - W))) / 2``
    (Loshchilov and Hutter, ICLR 2017, Eq. 5, once).

    Parameters
    ----------
    local : Local
        The settings.
    round, rounds : int
        From 0; how many there are.
    """
    lr = local.lr * local.lr_decay**round
    if round < local.warmup:
        return lr * (round + 1) / local.warmup
    if local.schedule == "cosine":
        done = (round - local.warmup) / (rounds - local.warmup)
        return lr * (1 + math.cos(math.pi * done)) / 2
    return lr


def make_optimizer(
    parameters: list[nn.Parameter], local: Local, round: int, rounds: int
) -> torch.optim.Optimizer:
    """Return a fresh optimiser.

    Parameters
    ----------
    parameters : list of Parameter
        The parameters that it may change.
    local : Local
        Its settings.
    round, rounds : int
        From 0; how many there are. They decide the `learning_rate`.
    """
    lr = learning_rate(local, round, rounds)
    if not parameters:
        parameters = [nn.Parameter(torch.zeros(()))]
    if isinstance(local.optimizer, OptimizerChoice):
        return other_optimizer(local.optimizer, parameters, local, lr)
    if local.optimizer == "sgd":
        return SGD(parameters, lr=lr, momentum=local.momentum, weight_decay=local.weight_decay)
    return Adam(parameters, lr, local.betas, local.weight_decay, local.optimizer == "adamw")


def other_optimizer(
    choice: OptimizerChoice, parameters: list[nn.Parameter], local: Local, lr: float
) -> torch.optim.Optimizer:
    """Return an optimiser by its registered name.

    Parameters
    ----------
    choice : OptimizerChoice
        Name and options.
    parameters : list of Parameter
        The parameters that it may change.
    local : Local
        The settings that it takes besides; one that it does not take has to be at its default.
    lr : float
        The round's learning rate.

    Raises
    ------
    FlrayError
        If a setting is not taken, or the function raises or returns something else.
    """
    wanted = inspect.signature(registry.optimizers.get(choice.name)).parameters
    given: dict[str, Any] = {"lr": lr}
    for name in ("momentum", "weight_decay", "betas"):
        value = getattr(local, name)
        if name not in wanted and value != Local.model_fields[name].default:
            why = f"{choice.name} does not take it; leave it out"
            raise ConfigError(f"experiment.local.{name}", str(value), why)
        given[name] = value
    taken = {name: value for name, value in given.items() if name in wanted}
    made: Any = registry.optimizers.call(choice.name, parameters, **taken, **choice.options)
    if not isinstance(made, torch.optim.Optimizer):
        raise FlrayError(
            f"optimizer {choice.name!r} returned {type(made).__name__}, not a torch.optim.Optimizer"
        )
    return made


def optimizer_state(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter]
) -> Message:
    """Return a copy of an optimiser's memory: of each parameter, by its name, and the changed numbers of its groups."""
    known = optimizer.defaults
    groups = (
        {
            k: v
            for k, v in group.items()
            # The rate is the round's.
            if isinstance(v, Tensor | int | float) and k != "lr" and v is not known.get(k)
        }
        for group in optimizer.param_groups
    )
    return {
        "parameters": {
            n: optimizer.state[w] for n, w in parameters.items() if w in optimizer.state
        },
        "groups": {str(place): changed for place, changed in enumerate(groups)},
    }


def load_optimizer_state(
    optimizer: torch.optim.Optimizer, parameters: Mapping[str, nn.Parameter], kept: Tree
) -> None:
    """Give a fresh optimiser the memory that `optimizer_state` returned; empty for none.

    Adam counts its steps on the host, wherever the parameters are: on a device each step would wait
    for each parameter's counter.
    """
    states = trees.clone(kept.get("parameters", kept))  # older runs kept these alone
    counted = [one for one in states.values() if isinstance(one.get("step"), Tensor)]
    for one, step in zip(counted, devices.to_host([one["step"] for one in counted]), strict=True):
        one["step"] = step
    optimizer.state.update({parameters[name]: one for name, one in states.items()})
    for place, changed in trees.clone(kept.get("groups", {})).items():
        optimizer.param_groups[int(place)].update(changed)
