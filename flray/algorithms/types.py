"""Types that hooks exchange: phases, stages, messages, replies; every module of the package may import this one."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from torch import Tensor

from flray.trees import FlatTree

# A plain tree (see flray.trees): the form of messages between server and clients, and of their states.
Message: TypeAlias = dict[str, Any]
Weighting = Literal["samples", "uniform"]
View = Literal["global", "personal"]
Predictor = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Phase:
    """One stretch of local training.

    Attributes
    ----------
    tag : str
        Tells phases apart in `Algorithm.loss`, and keys the batch order.
    trainable : str
        Parameter group in the optimiser (see `flray.models.select`); the others are frozen.
    epochs : int or None
        Passes over the stream; None for the experiment's ``local.epochs``.
    local : mapping
        Settings of ``local`` that differ in this phase, for example ``{"lr": 0.1}``.
    steps : int or None
        Maximal number of optimiser steps of these passes; None for all.
    """

    tag: str = "train"
    trainable: str = "all"
    epochs: int | None = None
    local: Mapping[str, object] = field(default_factory=dict)
    steps: int | None = None


@dataclass(frozen=True)
class Stage:
    """One exchange between server and cohort within a round.

    Attributes
    ----------
    name : str
        The algorithm's method that runs at the client, taking a `Client` and returning the reply.
    index : int
        Tells repeated stages apart (a public batch's number); reaches the client as
        ``client.stage_index``.
    """

    name: str = "train"
    index: int = 0


class Reply(Protocol):
    """One client's answer in a stage: a mapping that fetches large entries on access."""

    client: int
    architecture: str
    num_samples: int

    def __getitem__(self, entry: str) -> Any: ...

    def get(self, entry: str, default: Any = None) -> Any:
        """Return an entry, or the default where the client sent none."""

    def flat(self, entry: str) -> FlatTree | None:
        """Return an entry as one tensor of all its values; None if it is small, or no such entry."""


class Replies(Protocol):
    """A stage's replies in client order. Iterating waits for each in turn and can be repeated after `wait`."""

    def __iter__(self) -> Iterator[Reply]: ...
    def __len__(self) -> int: ...

    def wait(self) -> Sequence[Reply]:
        """Return all replies once the last has arrived, their large entries not yet fetched."""
