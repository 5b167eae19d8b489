from __future__ import annotations

import pytest
import torch
from torch import nn

from flray.errors import FlrayError
from flray.models import SplitModel, batch_norm_modules, build, layer_taps, norm_layer, select
from flray.models.groups import complement


@pytest.fixture
def resnet() -> nn.Module:
    return build("resnet8", (3, 8, 8), 10, {"width": 4}, seed=0)


def test_batch_norm_in_shortcuts_is_found_by_type(resnet: nn.Module) -> None:
    """Nine of them: stem, two in each of three blocks, one in each of two shortcuts."""
    names = [name for name, _ in batch_norm_modules(resnet)]
    assert len(names) == 9
    assert not any("bn" in name for name in names)
    assert "features.stage2.0.sum.shortcut.norm" in names
    assert "features.stage2.0.sum.shortcut.norm.running_var" in select(resnet, "batch_norm")
    assert "features.stage2.0.sum.shortcut.conv.weight" not in select(resnet, "batch_norm")


def test_torchvisions_shortcut_norms_are_found_too() -> None:
    from torchvision.models import resnet18

    with torch.device("meta"):
        model = resnet18(weights=None)
    assert "layer2.0.downsample.1.weight" in select(model, "batch_norm")
    assert len(batch_norm_modules(model)) == 20


def test_names_that_say_bn_are_not_believed() -> None:
    model = nn.ModuleDict(
        {"bn": nn.Linear(2, 2), "plain": nn.BatchNorm1d(2), "bn2": nn.GroupNorm(1, 2)}
    )
    assert select(model, "batch_norm") == {
        f"plain.{entry}"
        for entry in ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    }


def test_prefixes_end_at_the_dot_and_a_bare_norm_is_all_norm() -> None:
    bare = nn.BatchNorm1d(2, affine=False, track_running_stats=False)
    model = nn.ModuleDict({"norm": bare, "norm2": nn.Linear(1, 1)})
    assert select(model, "batch_norm") == frozenset()
    assert select(nn.BatchNorm2d(3), "not_batch_norm") == frozenset()
    assert len(select(nn.BatchNorm3d(3), "batch_norm")) == 5


def test_expressions(resnet: nn.Module) -> None:
    everything = frozenset(resnet.state_dict())
    norms, head = select(resnet, "batch_norm"), select(resnet, "classifier")
    assert select(resnet, "all") == everything
    assert select(resnet, "none") == frozenset()
    assert head == {"classifier.weight", "classifier.bias"}
    assert select(resnet, "features-batch_norm") == everything - norms - head
    assert select(resnet, "classifier+batch_norm") == head | norms
    assert select(resnet, "all - classifier - batch_norm + classifier") == everything - norms
    assert len(everything) == 9 * 5 + 9 + 2


@pytest.mark.parametrize(
    "group",
    [
        "none",
        "all",
        "classifier",
        "classifier+batch_norm",
        "features - batch_norm",
        "all-features+buffers-classifier",
    ],
)
def test_others_is_the_complement(resnet: nn.Module, group: str) -> None:
    chosen, rest = select(resnet, group), select(resnet, complement(group))
    assert not chosen & rest and chosen | rest == frozenset(resnet.state_dict())


@pytest.mark.parametrize(
    ("group", "message"),
    [
        ("feature", r"unknown parameter group 'feature'; did you mean 'features'\?"),
        (
            "all-batchnorm",
            r"unknown parameter group 'batchnorm' in 'all-batchnorm'; did you mean 'batch_norm'\?",
        ),
        ("all-", r"unknown parameter group '' in 'all-'"),
        ("", r"unknown parameter group ''; groups are all, none, features"),
    ],
)
def test_unknown_groups_are_refused(resnet: nn.Module, group: str, message: str) -> None:
    with pytest.raises(FlrayError, match=message):
        select(resnet, group)


@pytest.mark.parametrize("group", ["features", "classifier", "all-classifier"])
def test_a_model_without_split_is_refused_only_where_the_split_is_needed(group: str) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    assert len(select(model, "all")) == 7
    assert len(select(model, "batch_norm")) == 5
    with pytest.raises(
        FlrayError, match=r"no child called features or classifier .*build it as .*SplitModel"
    ):
        select(model, group)


def test_taps_of_a_resnet_are_the_values_before_the_relu(resnet: nn.Module) -> None:
    taps = layer_taps(resnet)
    assert [name for name, _ in taps] == [
        "features.stem.norm",
        "features.stage1.0.sum",
        "features.stage2.0.sum",
        "features.stage3.0.sum",
    ]
    seen: list[torch.Tensor] = []
    taps[-1][1].register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    hidden = resnet.get_submodule("features")(torch.rand(2, 3, 8, 8))
    assert seen[0].min() < 0
    torch.testing.assert_close(torch.relu(seen[0]).mean(dim=(2, 3)), hidden)


def test_a_user_models_taps() -> None:
    features = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 4))
    assert [name for name, _ in layer_taps(SplitModel(features, nn.Linear(4, 2)))] == [
        "features.0",
        "features.2",
    ]
    assert [
        name for name, _ in layer_taps(SplitModel(features, nn.Linear(4, 2), ["features.1"]))
    ] == ["features.1"]
    with pytest.raises(FlrayError, match=r"no submodule 'features\.9'"):
        layer_taps(SplitModel(features, nn.Linear(4, 2), ["features.9"]))
    with pytest.raises(FlrayError, match="no layers before its classifier"):
        layer_taps(build("linear", (4,), 2, {}, seed=0))


@pytest.mark.parametrize(
    ("channels", "groups"), [(512, 32), (64, 32), (32, 16), (16, 8), (6, 1), (12, 2), (7, 1)]
)
def test_group_norm_keeps_two_channels_in_each_group(channels: int, groups: int) -> None:
    layer = norm_layer("group", channels)
    assert isinstance(layer, nn.GroupNorm)
    assert layer.num_groups == groups
    flat = norm_layer("group", channels, images=False)
    assert isinstance(flat, nn.GroupNorm)
    assert flat.num_groups == 1


def test_norm_layers_by_kind() -> None:
    assert isinstance(norm_layer("batch", 4), nn.BatchNorm2d)
    assert isinstance(norm_layer("batch", 4, images=False), nn.BatchNorm1d)
    assert isinstance(norm_layer("none", 4), nn.Identity)


def test_buffers_are_what_is_no_parameter() -> None:
    model = build("lenet", (1, 16, 16), 3, {"norm": "batch"}, 0)
    names = select(model, "buffers")
    assert {name.rpartition(".")[2] for name in names} == {
        "running_mean",
        "running_var",
        "num_batches_tracked",
    }
    assert names == frozenset(model.state_dict()) - {name for name, _ in model.named_parameters()}
    assert select(model, "not_batch_norm+buffers") == select(model, "not_batch_norm") | names
