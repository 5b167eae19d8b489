"""The parts of a network: body and head, groups of parameters, taps, and a dry run."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from flray import models, registry
from flray.data.federated import federate
from flray.data.loading import load_dataset
from flray.models import complement, dry_run
from flray.tasks import Task, make_task
from tests.algorithms import helpers as tiny
from tests.helpers import cases
from tests.messages import refused


class Users(nn.Module):
    """What a user may bring: split children and a forward of their own."""

    def __init__(self, **children: nn.Module) -> None:
        super().__init__()
        for name, child in children.items():
            self.add_module(name, child)


@registry.register_model("wide-and-deep")
class WideAndDeep(nn.Module):
    """Children called features and classifier, and a forward that is more than the two."""

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.features = nn.Sequential(nn.Linear(shape[0], 5), nn.ReLU())
        self.classifier = nn.Linear(5, num_classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:

        return self.classifier(self.features(x) / 2)


@registry.register_model("with-head")
class WithHead(WideAndDeep):
    """Features whose classifier has another name."""

    def __init__(self, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__(shape, num_classes)
        self.head = self.classifier
        del self.classifier

    def forward(self, x: torch.Tensor) -> torch.Tensor:

        return self.head(self.features(x))


@pytest.mark.parametrize("model", ["wide-and-deep", "with-head"])
@pytest.mark.parametrize("local", [{}, {"precision": "bfloat16"}])
def test_a_whole_network_is_trained_by_its_own_forward(model: str, local: dict[str, Any]) -> None:
    made = tiny.fresh("fedavg", tiny.gaussian_clients()[:1], **tiny.full(model, **local))
    start, network = tiny.start(made), made.spec.build(model)
    made.step()
    ((x, y),) = tiny.as_tensors(tiny.gaussian_clients()[:1])
    x = x.to(start["features.0.weight"].dtype)

    def loss(w: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return nn.functional.cross_entropy(torch.func.functional_call(network, dict(w), (x,)), y)

    near = {"rtol": 0.02, "atol": 0.005} if local else {}
    tiny.close(dict(made.server.model), tiny.gradient_step(start, loss), **near)


def test_a_method_that_needs_the_split_refuses_another_forward() -> None:
    tiny.spec_of("moon", model={"name": "one-layer"})
    refused(tiny.spec_of, "moon", model="wide-and-deep")


@registry.register_model("remembers")
class Remembers(WideAndDeep):
    """Remembers its calls in training."""

    def __init__(self, shape: tuple[int, ...], num_classes: int, *, where: str) -> None:
        super().__init__(shape, num_classes)
        self.where, self.calls = where, 0
        self.register_buffer("seen", torch.zeros(()), persistent=where != "not saved")

    def forward(self, x: torch.Tensor) -> torch.Tensor:

        size = {"attribute": self.calls, "numpy": np.random.random()}.get(self.where, self.seen)
        if self.training:
            self.calls += 1
            self.shape = x.shape  # a memory without effect
            self.seen = self.seen + 1 if self.where == "new" else self.seen.add_(1)
        return super().forward(x) * (1 + size)


@pytest.mark.parametrize("where", ["attribute", "not saved", "new", "numpy", "buffer"])
def test_a_network_that_remembers_elsewhere_than_in_buffers_is_refused(where: str) -> None:
    model = {"name": "remembers", "where": where}
    if where != "buffer":
        refused(tiny.spec_of, "fedavg", model=model)
        return
    made = tiny.run("fedavg", model=model)
    assert made.server.model["seen"] == (3 * 12 + 3 * 9 + 4 * 15) / 36


def test_what_is_not_split_so_is_named() -> None:
    layer, other = nn.Linear(4, 4), nn.Linear(4, 4)
    whole = Users(features=layer, classifier=other)
    assert models.as_split(whole) is whole
    refused(models.as_split, Users(features=layer, head=other))
    refused(models.as_split, layer)
    refused(models.as_split, Users(features=layer, projector=nn.Linear(4, 4), classifier=other))
    refused(models.feature_dim, Users(features=layer, classifier=nn.Identity()))


@pytest.fixture
def resnet() -> nn.Module:
    return models.build("resnet8", (3, 8, 8), 10, {"width": 4}, seed=0)


def test_batch_norm_in_shortcuts_is_found_by_type(resnet: nn.Module) -> None:
    """Nine of them: stem, two in each of three blocks, one in each of two shortcuts."""
    names = [name for name, _ in models.batch_norm_modules(resnet)]
    assert len(names) == 9 and not any("bn" in name for name in names)
    shortcut, norms = "features.stage2.0.sum.shortcut", models.select(resnet, "batch_norm")
    assert f"{shortcut}.norm" in names and f"{shortcut}.norm.running_var" in norms
    assert f"{shortcut}.conv.weight" not in norms


def test_prefixes_end_at_the_dot_and_a_bare_norm_is_all_norm() -> None:
    bare = nn.BatchNorm1d(2, affine=False, track_running_stats=False)
    model = nn.ModuleDict({"norm": bare, "norm2": nn.Linear(1, 1), "bn2": nn.GroupNorm(1, 2)})
    assert models.select(model, "batch_norm") == frozenset()  # whatever the names say
    assert models.select(nn.BatchNorm2d(3), "not_batch_norm") == frozenset()
    assert len(models.select(nn.BatchNorm3d(3), "batch_norm")) == 5


def test_expressions(resnet: nn.Module) -> None:
    everything = frozenset(resnet.state_dict())
    norms, head = models.select(resnet, "batch_norm"), models.select(resnet, "classifier")
    buffers = everything - {name for name, _ in resnet.named_parameters()}
    assert head == {"classifier.weight", "classifier.bias"} and len(everything) == 9 * 5 + 9 + 2
    expected = {"all": everything, "none": frozenset[str](), "buffers": buffers}
    expected |= {"features-batch_norm": everything - norms - head}
    expected |= {"classifier+batch_norm": head | norms}
    expected |= {"all - classifier - batch_norm + classifier": everything - norms}
    expected |= {"not_batch_norm+buffers": models.select(resnet, "not_batch_norm") | buffers}
    assert {group: models.select(resnet, group) for group in expected} == expected


@cases("group", "none, classifier, features - batch_norm, all-features+buffers-classifier")
def test_others_is_the_complement(resnet: nn.Module, group: str) -> None:
    chosen, rest = models.select(resnet, group), models.select(resnet, complement(group))
    assert not chosen & rest and chosen | rest == frozenset(resnet.state_dict())


@pytest.mark.parametrize("group", ["feature", "all-batchnorm", "all-", ""])
def test_unknown_groups_are_refused(resnet: nn.Module, group: str) -> None:
    refused(models.select, resnet, group)


def test_a_model_without_split_is_refused_only_where_the_split_is_needed() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    assert [len(models.select(model, group)) for group in ("all", "batch_norm")] == [7, 5]
    for group in ("features", "all-classifier"):
        refused(models.select, model, group)


def test_taps_of_a_resnet_are_the_values_before_the_relu(resnet: nn.Module) -> None:
    taps = models.layer_taps(resnet)
    blocks = [f"features.stage{n}.0.sum" for n in (1, 2, 3)]
    assert [name for name, _ in taps] == ["features.stem.norm", *blocks]
    seen: list[torch.Tensor] = []
    taps[-1][1].register_forward_hook(lambda _module, _inputs, output: seen.append(output))
    hidden = resnet.get_submodule("features")(torch.rand(2, 3, 8, 8))
    assert seen[0].min() < 0
    torch.testing.assert_close(torch.relu(seen[0]).mean(dim=(2, 3)), hidden)


def test_a_user_models_taps() -> None:
    features = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 4))
    for given, taps in ((), ["features.0", "features.2"]), (["features.1"], ["features.1"]):
        model = models.SplitModel(features, nn.Linear(4, 2), given)
        assert [name for name, _ in models.layer_taps(model)] == taps
    refused(models.layer_taps, models.SplitModel(features, nn.Linear(4, 2), ["features.9"]))
    refused(models.layer_taps, models.build("linear", (4,), 2, {}, seed=0))


@cases("channels, groups", "[512, 32], [64, 32], [32, 16], [6, 1], [12, 2], [7, 1]")
def test_group_norm_keeps_two_channels_in_each_group(channels: int, groups: int) -> None:
    layer, flat = (models.norm_layer("group", channels, images=images) for images in (True, False))
    assert isinstance(layer, nn.GroupNorm) and layer.num_groups == groups
    assert isinstance(flat, nn.GroupNorm) and flat.num_groups == 1
    assert isinstance(models.norm_layer("batch", channels, images=False), nn.BatchNorm1d)


def test_it_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    drawn = torch.get_rng_state()
    assert list(dry_run("mine", model, (3,)).shape) == [1, 4]
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert torch.equal(torch.get_rng_state(), drawn)
    refused(dry_run, "mine", nn.Linear(3, 4), (5,))


DATA = federate(load_dataset("digits-sklearn", {"samples": 20}), "domains", {}, 0)
SIZE = int(np.prod(DATA.shape))


@pytest.mark.parametrize("outputs", [(9,), (10, 1)])
def test_a_logit_for_every_class(outputs: tuple[int, ...]) -> None:
    task = make_task("classification", DATA.classes)
    last = nn.Unflatten(1, outputs) if len(outputs) > 1 else nn.Identity()
    model = nn.Sequential(nn.Flatten(), nn.Linear(SIZE, outputs[0]), last)
    refused(task.check_network, "mine", model, DATA)
    task.check_network("mine", nn.Sequential(nn.Flatten(), nn.Linear(SIZE, 12)), DATA)


def test_outputs_of_several_tensors_need_predictions_of_their_own() -> None:
    class Parts(Task):
        def predictions(self, outputs: Any, targets: Any) -> dict[str, torch.Tensor]:
            return {"first": outputs[0]}

    model = nn.Sequential(nn.Flatten(), nn.GRU(SIZE, 10))
    Parts().check_network("mine", model, DATA)
    for task in (Task(), make_task("classification", DATA.classes), make_task("few-shot")):
        refused(task.check_network, "mine", model, DATA)


def test_episodes_need_flat_features() -> None:
    refused(make_task("few-shot").check_network, "mine", nn.Identity(), DATA)
