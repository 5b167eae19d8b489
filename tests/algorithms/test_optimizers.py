"""The optimisers are torch's to the bit, and their processes never import torch's compiler."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from flray import registry
from flray.algorithms.client import make_optimizer
from flray.algorithms.common.optimizers import SGD, Adam
from flray.config.experiment import Local
from tests.algorithms import helpers as tiny
from tests.helpers import python
from tests.messages import refused


def named(name: str, **settings: Any) -> Any:
    """Return what makes an optimiser by its name in the settings."""
    local = Local.model_validate({"optimizer": name, "lr": 0.1, **settings})
    return lambda parameters: make_optimizer(parameters, local, 0, 1)


OWN = ("sgd", "momentum", "adam", "adamw")
KINDS: dict[str, Any] = {
    "sgd": (
        lambda p: SGD(p, lr=0.1, momentum=0.0, weight_decay=0.0),
        lambda p: torch.optim.SGD(p, lr=0.1),
    ),
    "momentum": (
        lambda p: SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-2),
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=1e-2),
    ),
    "adam": (
        lambda p: Adam(p, 0.01, (0.8, 0.99), 1e-2),
        lambda p: torch.optim.Adam(p, lr=0.01, betas=(0.8, 0.99), weight_decay=1e-2),
    ),
    "adamw": (
        lambda p: Adam(p, 0.01, decoupled=True, weight_decay=1e-2),
        lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=1e-2),
    ),
    "nesterov": (
        named("nesterov", momentum=0.9),
        lambda p: torch.optim.SGD(p, 0.1, 0.9, nesterov=True),
    ),
    "rmsprop": (
        named("rmsprop", weight_decay=0.1),
        lambda p: torch.optim.RMSprop(p, 0.1, weight_decay=0.1),
    ),
    "adadelta": (named("adadelta"), lambda p: torch.optim.Adadelta(p, 0.1)),
    "adafactor": (named("adafactor"), lambda p: torch.optim.Adafactor(p, 0.1)),
    "adagrad": (named("adagrad"), lambda p: torch.optim.Adagrad(p, 0.1)),
    "adamax": (named("adamax", betas=[0.8, 0.9]), lambda p: torch.optim.Adamax(p, 0.1, (0.8, 0.9))),
    "asgd": (named("asgd", weight_decay=0.2), lambda p: torch.optim.ASGD(p, 0.1, weight_decay=0.2)),
    "nadam": (named("nadam", betas=[0.8, 0.9]), lambda p: torch.optim.NAdam(p, 0.1, (0.8, 0.9))),
    "radam": (named("radam", betas=[0.8, 0.9]), lambda p: torch.optim.RAdam(p, 0.1, (0.8, 0.9))),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS)
def test_steps_and_memory_are_torchs(kind: str, dtype: torch.dtype) -> None:
    """Seven steps with a schedule; one parameter has no gradient, one has none at first, gradients may be zeros."""
    generator = torch.Generator().manual_seed(0)
    start = [torch.randn(7, 5, generator=generator, dtype=dtype) for _ in range(3)]
    gradients = [
        [torch.randn(7, 5, generator=generator, dtype=dtype) for _ in range(2)] for _ in range(7)
    ]
    runs = []
    for make in KINDS[kind]:
        parameters = [nn.Parameter(one.clone()) for one in start]
        optimizer = make(parameters)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 7)
        for number, pair in enumerate(gradients):
            optimizer.zero_grad(set_to_none=number % 2 == 0)
            parameters[0].grad = pair[0].clone()
            if number > 1:
                parameters[1].grad = pair[1].clone()
            optimizer.step()
            schedule.step()
        memory = [
            {k: v for k, v in optimizer.state.get(p, {}).items() if v is not None}
            for p in parameters
        ]
        runs.append((parameters, memory, optimizer.param_groups[0]["lr"]))
    (own, own_memory, rate), (wanted, memory, wanted_rate) = runs
    assert rate == wanted_rate
    assert all(torch.equal(one, other) for one, other in zip(own, wanted, strict=True))
    for one, other in zip(own_memory, memory, strict=True):
        assert one.keys() == other.keys()
        assert all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("kind", OWN)
def test_a_plug_in_can_use_it_as_torchs(kind: str) -> None:
    """Further groups, hooks, and a state that goes out and comes back."""
    make, _ = KINDS[kind]
    weights = [nn.Parameter(torch.ones(2)) for _ in range(2)]
    optimizer, seen = make(weights[:1]), []
    optimizer.add_param_group({"params": weights[1:], "lr": 0.0})
    optimizer.register_step_post_hook(lambda *_: seen.append(1))
    for weight in weights:
        weight.grad = torch.ones(2)
    optimizer.step()
    assert seen == [1] and bool((weights[0] < 1).all()) and weights[1].tolist() == [1.0, 1.0]
    other = make(weights[:1])
    other.add_param_group({"params": weights[1:]})
    other.load_state_dict(optimizer.state_dict())
    assert str(other.state_dict()) == str(optimizer.state_dict())


def test_a_closure_is_called_with_gradients() -> None:
    weight = nn.Parameter(torch.ones(2))
    optimizer = SGD([weight], lr=0.5, momentum=0.0, weight_decay=0.0)

    def closure() -> float:
        loss = weight.sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) == 2.0 and weight.tolist() == [0.5, 0.5]


COMPILER_IS_IMPORTED = """
import sys
from tests.accelerator.cases import experiment
from flray.config.loader import load
from flray.federation.building import build_spec
from flray.federation.federation import inline_federation

for name in sys.argv[1:]:
    federation = inline_federation(build_spec(load({"experiment": experiment(name)}).experiment), lambda line: None)
    federation.step()
    federation.evaluate()
    assert "torch._dynamo" not in sys.modules, name
"""


def test_no_method_imports_torchs_compiler() -> None:
    names = sorted(set(registry.algorithms.names()) - set(registry.algorithms.added()))
    python(COMPILER_IS_IMPORTED, *names, cwd=Path(__file__).parents[2])


@registry.register_optimizer("plain-steps")
def plain_steps(parameters: Any, lr: float, *, times: float = 1.0) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=times * lr)


@registry.register_optimizer("a-text")
def a_text(parameters: Any, lr: float) -> Any:
    return "sgd"


@registry.register_optimizer("raises-on-use")
def raises_on_use(parameters: Any, lr: float) -> Any:
    raise ValueError("no such luck")


def test_an_own_optimiser_takes_its_option_and_is_part_of_the_settings() -> None:
    named = {"optimizer": {"name": "plain-steps", "times": 2.0}, "lr": 0.05}
    doubled, plain = (
        tiny.run("fedavg", rounds=2, local=local).sha256() for local in (named, {"lr": 0.1})
    )
    assert doubled == plain
    assert Local().model_dump(mode="json")["optimizer"] == "sgd"
    dumped = Local.model_validate(named).model_dump(mode="json")["optimizer"]
    assert dumped == {"name": "plain-steps", "times": 2.0}
    assert Local.model_validate({"optimizer": dumped}).optimizer == Local(**named).optimizer


def test_each_optimiser_of_torch_is_taken_or_refused_with_the_reason() -> None:
    unfit = ("LBFGS", "Muon", "Rprop", "SparseAdam")
    kinds = {n for n, kind in vars(torch.optim).items() if isinstance(kind, type)}
    taken = {name.lower() for name in kinds - {"Optimizer", *unfit}}
    assert taken == {*KINDS} - {"momentum", "nesterov"}
    for name in (*unfit, "AdamW", "RMSprop"):
        refused(tiny.spec_of, "fedavg", local={"optimizer": name})


def test_what_is_no_optimiser_or_does_not_fit_is_refused() -> None:
    for local in (
        {"optimizer": "rmspro"},
        {"optimizer": {"name": "rmsprop", "alpha": 1}},
        {"optimizer": {"name": "adam", "eps": 1}},
        {"optimizer": 7},
        {"optimizer": "adagrad", "momentum": 0.9},
        {"optimizer": "a-text"},
        {"optimizer": "raises-on-use"},
    ):
        refused(tiny.spec_of, "fedavg", local=local)
    block = {"aggregation": {"block": 3}, "local": {"optimizer": "nadam", "clients_per_step": 3}}
    refused(tiny.spec_of, "fedavg", model={"name": "two-layer", "norm": False}, **block)
