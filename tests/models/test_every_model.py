"""What every built-in network promises, at the smallest sizes that it takes."""

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

from flray import registry
from flray.errors import FlrayError
from flray.models import (
    SplitModel,
    as_split,
    batch_norm_modules,
    build,
    feature_dim,
    layer_taps,
    select,
)
from flray.trees import sha256
from tests.messages import refused

# name, options that keep it small, least height and width, features
CASES: list[tuple[str, Mapping[str, Any], int, int]] = [
    ("linear", {}, 1, 3),
    ("mlp", {"hidden": [7, 5]}, 1, 5),
    ("mlp", {"hidden": [7, 5], "norm": "batch"}, 1, 5),
    ("mlp", {"hidden": [7, 5], "norm": "group"}, 1, 5),
    ("lenet", {}, 16, 84),
    ("lenet", {"norm": "batch"}, 16, 84),
    ("lenet", {"norm": "group"}, 16, 84),
    ("cnn", {"norm": "batch", "kernels": 4}, 16, 84),
    ("cnn", {"norm": "group", "kernels": 3}, 16, 84),
    ("simple-cnn", {}, 16, 256),
    ("emnist-cnn", {}, 4, 512),
    ("digit-cnn", {"width": 0.1}, 4, 13),
    ("digit-cnn", {"width": 0.1, "layers": 4, "split": "head", "classifier_norm": False}, 4, 51),
    ("digit-cnn", {"width": 0.1, "norm": "group"}, 4, 13),
    ("alexnet", {"width": 0.05}, 63, 13 * 36),
    ("alexnet", {"width": 0.05, "split": "head"}, 63, 205),
    ("resnet8", {"width": 8}, 4, 32),
    ("resnet8", {"width": 8, "norm": "group"}, 4, 32),
    ("resnet10", {"width": 4}, 8, 32),
    ("resnet12", {"width": 4}, 8, 32),
    ("resnet18", {"width": 4}, 8, 32),
    ("resnet18", {"width": 4, "norm": "group"}, 8, 32),
    ("resnet34", {"width": 4}, 8, 32),
    ("resnet18-imagenet", {"width": 4}, 32, 32),
    ("mobilenetv2", {}, 8, 1280),
    ("efficientnet-b0", {}, 16, 320),
    ("googlenet", {}, 4, 1024),
    ("densenet121", {}, 29, 1024),
    ("densenet121", {"norm": "group"}, 29, 1024),
    ("torchvision", {"network": "resnet18"}, 1, 512),
    ("torchvision", {"network": "shufflenet_v2_x0_5", "norm": "group"}, 1, 1024),
    ("protonet", {"width": 4}, 16, 4),
    ("protonet", {"width": 4, "norm": "group"}, 16, 4),
    ("unet", {"width": 4}, 16, 4),
    ("unet", {"width": 4, "norm": "group"}, 16, 4),
]
IDS = ["-".join([name, *map(str, options.values())]) for name, options, _, _ in CASES]
MAPS = {"unet"}  # whose features and outputs are maps of the images' size
BUILT = [
    case for case in CASES if case[0] in ("mlp", "digit-cnn", "resnet8", "unet", "torchvision")
]
every = pytest.mark.parametrize(("name", "options", "size", "features"), CASES, ids=IDS)


def small(name: str, options: Mapping[str, Any], size: int, seed: int = 0) -> SplitModel:
    return as_split(build(name, (3, size, size), 5, options, seed))


def batch(size: int, samples: int = 2) -> torch.Tensor:
    return torch.rand(samples, 3, size, size, generator=torch.Generator().manual_seed(1))


def test_every_built_in_model_is_here_and_all_but_linear_have_a_norm() -> None:
    built_in = set(registry.models.names()) - set(registry.models.added())
    assert {name for name, *_ in CASES} == built_in == {"linear", *NORMED}


@every
def test_split_layouts_and_taps(
    name: str, options: Mapping[str, Any], size: int, features: int
) -> None:
    model, x = small(name, options, size).eval(), batch(size)
    outputs: list[torch.Tensor] = []
    copies: list[torch.Tensor] = []
    taps = layer_taps(model) if name != "linear" else []

    def note(module: nn.Module, inputs: object, output: torch.Tensor) -> None:
        outputs.append(output)
        copies.append(output.clone())

    for _, module in taps:
        module.register_forward_hook(note)
    with torch.no_grad():
        logits = model(x)
        assert len(outputs) == len(taps) == len({tap for tap, _ in taps})
        # A ReLU in place behind a tap would change what the hook was given.
        assert all(torch.equal(y, copy) for y, copy in zip(outputs, copies, strict=True))
        hidden = model.features(x)
        place = (size, size) if name in MAPS else ()
        assert features == model.feature_dim == feature_dim(model)
        assert hidden.shape == (2, features, *place)
        assert logits.shape == (2, 5, *place)
        if name not in ("linear", "simple-cnn", "efficientnet-b0"):  # these do not end in a ReLU
            assert hidden.min() >= 0
        assert torch.equal(model.classifier(hidden), logits)
        # In double precision: rounding is all that may differ, and a group norm of two equal values
        # enlarges it.
        expected, x = model.double()(x.double()), x.double()
        last = torch.channels_last
        other = model.to(memory_format=last)(x.contiguous(memory_format=last))
    torch.testing.assert_close(other, expected, rtol=1e-8, atol=1e-8)


@every
def test_groups_partition_the_state(
    name: str, options: Mapping[str, Any], size: int, features: int
) -> None:
    model = small(name, options, size)
    state = set(model.state_dict())
    head, body = select(model, "classifier"), select(model, "features")
    assert head and body == state - head
    norms = select(model, "batch_norm")
    assert select(model, "not_batch_norm") == state - norms
    # weight, bias, running mean, running variance and counter of each
    assert len(norms) == 5 * len(batch_norm_modules(model))
    if options.get("norm") == "group":
        assert not norms
        assert any(isinstance(module, nn.GroupNorm) for module in model.modules())


@pytest.mark.parametrize(("name", "options", "size", "features"), BUILT)
def test_values_come_from_the_seed_alone(
    name: str, options: Mapping[str, Any], size: int, features: int
) -> None:
    torch.manual_seed(123)
    before = torch.get_rng_state()
    first = small(name, options, size)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(1)
    assert sha256(small(name, options, size).state_dict()) == sha256(first.state_dict())
    assert sha256(small(name, options, size, seed=1).state_dict()) != sha256(first.state_dict())


@pytest.mark.parametrize(("name", "size"), sorted({(n, s) for n, _, s, _ in CASES if s > 1}))
def test_too_small_an_image_or_none_is_refused(name: str, size: int) -> None:
    small = rf"'{name}' needs images of at least {size}x{size}, found {size - 1}x{size} "
    none = r"\[channels, height, width\], found samples of shape \(64,\)"
    for shape, said in (((3, size - 1, size), small), ((64,), none)):
        with pytest.raises(FlrayError, match=said):
            build(name, shape, 5, {}, seed=0)


@pytest.mark.parametrize(
    ("name", "options"),
    [("lenet", {}), ("mlp", {}), ("unet", {"width": 8}), ("resnet8", {"width": 8})],
)
def test_group_norm_leaves_samples_independent(name: str, options: dict[str, Any]) -> None:
    """In train mode a sample's logits do not depend on the rest of its batch, as they do with batch norm."""
    x = batch(32, samples=3)
    for norm, alike in (("group", True), ("batch", False)):
        model = build(name, (3, 32, 32), 5, {**options, "norm": norm}, seed=0).train()
        with torch.no_grad():
            assert torch.allclose(model(x)[:2], model(x[:2]), atol=1e-5) is alike


NORMED = sorted(
    name
    for name in registry.models.names()  # other modules of this process register theirs as well
    if registry.models.get(name).__module__.startswith("flray.")
    and "norm" in registry.models.params(name).model_fields
)


@pytest.mark.parametrize("name", NORMED)
def test_every_network_with_norms_has_them_as_group_norm(name: str) -> None:
    build_one = registry.models.get(name)
    with torch.device("meta"):
        batch_form, group_form = (build_one((3, 64, 64), 5, norm=n) for n in ("batch", "group"))
    norms = [m for m in group_form.modules() if isinstance(m, nn.GroupNorm)]
    assert norms and not batch_norm_modules(group_form)
    assert len(norms) == len(batch_norm_modules(batch_form))
    assert all(m.num_channels // m.num_groups >= 2 for m in norms)
    assert [n for n, _ in layer_taps(batch_form)] == [n for n, _ in layer_taps(group_form)]


def test_flattened_models_take_any_shape() -> None:
    for shape in [(64,), (1, 8, 8), (5, 4, 3, 2)]:
        for name in ("linear", "mlp"):
            assert build(name, shape, 4, {}, seed=0)(torch.zeros(2, *shape)).shape == (2, 4)


def test_dropout_of_efficientnet_acts_in_training_only() -> None:
    x = batch(16)
    model = small("efficientnet-b0", {"dropout": 0.5, "norm": "group"}, 16)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        dropped = (model.train().features(x) == 0).float().mean().item()
        assert (model.eval().features(x) == 0).float().mean().item() == 0
    assert dropped == pytest.approx(0.5, abs=0.08)


def test_unet_takes_sizes_that_can_be_halved_alone() -> None:
    assert small("unet", {"width": 2, "depth": 3}, 24).eval()(batch(24)).shape == (2, 5, 24, 24)
    refused(small, "unet", {}, 24)
