from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Annotated, Any

import pytest
import torch
from pydantic import Field
from torch import nn

from flray import registry
from flray.errors import ConfigError, FlrayError
from flray.models import build


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
    with pytest.raises(ConfigError, match=r"model\.hidden: found 1; .*greater than or equal to 2"):
        build(users_model, (6,), 4, {"hidden": 1}, seed=0)


def test_an_unknown_option_is_refused_with_the_nearest(users_model: str) -> None:
    with pytest.raises(
        ConfigError, match=r"model\.hiden: .*'users-own-model': hidden; did you mean 'hidden'\?"
    ):
        build(users_model, (6,), 4, {"hiden": 5}, seed=0)
    with pytest.raises(ConfigError, match=r"model\.norm: .*options of 'linear': none"):
        build("linear", (6,), 4, {"norm": "batch"}, seed=0)


@pytest.mark.parametrize(
    ("name", "options", "path"),
    [
        ("lenet", {"norm": "layer"}, "model.norm"),
        ("mlp", {"hidden": []}, "model.hidden"),
        ("mlp", {"hidden": [4, 0]}, "model.hidden.1"),
        ("digit-cnn", {"layers": 5}, "model.layers"),
        ("digit-cnn", {"width": 0.0}, "model.width"),
        ("resnet18", {"norm": "none"}, "model.norm"),
        ("efficientnet-b0", {"dropout": 1.0}, "model.dropout"),
    ],
)
def test_values_out_of_range_are_refused(name: str, options: dict[str, Any], path: str) -> None:
    with pytest.raises(ConfigError) as error:
        build(name, (3, 32, 32), 4, options, seed=0)
    assert error.value.path == path


def test_an_unknown_model_is_refused_with_the_nearest() -> None:
    with pytest.raises(FlrayError, match=r"unknown model 'resnett34'; did you mean 'resnet34'\?"):
        build("resnett34", (3, 32, 32), 4, {}, seed=0)


def test_a_builder_that_returns_no_module_is_named() -> None:
    registry.register_model("no-module")(lambda shape, num_classes: shape)
    try:
        with pytest.raises(
            FlrayError, match=r"'no-module': its builder returned tuple, not a torch\.nn\.Module"
        ):
            build("no-module", (3,), 2, {}, seed=0)
    finally:
        del registry.models._entries["no-module"]


def test_another_dtype_starts_at_the_same_point() -> None:
    single = build("lenet", (3, 16, 16), 4, {"norm": "batch"}, seed=3).state_dict()
    double = build(
        "lenet", (3, 16, 16), 4, {"norm": "batch"}, seed=3, dtype=torch.float64
    ).state_dict()
    for name, value in double.items():
        assert value.dtype == (
            torch.int64 if name.endswith("num_batches_tracked") else torch.float64
        )
        assert torch.equal(value, single[name].to(value.dtype))


def test_models_of_different_names_start_at_different_points() -> None:
    lenet = build("lenet", (3, 32, 32), 10, {}, seed=0).state_dict()
    simple = build("simple-cnn", (3, 32, 32), 10, {}, seed=0).state_dict()
    assert not torch.equal(lenet["features.conv1.weight"], simple["features.conv1.weight"])


def test_importing_the_models_does_not_import_torchvision() -> None:
    code = "import sys, flray.models; sys.exit('torchvision' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=120).returncode == 0
