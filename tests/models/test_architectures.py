"""Networks by name: parameter counts and shapes of the papers' definitions, torchvision's to the bit."""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import pytest
import safetensors.torch
import torch
import yaml
from pydantic import Field
from torch import nn
from torchvision import models as zoo

import flray
from flray import registry
from flray.algorithms.fedrcl import collect_taps
from flray.config.loader import load
from flray.models import build, feature_dim, layer_taps
from flray.runs import runner
from flray.runs.identity import run_identity
from tests.helpers import cases, small
from tests.messages import refused

CIFAR, MNIST, LARGE, DIGITS = (3, 32, 32), (1, 28, 28), (3, 256, 256), (3, 28, 28)
RESNETS = {8: 1_227_594, 10: 4_903_242, 12: 4_977_226, 18: 11_173_962, 34: 21_282_122}


def on_meta(name: str, shape: tuple[int, ...], num_classes: int = 10, **options: Any) -> nn.Module:
    """Return a network without storage: shapes only, in no time."""
    with torch.device("meta"):
        model = registry.models.get(name)(shape, num_classes, **options)
    assert isinstance(model, nn.Module)
    return model


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "classes", "options", "wanted"),
    [
        # McMahan et al. 2017: "199,210 total parameters" and "1,663,370 total parameters"
        *(("mlp", MNIST, 10, {}, 199_210), ("emnist-cnn", MNIST, 10, {}, 1_663_370)),
        *(("linear", MNIST, 10, {}, 7_850), ("simple-cnn", CIFAR, 10, {}, 92_626)),
        *(("lenet", CIFAR, 10, {}, 62_006), ("cnn", CIFAR, 10, {}, 121_182)),
        *(("lenet", CIFAR, 10, {"norm": norm}, 62_006 + 452) for norm in ("batch", "group")),
        ("cnn", CIFAR, 100, {}, 128_832),
        ("cnn", CIFAR, 10, {"norm": "batch"}, 121_182 + 2 * (16 + 32 + 120 + 84)),
        # FedBN's network for digits
        *(("digit-cnn", DIGITS, 10, options, 14_219_210) for options in ({}, {"split": "head"})),
        ("digit-cnn", DIGITS, 10, {"classifier_norm": False}, 14_219_210 - 2 * (2048 + 512)),
        ("digit-cnn", DIGITS, 10, {"layers": 4}, 14_219_210 + 128 * (25 * 128 + 1 + 2)),
        # Krizhevsky 2014, with a norm behind every layer; 54.6 of its 57 million are the classifier's
        ("alexnet", LARGE, 10, {}, 57_063_498),
        ("alexnet", LARGE, 10, {"classifier_norm": False}, 57_063_498 - 2 * (4096 + 4096)),
        # He et al. 2016, with a stem for small images
        *((f"resnet{n}", CIFAR, 10, {}, wanted) for n, wanted in RESNETS.items()),
        ("resnet18-imagenet", LARGE, 1000, {}, 11_689_512),
        # the widely used form has 7,763,041 with one structure; without norms, one bias instead of scale and shift
        ("unet", LARGE, 2, {}, 7_763_041 + 33),
        ("unet", LARGE, 2, {"norm": "none"}, 7_763_041 + 33 - 2 * (2 * 480 + 512)),
        # Snell et al. 2017, with three channels: 113,088 and the last layer
        ("protonet", CIFAR, 5, {}, 113_088 + 257 * 5),
        ("protonet", (3, 84, 84), 5, {}, 113_088 + 1601 * 5),
        # Sandler et al. 2018, table 2, with strides for small images
        ("mobilenetv2", CIFAR, 10, {}, 2_296_922),
        # Tan and Le 2019, table 1; the CIFAR form has an expansion of 1,088 that it never applies
        ("efficientnet-b0", CIFAR, 10, {}, 3_599_686 - 1_088),
        # Szegedy et al. 2015, table 1, with norms and for small images
        ("googlenet", CIFAR, 10, {}, 6_166_250),
        # Huang et al. 2017: 7,978,856 with 1,000 classes
        ("densenet121", (3, 96, 96), 2, {}, 7_978_856 - 1025 * 998),
    ],
)
def test_parameter_count(name: str, shape: Any, classes: int, options: Any, wanted: int) -> None:
    assert count(on_meta(name, shape, classes, **options)) == wanted


def test_pooling_and_grey_images_change_no_count() -> None:
    for name in ("features.pool4", "features.pool5"):
        pool = on_meta("googlenet", CIFAR).get_submodule(name)
        assert (pool.kernel_size, pool.stride, pool.padding) == (3, 2, 1)
    grey = on_meta("densenet121", (1, 96, 96), 2)
    assert grey.features.dense.conv0.weight.shape == (64, 1, 7, 7)


def test_resnet18_imagenet_computes_what_torchvisions_does() -> None:
    theirs = zoo.resnet18(weights=None, num_classes=4).eval()
    ours = build("resnet18-imagenet", (3, 64, 64), 4, {}, seed=0).eval()
    # Both list a block's branch before its shortcut, so the entries correspond in order.
    entries = zip(ours.state_dict().values(), theirs.state_dict().values(), strict=True)
    with torch.no_grad():
        for mine, other in entries:
            mine.copy_(other)
        x = torch.rand(1, 3, 64, 64)
        torch.testing.assert_close(ours(x), theirs(x))


def test_alexnet_without_norms_has_torchvisions_convolutions() -> None:
    with torch.device("meta"):
        theirs = zoo.alexnet(weights=None).features.to_empty(device="cpu")
    ours = on_meta("alexnet", (3, 70, 70), norm="none").features.to_empty(device="cpu")
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for mine, other in zip(ours.parameters(), theirs.parameters(), strict=True):
            other.copy_(mine.normal_(0, mine[0].numel() ** -0.5, generator=generator))
        x = torch.rand(1, 3, 70, 70, generator=generator)
        expected = torch.nn.functional.adaptive_avg_pool2d(theirs(x), 6).flatten(1)
        assert expected.count_nonzero() > 100
        torch.testing.assert_close(ours(x), expected)


def test_lenet_with_norms_computes_its_definition() -> None:
    model = build("lenet", CIFAR, 10, {"norm": "batch"}, seed=0).double().train()
    entries = dict(model.named_parameters())

    def normed(x: torch.Tensor) -> torch.Tensor:
        """Batch norm at its initial scale 1 and shift 0, then ReLU."""
        axes = [0, 2, 3] if x.ndim == 4 else [0]
        centred = x - x.mean(axes, keepdim=True)
        return (centred / (centred.pow(2).mean(axes, keepdim=True) + 1e-5).sqrt()).clamp(min=0)

    def of(layer: str) -> tuple[torch.Tensor, torch.Tensor]:
        return entries[f"{layer}.weight"], entries[f"{layer}.bias"]

    x = torch.rand(4, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = x
    for layer in ("features.conv1", "features.conv2"):
        expected = normed(nn.functional.conv2d(expected, *of(layer)))
        expected = expected.unfold(2, 2, 2).unfold(3, 2, 2).amax(dim=(4, 5))
    expected = expected.flatten(1)
    for layer in ("features.fc1", "features.fc2"):
        expected = normed(nn.functional.linear(expected, *of(layer)))
    torch.testing.assert_close(model(x), nn.functional.linear(expected, *of("classifier")))


def test_classifiers_are_split_off_where_asked() -> None:
    def classifier(name: str, shape: tuple[int, ...], **options: Any) -> Any:
        return on_meta(name, shape, **options).get_submodule("classifier")

    assert count(classifier("alexnet", LARGE)) == 54_591_498
    assert count(classifier("alexnet", LARGE, split="head")) == 4097 * 10
    assert classifier("digit-cnn", DIGITS, split="head").weight.shape == (10, 512)
    full = classifier("digit-cnn", DIGITS)
    shapes = [tuple(getattr(full, f"fc{i}").weight.shape) for i in (1, 2, 3)]
    assert shapes == [(2048, 6272), (512, 2048), (10, 512)]
    assert classifier("digit-cnn", CIFAR).fc1.in_features == 128 * 8 * 8
    narrow = on_meta("digit-cnn", DIGITS, width=0.25)
    widths = [narrow.get_submodule(f"features.conv{i}").out_channels for i in (1, 2, 3)]
    assert widths == [16, 16, 32] and narrow.classifier.fc1.weight.shape == (512, 32 * 49)


@cases(
    "name, sizes",
    """[resnet8, [[64, 32], [64, 32], [128, 16], [256, 8]]],
    [resnet10, [[64, 32], [64, 32], [128, 16], [256, 8], [512, 4]]],
    [resnet34, [[64, 32], [64, 32], [128, 16], [256, 8], [512, 4]]],
    [resnet18-imagenet, [[64, 16], [64, 8], [128, 4], [256, 2], [512, 1]]],
    [mobilenetv2, [[32, 32], [24, 32], [32, 16], [96, 8], [1280, 4]]],
    [efficientnet-b0, [[32, 32], [24, 16], [40, 8], [112, 4], [320, 2]]],
    [googlenet, [[192, 32], [480, 32], [832, 16], [1024, 8]]],
    [densenet121, [[64, 16], [256, 8], [512, 4], [1024, 2], [1024, 1]]]""",
)
def test_channels_and_pixels_at_the_taps(name: str, sizes: list[list[int]]) -> None:
    model, seen = on_meta(name, CIFAR), []
    for _, module in layer_taps(model):
        module.register_forward_hook(lambda _m, _i, out: seen.append([out.shape[1], out.shape[3]]))
    model(torch.zeros(2, 3, 32, 32, device="meta"))
    assert seen == sizes


def test_he_initialisation_has_variance_two_over_fan_out() -> None:
    name = "features.stage3.0.sum.branch.conv2.weight"
    for options, variance in (({"init": "he"}, 2 / (256 * 9)), ({}, 1 / (3 * 256 * 9))):
        weight = build("resnet8", CIFAR, 10, options, seed=0).state_dict()[name]
        assert weight.std().item() == pytest.approx(variance**0.5, rel=0.01)


@pytest.fixture
def users_model() -> Iterator[str]:
    name = "users-own-model"

    @registry.register_model(name)
    def own(
        shape: tuple[int, ...], num_classes: int, *, hidden: Annotated[int, Field(ge=2)] = 3
    ) -> nn.Module:
        layers = nn.Linear(shape[0], hidden), nn.Linear(hidden, num_classes)
        return nn.Sequential(nn.Flatten(), *layers)

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


@cases(
    "name, options",
    """[users-own-model, {hidden: 1}], [users-own-model, {hiden: 5}], [linear, {norm: batch}],
    [lenet, {norm: layer}], [mlp, {hidden: []}], [mlp, {hidden: [4, 0]}],
    [digit-cnn, {layers: 5}], [digit-cnn, {width: 0.0}], [resnet18, {norm: none}],
    [efficientnet-b0, {dropout: 1.0}], [resnett34, {}]""",
)
def test_what_cannot_be_built_is_told(users_model: str, name: str, options: dict[str, Any]) -> None:
    refused(build, name, (3, 32, 32), 4, options, seed=0)


def test_another_dtype_starts_at_the_same_point_and_another_name_at_another() -> None:
    given = "lenet", (3, 16, 16), 4, {"norm": "batch"}, 3
    single, double = (build(*given, t).state_dict() for t in (torch.float32, torch.float64))
    for name, value in double.items():
        whole = name.endswith("num_batches_tracked")
        assert value.dtype == (torch.int64 if whole else torch.float64)
        assert torch.equal(value, single[name].to(value.dtype))
    names = ("lenet", "simple-cnn")
    states = [build(name, CIFAR, 10, {}, seed=0).state_dict() for name in names]
    assert not torch.equal(*(state["features.conv1.weight"] for state in states))


NETWORK = "shufflenet_v2_x0_5"
X = torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    """A network with weights of its own, and their file."""
    network = zoo.get_model(NETWORK).eval()
    file = tmp_path_factory.mktemp("weights") / "shuffle.pth"
    torch.save(network.state_dict(), file)
    return network, file


def made(shape: tuple[int, ...] = (3, 64, 64), seed: int = 0, **options: Any) -> nn.Module:
    content = small(model={"name": "torchvision", **options})
    choice = load({"experiment": content}).experiment.model
    return build(choice.name, shape, 5, choice.options, seed).eval()


@pytest.mark.parametrize("network", [NETWORK, "mobilenet_v3_small"])
def test_features_are_what_the_last_layer_of_torchvisions_is_given(network: str) -> None:
    own = made(network=network)
    theirs = zoo.get_model(network).eval()
    prefix = "features.network."
    entries = {n.removeprefix(prefix): v for n, v in own.state_dict().items() if prefix in n}
    (last,) = [n for n, m in theirs.named_modules() if isinstance(m, nn.Linear)][-1:]
    missing, unexpected = theirs.load_state_dict(entries, strict=False)
    assert not unexpected and {n.rpartition(".")[0] for n in missing} == {last}
    given: list[torch.Tensor] = []
    theirs.get_submodule(last).register_forward_hook(lambda m, x, y: given.append(x[0]))
    with torch.no_grad():
        theirs(X)
        assert torch.equal(own.get_submodule("features")(X), given[0])
    assert feature_dim(own) == given[0].shape[1] and 2 <= len(layer_taps(own)) <= 5


def test_a_transformer_whose_channels_come_last_is_tapped_at_its_features() -> None:
    own = made(network="swin_t")
    with torch.no_grad(), collect_taps(own) as layers:
        own(X)
    assert [layer.shape[1:] for layer in layers] == [(768,)]


@pytest.mark.parametrize("form", ["pth", "safetensors", "name"])
def test_weights_are_those_of_the_file_but_for_the_last_layer(
    form: str, trained: tuple[Any, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    network, file = trained
    weights = str(file)
    if form == "safetensors":
        weights = str(tmp_path / "w.safetensors")
        safetensors.torch.save_file(network.state_dict(), weights)
    elif form == "name":
        weights, place = "IMAGENET1K_V1", tmp_path / "hub" / "checkpoints"
        monkeypatch.setenv("TORCH_HOME", str(tmp_path))
        refused(made, network=NETWORK, weights=weights)
        place.mkdir(parents=True)
        url = zoo.get_model_weights(NETWORK)[weights].url
        torch.save(network.state_dict(), place / url.rpartition("/")[2])
    own, other = (made(network=NETWORK, weights=weights, seed=seed) for seed in (0, 1))
    for name, value in network.state_dict().items():
        if not name.startswith("fc."):
            assert torch.equal(own.state_dict()[f"features.network.{name}"], value)
    last = (model.state_dict()["classifier.weight"] for model in (own, other))
    assert not torch.equal(*last)


def test_grey_images_are_repeated() -> None:
    colour, grey = made(network=NETWORK), made((1, 64, 64), network=NETWORK)
    with torch.no_grad():
        assert torch.equal(grey(X[:, :1]), colour(X[:, :1].repeat(1, 3, 1, 1)))
    refused(made, (4, 64, 64), network=NETWORK)


def test_a_run_with_them_is_resumed_and_known_by_the_file(tmp_cwd: Path, trained: Any) -> None:
    file = Path("w.pth")
    file.write_bytes(trained[1].read_bytes())
    data = {"name": "digits-sklearn", "samples": 16, "domains": ["plain"]}
    model = {"name": "torchvision", "network": NETWORK, "weights": "w.pth"}
    content = {"experiment": small(data=data, model=model)}
    result = flray.run(content)
    saved = yaml.safe_load((result.folder / "config.yaml").read_text())["experiment"]["model"]
    assert saved["weights"]["weights"] == str(file.resolve())
    assert len(runner.resume(result.folder, rounds=2).history) == 2
    first = run_identity(load(content).experiment, "auto", "data")
    state = trained[0].state_dict()
    torch.save({**state, "conv1.0.weight": state["conv1.0.weight"] + 1}, file)
    assert run_identity(load(content).experiment, "auto", "data") != first
    refused(runner.resume, result.folder, rounds=3)


@cases(
    "options",
    """{network: resnet19}, {network: squeezenet1_0}, {network: vit_b_16}, {weights: nowhere.pth},
    {weights: IMAGENET9}, {weights: FILE, norm: group}, {weights: FILE}, {weights: OTHER}""",
)
def test_what_is_wrong_is_one_line(options: dict[str, Any], trained: tuple[Any, Path]) -> None:
    paths = {"FILE": str(trained[1]), "OTHER": __file__}
    refused(made, (3, 50, 50), **{n: paths.get(v, v) for n, v in options.items()})
