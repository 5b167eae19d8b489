"""The interface of every task, and a task with further metrics: those of ``evaluation.metrics``."""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol, TypeAlias

import numpy as np
import torch
from torch import Tensor, nn

from flray import registry
from flray.config.components import LossChoice
from flray.data.types import Array, FederatedData
from flray.errors import ConfigError, FlrayError, MethodError

Predictions: TypeAlias = Mapping[str, Array]


class Task(Protocol):
    """Loss and metrics of one kind of learning problem.

    Attributes
    ----------
    name : str
        As in `DataSet.task`.
    metric : str
        The measure that compares methods.
    logits : bool
        Whether outputs are the logits [B, C] of fixed classes.
    measures : tuple of str
        Names of everything that `summarise` returns.
    """

    name: str
    metric: str
    logits: bool
    measures: tuple[str, ...]

    def check(self, data: FederatedData) -> None:
        """Refuse data that are not of this kind.

        Raises
        ------
        DataError
            If they do not fit the task; the message says why.
        """

    def network(self, model: nn.Module) -> nn.Module:
        """Return the network as this task uses it."""

    def check_network(self, name: str, model: nn.Module, data: FederatedData) -> None:
        """Refuse a network that cannot learn this.

        Raises
        ------
        ConfigError
            If its outputs do not fit the task; the message describes them.
        """

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the scalar training loss (batch mean)."""

    def predictions(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return, per sample, the inputs of the metrics; each tensor [B, ...]."""

    def summarise(self, predictions: Predictions) -> dict[str, float]:
        """Return the metrics of a set of samples; undefined ones are NaN."""


LossFunction: TypeAlias = Callable[[Tensor, Tensor], Tensor]


def bound_loss(choice: LossChoice, counts: Callable[[], Tensor]) -> LossFunction:
    """Return a loss with its options as a function of outputs and targets.

    Parameters
    ----------
    choice : LossChoice
        ``local.loss``.
    counts : callable
        Returns the client's training samples of each class, int64 [C]; called if the loss takes them.
    """
    function = registry.losses.get(choice.name)
    if not registry.takes(function, 3):
        return partial(function, **choice.options)
    return lambda outputs, targets: function(outputs, targets, counts(), **choice.options)


def with_loss(task: Task, loss: LossFunction) -> Task:
    """Return a task that is trained with another loss and measured as before."""
    other = copy.copy(task)
    vars(other)["loss"] = loss
    return other


PATH = "experiment.evaluation.metrics"
OUTPUTS, TARGETS = "metrics/outputs", "metrics/targets"


class WithMetrics:
    """A task that is measured by further metrics.

    Parameters
    ----------
    task : Task
        Decides on everything else.
    metrics : sequence of (str, mapping)
        Registered names and their options.
    """

    def __init__(self, task: Task, metrics: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
        self._task, self._metrics = task, metrics
        self.name, self.metric, self.logits = task.name, task.metric, task.logits
        self.measures = (*task.measures, *(name for name, _ in metrics))

    def check(self, data: FederatedData) -> None:
        """Refuse metrics that share a name, or that need outputs which this task does not have."""
        self._task.check(data)
        if self.name == "few-shot":
            raise ConfigError(
                PATH, self._metrics[0][0], "episodes have no outputs of fixed classes; leave it out"
            )
        for position, (name, _) in enumerate(self._metrics):
            problem = ""
            if not registry.takes(registry.metrics.get(name), 2):
                problem = "a metric is a function of targets and outputs, metric(targets, outputs, *, options)"
            elif "/" in name:
                problem = "a metric's name has no /; register another"
            elif name in self.measures[: len(self._task.measures) + position]:
                problem = "it is measured already; leave one of them out"
            if problem:
                raise ConfigError(f"{PATH}.{position}", name, problem)

    def network(self, model: nn.Module) -> nn.Module:
        """Return the network as the task uses it."""
        return self._task.network(model)

    def check_network(self, name: str, model: nn.Module, data: FederatedData) -> None:
        """Refuse a network that the task cannot use."""
        self._task.check_network(name, model, data)

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the task's loss."""
        return self._task.loss(outputs, targets)

    def predictions(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return, besides the task's, the outputs and the targets."""
        shown = outputs if outputs.dtype == torch.float64 else outputs.float()
        return {**self._task.predictions(outputs, targets), OUTPUTS: shown, TARGETS: targets}

    def summarise(self, predictions: Predictions) -> dict[str, float]:
        """Return the task's metrics and these; NaN for no samples.

        Raises
        ------
        MethodError
            If a metric raises or returns no number.
        """
        outputs, targets = predictions[OUTPUTS], predictions[TARGETS]
        added = {
            name: _measure(name, options, targets, outputs) if len(targets) else math.nan
            for name, options in self._metrics
        }
        return {**self._task.summarise(predictions), **added}


def _measure(name: str, options: Mapping[str, Any], targets: Any, outputs: Any) -> float:
    try:
        value = registry.metrics.call(name, targets, outputs, **options)
    except FlrayError as error:
        raise MethodError(str(error)) from error
    if not isinstance(value, int | float | np.number | np.bool_):
        raise MethodError(f"metric {name!r} returned {type(value).__name__}, not a number")
    return float(value)
