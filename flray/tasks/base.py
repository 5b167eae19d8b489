"""The interface of every task: the loss to minimise and the metrics to report."""

from collections.abc import Mapping
from typing import Protocol, TypeAlias

from torch import Tensor, nn

from flray.data.types import Array, FederatedData

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
