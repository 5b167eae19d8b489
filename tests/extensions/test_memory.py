"""What plug-ins remember: a method in ``self``, which is refused; an optimiser between a round's public steps."""

from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from flray import register_algorithm, trees
from flray.algorithms import Algorithm
from flray.algorithms.client import load_optimizer_state, optimizer_state
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

    def weigh(self, server: Any, reply: Any) -> float:
        """Weigh all alike."""
        return self.table["lr"]


@pytest.mark.parametrize("name", ["server-in-self", "client-in-self", "by-client", "of-the-class"])
def test_a_memory_in_self_is_refused(name: str) -> None:
    refused(tiny.run, name)


def test_constants_are_not() -> None:
    assert tiny.digest("constants") == tiny.digest("fedavg", aggregation={"weights": "uniform"})


class Counts(torch.optim.Optimizer):
    """Counts its steps, of each parameter and of each group, in plain numbers."""

    def __init__(self, parameters: Any) -> None:
        super().__init__(parameters, {"lr": 1.0})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Step less and less far."""
        for group in self.param_groups:
            group["steps"] = group.get("steps", 0) + 1
            for value in group["params"]:
                self.state[value]["step"] = self.state[value].get("step", 0) + 1
                value -= group["lr"] / group["steps"] / self.state[value]["step"]


def test_an_optimisers_plain_numbers_stay_between_public_steps() -> None:
    whole, parts = ({"w": nn.Parameter(torch.zeros(2))} for _ in range(2))
    one, kept = Counts(whole.values()), {}
    for _ in range(3):
        one.step()
        fresh = Counts(parts.values())
        load_optimizer_state(fresh, parts, kept)
        fresh.step()
        kept = trees.unpack(trees.pack(optimizer_state(fresh, parts)))
    assert torch.equal(parts["w"], whole["w"]) and whole["w"][0] == -(1 + 1 / 4 + 1 / 9)


def test_each_public_step_has_its_rounds_rate_and_the_memory_of_an_older_run_counts() -> None:
    w, bias = (nn.Parameter(torch.ones(2)) for _ in range(2))
    first, fresh = (
        torch.optim.SGD([{"params": [w]}, {"params": [bias], "lr": lr / 10}], lr, momentum=0.9)
        for lr in (1.0, 0.5)
    )
    w.grad = bias.grad = torch.ones(2)
    first.step()
    kept = optimizer_state(first, {"w": w, "bias": bias})
    for one in (kept, kept["parameters"]):
        load_optimizer_state(fresh, {"w": w, "bias": bias}, one)
        assert [group["lr"] for group in fresh.param_groups] == [0.5, 0.05]
        assert torch.equal(fresh.state.pop(w)["momentum_buffer"], torch.ones(2))
