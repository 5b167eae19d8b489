from collections.abc import Iterator
from typing import Annotated, Any

import pytest
import torch
from pydantic import Field
from torch import nn

from flray import registry
from flray.models import build
from tests.messages import refused


@pytest.fixture
def users_model() -> Iterator[str]:
    name = "users-own-model"

    @registry.register_model(name)
    def own(
        shape: tuple[int, ...], num_classes: int, *, hidden: Annotated[int, Field(ge=2)] = 3
    ) -> nn.Module:
        return nn.Sequential(
            nn.Flatten(), nn.Linear(shape[0], hidden), nn.Linear(hidden, num_classes)
        )

    yield name
    del registry.models._entries[name]


def test_a_users_model_is_built_like_any_other(users_model: str) -> None:
    model = build(users_model, (6,), 4, {"hidden": 5}, seed=0)
    assert [tuple(p.shape) for p in model.parameters()] == [(5, 6), (5,), (4, 5), (4,)]
    registry.models._entries[users_model] = lambda shape, num_classes: nn.LazyLinear(num_classes)
    lazy, again = (build(users_model, (6,), 4, {}, seed=0).state_dict() for _ in range(2))
    assert lazy["weight"].shape == (4, 6) and torch.equal(lazy["weight"], again["weight"])
    registry.models._entries[users_model] = lambda shape, num_classes: shape
    refused(build, users_model, (6,), 4, {}, seed=0)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("users-own-model", {"hidden": 1}),
        ("users-own-model", {"hiden": 5}),
        ("linear", {"norm": "batch"}),
        ("lenet", {"norm": "layer"}),
        ("mlp", {"hidden": []}),
        ("mlp", {"hidden": [4, 0]}),
        ("digit-cnn", {"layers": 5}),
        ("digit-cnn", {"width": 0.0}),
        ("resnet18", {"norm": "none"}),
        ("efficientnet-b0", {"dropout": 1.0}),
        ("resnett34", {}),
    ],
)
def test_what_cannot_be_built_is_named(
    users_model: str, name: str, options: dict[str, Any]
) -> None:
    refused(build, name, (3, 32, 32), 4, options, seed=0)


def test_another_dtype_starts_at_the_same_point() -> None:
    single, double = (
        build("lenet", (3, 16, 16), 4, {"norm": "batch"}, seed=3, dtype=dtype).state_dict()
        for dtype in (torch.float32, torch.float64)
    )
    for name, value in double.items():
        whole = name.endswith("num_batches_tracked")
        assert value.dtype == (torch.int64 if whole else torch.float64)
        assert torch.equal(value, single[name].to(value.dtype))


def test_models_of_different_names_start_at_different_points() -> None:
    lenet = build("lenet", (3, 32, 32), 10, {}, seed=0).state_dict()
    simple = build("simple-cnn", (3, 32, 32), 10, {}, seed=0).state_dict()
    assert not torch.equal(lenet["features.conv1.weight"], simple["features.conv1.weight"])
