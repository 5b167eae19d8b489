"""A method that remembers in ``self``, which other processes do not see and a resume loses, is refused."""

from functools import cached_property
from typing import Any, ClassVar

import pytest

from flray import register_algorithm
from flray.algorithms import Algorithm
from tests.algorithms import helpers as tiny
from tests.messages import refused


@register_algorithm("server-in-self")
class ServerInSelf(Algorithm):
    """Counts its rounds."""

    def refine(self, server: Any) -> None:
        self.rounds = 1


@register_algorithm("client-in-self")
class ClientInSelf(Algorithm):
    """Counts its tasks."""

    def begin(self, client: Any) -> None:
        self.tasks = 1


@register_algorithm("by-client")
class ByClient(Algorithm):
    """Has room for a memory of each client."""

    def __init__(self, hp: Any = None) -> None:
        super().__init__(hp)
        self.memory: dict[int, Any] = {}


@register_algorithm("of-the-class")
class OfTheClass(Algorithm):
    """Has the same in the class."""

    memory: ClassVar[list[Any]] = []


@register_algorithm("constants")
class Constants(Algorithm):
    """Keeps what follows from its settings."""

    def __init__(self, hp: Any = None) -> None:
        super().__init__(hp)
        self.table = {"lr": 0.5}

    @cached_property
    def factor(self) -> float:
        """Half."""
        return self.table["lr"]

    def weigh(self, server: Any, reply: Any) -> float:
        """Weigh all alike."""
        return self.factor


@pytest.mark.parametrize("name", ["server-in-self", "client-in-self", "by-client", "of-the-class"])
def test_a_memory_in_self_is_refused(name: str) -> None:
    refused(tiny.run, name)


def test_constants_are_not() -> None:
    assert tiny.digest("constants") == tiny.digest("fedavg", aggregation={"weights": "uniform"})
