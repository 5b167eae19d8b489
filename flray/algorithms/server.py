"""The server as an algorithm's hooks see it: models, the method's state, cohort and replies."""

from collections.abc import Callable
from dataclasses import dataclass, field

import torch
from torch import Tensor

from flray import rng
from flray.algorithms.common.samples import ResidentModel, Samples
from flray.algorithms.types import Message, Weighting
from flray.config.experiment import Experiment
from flray.trees import Weights


@dataclass(frozen=True)
class ClientInfo:
    """The server's knowledge of a client.

    Attributes
    ----------
    name, domain : str
        As in the partition.
    num_samples : int
        Training samples.
    class_counts : Tensor of int64 [C]
        Training samples by class; [0] where samples have masks.
    architecture : str
        Key of its model in ``server.models``.
    """

    name: str
    domain: str
    num_samples: int
    class_counts: Tensor
    architecture: str


@dataclass
class Server:
    """The server's side of a federation, as hooks see it.

    Attributes
    ----------
    models : dict of str to tree
        The global model of each architecture: every parameter and buffer (entries outside the
        shared group keep their initial values).
    state : dict
        The algorithm's own memory, a plain tree; replaced or extended by hooks.
    cohort : list of int
        Clients of the current round, sorted.
    round : int
        Current round, from 0.
    clients : tuple of ClientInfo
        All clients.
    shared_names : dict of str to frozenset of str
        For each architecture the names that travel.
    parameter_names : dict of str to frozenset of str
        For each architecture the names that are trainable parameters (the others are buffers or frozen).
    num_public : int
        Number of public samples, 0 without any.
    metrics : dict of str to float
        Metrics that hooks track this round (see `log`).
    model_for : callable, or None
        Returns the server's model of an architecture, for methods with `trains_at_server`. The
        model holds the weights that were loaded last.
    public : Samples, or None
        The public samples on the device of these models, for such methods.
    notify : callable
        Shows the user a line; hooks call `warn`.
    warned : set of str
        Subjects of the warnings so far.
    """

    config: Experiment
    clients: tuple[ClientInfo, ...]
    models: dict[str, Weights]
    shared_names: dict[str, frozenset[str]]
    parameter_names: dict[str, frozenset[str]]
    num_classes: int
    weighting: Weighting
    num_public: int = 0
    state: Message = field(default_factory=dict)
    cohort: list[int] = field(default_factory=list)
    round: int = 0
    metrics: dict[str, float] = field(default_factory=dict)
    model_for: Callable[[str], ResidentModel] | None = None
    public: Samples | None = None
    notify: Callable[[str], None] = print
    warned: set[str] = field(default_factory=set)

    @property
    def model(self) -> Weights:
        """The global model where all clients have the same architecture."""
        (weights,) = self.models.values()
        return weights

    @property
    def bench(self) -> Callable[[str], ResidentModel] | None:
        """The former name of `model_for`, for methods written against the first release."""
        return self.model_for

    def log(self, name: str, value: float | Tensor, client: int | None = None) -> None:
        """Track a number of this round, of the federation or of one client."""
        suffix = "" if client is None else f"/client/{self.clients[client].name}"
        self.metrics[f"{name}{suffix}"] = float(value)

    def warn(self, subject: str, line: str) -> None:
        """Warn the user in one line, once in a run, that the method is on but has no effect.

        Parameters
        ----------
        subject : str
            Subject of the warning; a second warning on the same subject is not shown.
        line : str
            The part without effect, the reason, and the setting to change.
        """
        if subject not in self.warned:
            self.warned.add(subject)
            self.notify(f"{self.config.algorithm.name}: {line}")

    def generator(self, purpose: rng.Purpose, extra: int | str = 0) -> torch.Generator:
        """Return the server's generator for one purpose in this round (client number -1)."""
        return rng.torch_generator(
            self.config.seed, purpose, round=self.round, client=-1, extra=extra
        )
