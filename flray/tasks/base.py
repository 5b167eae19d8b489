"""The interface of every task, a task with further metrics (``evaluation.metrics``), and losses in place of a task's.

A loss (``local.loss``) is a function of the network's ``outputs`` and the ``targets`` of a batch; it returns a mean
over the batch. Its keyword-only parameters are its options. A third parameter, ``counts`` [C], is the client's training
samples of each class; such a loss needs a task whose outputs are the logits of fixed classes.
"""

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Discriminator, Field, Tag
from torch import Tensor, nn

from flray import devices, registry
from flray.config.components import LossChoice
from flray.data.types import Array, FederatedData, Rows
from flray.errors import ConfigError, DataError, FlrayError, MethodError
from flray.models import dry_run
from flray.registry import register_loss

Predictions: TypeAlias = Mapping[str, Array]


_TARGETS = {
    "classes": "class labels, int64 [n]",
    "numbers": "finite numbers, float32 [n, k] for k columns",
    "flags": "0 and 1, uint8 [n, k] for k labels",
}


class Task:
    """The base of all tasks: loss, outputs, targets and measures of one kind of learning problem.

    A task has a `loss`, and either a `measure` or both `predictions` and `summarise`. Its
    constructor may name ``classes``, ``top_k`` (``evaluation.top_k``), the settings of ``episodes`` and ``seed``.

    Attributes
    ----------
    name : str
        Its registered name, as in `DataSet.task`.
    target : {"classes", "numbers", "flags", "masks", "episodes"}
        Type and shape of `DataSet` targets: class labels int64 [n], numbers float32 [n, k], 0 and 1 of labels that
        do not exclude each other uint8 [n, k], masks uint8 [n, K, H, W], or class labels other than those of the test.
    logits : bool
        Whether outputs are the logits [B, C] of fixed classes.
    measures : tuple of str
        Names of all measures. The first one compares methods, and more of it is better. Less is better of names
        that begin or end as `flray.metrics` says: with ``loss`` or ``error``.
    """

    name: str = ""
    target: ClassVar[Literal["classes", "numbers", "flags", "masks", "episodes"]] = "classes"
    logits: bool = False
    measures: tuple[str, ...] = ()

    @staticmethod
    def partition_labels(targets: Array) -> Rows | None:
        """Return labels int64 [n], counted from 0, that a partition may divide samples by if they have no class.

        Parameters
        ----------
        targets : ndarray [n, k]
            Of all samples.

        Returns
        -------
        ndarray of int64 [n] or None
            None: partitions by class are refused. That is the default.
        """
        return None

    def check(self, data: FederatedData) -> None:
        """Refuse data that are not of this kind. Default: targets of another type or shape than `target`.

        Raises
        ------
        DataError
            If they do not fit the task; the message says why.
        """
        y = data.y
        fits = {
            "numbers": y.ndim == 2 and np.issubdtype(y.dtype, np.floating) and np.isfinite(y).all(),
            "flags": y.ndim == 2 and y.dtype == np.uint8 and y.max(initial=0) <= 1,
        }
        if not fits.get(self.target, data.has_classes) or (
            y.ndim == 2 and y.shape[1] != len(data.classes)
        ):
            wanted = _TARGETS.get(self.target, _TARGETS["classes"])
            raise DataError(
                f"data set {data.dataset}: {self.name} needs {wanted}, and a name for each in classes; found "
                f"{y.dtype} {list(y.shape[1:])} per sample and {len(data.classes)} names"
            )

    def network(self, model: nn.Module) -> nn.Module:
        """Return the network as this task uses it. Default: unchanged."""
        return model

    def check_network(self, name: str, model: nn.Module, data: FederatedData) -> None:
        """Refuse a network that cannot learn this. Default: one without an output for each class, number or flag.

        Only a task that defines `predictions` may have outputs other than a tensor.

        Raises
        ------
        ConfigError
            If its outputs do not fit the task; the message describes them.
        """
        own = not self.logits and type(self).predictions is not Task.predictions
        outputs, count = dry_run(name, model, data.shape, structured=own), data.num_classes
        if isinstance(outputs, Tensor) and (
            outputs.dim() != 2
            or outputs.shape[1] < count
            or (not self.logits and outputs.shape[1] > count)
        ):
            what = (
                "logit for each of the {} classes"
                if self.logits
                else "output for each of the {} targets"
            )
            raise ConfigError(
                "experiment.model",
                name,
                f"{self.name} needs one {what.format(count)} of {data.dataset}, [1, {count}] for one sample, and it "
                f"returns {list(outputs.shape)}",
            )

    def loss(self, outputs: Tensor, targets: Tensor) -> Tensor:
        """Return the scalar training loss (batch mean)."""
        raise NotImplementedError

    def predictions(self, outputs: Tensor, targets: Tensor) -> dict[str, Tensor]:
        """Return, per sample, the inputs of the metrics; each tensor [B, ...]. Default: outputs and targets."""
        return {"outputs": outputs, "targets": targets}

    def summarise(self, predictions: Predictions) -> dict[str, float]:
        """Return the metrics of a set of samples; undefined ones are NaN. Default: `measure`, and ``loss``."""
        outputs, targets = predictions["outputs"], predictions["targets"]
        if not len(targets):
            return dict.fromkeys(self.measures, math.nan)
        try:
            with registry.tasks.guarded(self.name):
                loss = self.loss(torch.from_numpy(outputs).double(), torch.from_numpy(targets))
                # Copies, because a measure may work in place, and others are measured on the same.
                measured = self.measure(targets.copy(), outputs.copy())
                found: dict[str, Any] = {"loss": finite_or_infinite(float(loss)), **measured}
                return {name: float(found[name]) for name in self.measures}
        except FlrayError as error:
            raise MethodError(str(error)) from error

    def measure(self, targets: Array, outputs: Array) -> dict[str, float]:
        """Return the measures other than ``loss`` of one sample at least."""
        raise NotImplementedError


def mean_of_known(values: Array) -> float:
    """Return the mean of the values that are defined."""
    known = values[~np.isnan(values)]
    return float(known.mean()) if len(known) else float("nan")


def finite_or_infinite(value: float) -> float:
    """Return a loss of some samples, infinite in place of NaN: means leave out what is undefined, not what diverged."""
    return math.inf if math.isnan(value) else value


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


class WithMetrics(Task):
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
        for name in ("name", "logits", "network", "check_network", "loss"):
            vars(self)[name] = getattr(task, name)
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
            elif not self.logits and not registry.metrics.is_own(name):
                problem = f"it compares classes, and a task of {self.name} has none; leave it out"
            elif "/" in name:
                problem = "a metric's name has no /; register another"
            elif name in self.measures[: len(self._task.measures) + position]:
                problem = "it is measured already; leave one of them out"
            if problem:
                raise ConfigError(f"{PATH}.{position}", name, problem)

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
        # Copies as in `Task.summarise`.
        value = registry.metrics.call(name, targets.copy(), outputs.copy(), **options)
    except FlrayError as error:
        raise MethodError(str(error)) from error
    if not isinstance(value, int | float | np.number | np.bool_):
        raise MethodError(f"metric {name!r} returned {type(value).__name__}, not a number")
    return float(value)


Weight = Annotated[float, Field(gt=0, le=1e6)]
ClassWeights = Annotated[
    Annotated[Literal["balanced"] | None, Tag("[name]")]
    | Annotated[tuple[Weight, ...], Tag("[numbers]")],
    Discriminator(lambda value: "[numbers]" if isinstance(value, list | tuple) else "[name]"),
    Field(
        description="of the classes, a number for each; balanced: at each client so that all classes which it holds "
        "weigh the same in an epoch (n / (k n_c) for k classes); null: all the same"
    ),
]


@register_loss("cross-entropy")
def cross_entropy(
    outputs: Tensor,
    targets: Tensor,
    counts: Tensor,
    *,
    weights: ClassWeights = None,
    smoothing: Annotated[
        float, Field(ge=0, lt=1, description="share of each label that is spread over all classes")
    ] = 0.0,
) -> Tensor:
    """Cross-entropy of logits and labels, with class weights and label smoothing (Szegedy et al. 2016)."""
    return F.cross_entropy(
        outputs, targets, _class_weights(weights, outputs, counts), label_smoothing=smoothing
    )


@register_loss("focal")
def focal(
    outputs: Tensor,
    targets: Tensor,
    counts: Tensor,
    *,
    gamma: Annotated[
        float,
        Field(
            ge=0,
            le=100,
            description="how much less a sample counts that is right; 0: cross-entropy",
        ),
    ] = 2.0,
    weights: ClassWeights = None,
) -> Tensor:
    """Focal loss ``-(1 - p)^gamma log p`` of the label's probability p (Lin et al., ICCV 2017, Eq. 4 and 5)."""
    log_p = F.log_softmax(outputs, dim=1).gather(1, targets.unsqueeze(1)).squeeze(1)
    # The least number instead of 0, where the slope of a root is infinite.
    rest = (-torch.expm1(log_p)).clamp_min(torch.finfo(log_p.dtype).tiny)
    losses = -rest.pow(gamma) * log_p
    of_class = _class_weights(weights, outputs, counts)
    if of_class is None:
        return losses.mean()
    of_sample = of_class[targets]
    return (of_sample * losses).sum() / of_sample.sum()


@register_loss("huber")
def huber(
    outputs: Tensor,
    targets: Tensor,
    *,
    delta: Annotated[
        float, Field(gt=0, le=1e6, description="error from which on it counts linearly")
    ] = 1.0,
) -> Tensor:
    """Huber loss of numbers, less moved by outliers than least squares (Huber 1964)."""
    if outputs.shape != targets.shape:
        why = f"it compares numbers: outputs are {list(outputs.shape)}, targets {list(targets.shape)}; leave it out"
        raise ConfigError("experiment.local.loss", "huber", why)
    return F.huber_loss(outputs, targets.to(outputs.dtype), delta=delta)


def _class_weights(
    weights: Literal["balanced"] | tuple[float, ...] | None, outputs: Tensor, counts: Tensor
) -> Tensor | None:
    """Return the weight of each output, 0 for outputs beyond the classes; None if all weigh the same."""
    if weights is None:
        return None
    if isinstance(weights, str):
        held, sizes = counts > 0, counts.to(outputs.dtype)
        found = torch.where(held, sizes.sum() / (held.sum() * sizes.clamp(min=1)), 0.0)
    elif len(weights) == len(counts):
        found = devices.to_device(torch.tensor(weights, dtype=outputs.dtype), outputs.device)
    else:
        why = f"the data have {len(counts)} classes; give a weight for each, or balanced"
        raise ConfigError("experiment.local.loss.weights", f"{len(weights)} weights", why)
    return F.pad(found, (0, outputs.shape[1] - len(counts)))
