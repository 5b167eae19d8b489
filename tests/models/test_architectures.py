"""Parameter counts and layer shapes against the papers' definitions and the published tables."""

from typing import Any

import pytest
import torch
from torch import nn
from torchvision.models import alexnet, resnet18

from flray import registry
from flray.models import build, layer_taps

CIFAR, MNIST, LARGE, DIGITS = (3, 32, 32), (1, 28, 28), (3, 256, 256), (3, 28, 28)


def on_meta(name: str, shape: tuple[int, ...], num_classes: int = 10, **options: Any) -> nn.Module:
    """The network without storage: shapes only, in no time."""
    with torch.device("meta"):
        model = registry.models.get(name)(shape, num_classes, **options)
    assert isinstance(model, nn.Module)
    return model


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("name", "shape", "classes", "options", "parameters"),
    [
        ("linear", MNIST, 10, {}, 7_850),
        # McMahan et al. 2017: "199,210 total parameters" and "1,663,370 total parameters"
        ("mlp", MNIST, 10, {}, 199_210),
        ("emnist-cnn", MNIST, 10, {}, 1_663_370),
        ("lenet", CIFAR, 10, {}, 62_006),
        ("lenet", CIFAR, 10, {"norm": "batch"}, 62_006 + 2 * (6 + 16 + 120 + 84)),
        ("lenet", CIFAR, 10, {"norm": "group"}, 62_006 + 2 * (6 + 16 + 120 + 84)),
        ("cnn", CIFAR, 10, {}, 121_182),
        ("cnn", CIFAR, 100, {}, 128_832),
        ("cnn", CIFAR, 10, {"norm": "batch"}, 121_182 + 2 * (16 + 32 + 120 + 84)),
        ("cnn", CIFAR, 10, {"norm": "group"}, 121_182 + 2 * (16 + 32 + 120 + 84)),
        ("simple-cnn", CIFAR, 10, {}, 92_626),
        # FedBN's network for digits
        ("digit-cnn", DIGITS, 10, {}, 14_219_210),
        ("digit-cnn", DIGITS, 10, {"split": "head"}, 14_219_210),
        ("digit-cnn", DIGITS, 10, {"classifier_norm": False}, 14_219_210 - 2 * (2048 + 512)),
        ("digit-cnn", DIGITS, 10, {"layers": 4}, 14_219_210 + 128 * (25 * 128 + 1 + 2)),
        # Krizhevsky 2014, with a norm behind every layer; 54.6 of its 57 million are the classifier's
        ("alexnet", LARGE, 10, {}, 57_063_498),
        ("alexnet", LARGE, 10, {"classifier_norm": False}, 57_063_498 - 2 * (4096 + 4096)),
        # He et al. 2016, with a stem for small images
        ("resnet8", CIFAR, 10, {}, 1_227_594),
        ("resnet10", CIFAR, 10, {}, 4_903_242),
        ("resnet12", CIFAR, 10, {}, 4_977_226),
        ("resnet18", CIFAR, 10, {}, 11_173_962),
        ("resnet18", CIFAR, 10, {"norm": "group"}, 11_173_962),
        ("resnet34", CIFAR, 10, {}, 21_282_122),
        ("resnet18-imagenet", LARGE, 1000, {}, 11_689_512),
        # the widely used form has 7,763,041 with one structure
        ("unet", LARGE, 2, {}, 7_763_041 + 33),
        ("unet", LARGE, 2, {"norm": "group"}, 7_763_041 + 33),
        # one bias instead of scale and shift
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
def test_parameter_count(
    name: str, shape: tuple[int, ...], classes: int, options: dict[str, Any], parameters: int
) -> None:
    assert count(on_meta(name, shape, classes, **options)) == parameters


def test_pooling_and_grey_images_change_no_count() -> None:
    for name in ("features.pool4", "features.pool5"):
        pool = on_meta("googlenet", CIFAR).get_submodule(name)
        assert (pool.kernel_size, pool.stride, pool.padding) == (3, 2, 1)
    grey = on_meta("densenet121", (1, 96, 96), 2)
    assert grey.features.dense.conv0.weight.shape == (64, 1, 7, 7)


def test_resnet18_imagenet_computes_what_torchvisions_does() -> None:
    theirs = resnet18(weights=None, num_classes=4).eval()
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
        theirs = alexnet(weights=None).features.to_empty(device="cpu")
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

    x = torch.rand(4, 3, 32, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    expected = x
    for i in (1, 2):
        weight, bias = entries[f"features.conv{i}.weight"], entries[f"features.conv{i}.bias"]
        expected = normed(torch.nn.functional.conv2d(expected, weight, bias))
        expected = expected.unfold(2, 2, 2).unfold(3, 2, 2).amax(dim=(4, 5))
    expected = expected.flatten(1)
    for i in (1, 2):
        weight, bias = entries[f"features.fc{i}.weight"], entries[f"features.fc{i}.bias"]
        expected = normed(expected @ weight.T + bias)
    expected = expected @ entries["classifier.weight"].T + entries["classifier.bias"]
    torch.testing.assert_close(model(x), expected)


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
    assert widths == [16, 16, 32]
    assert narrow.classifier.fc1.weight.shape == (512, 32 * 49)


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("resnet8", [(64, 32), (64, 32), (128, 16), (256, 8)]),
        ("resnet10", [(64, 32), (64, 32), (128, 16), (256, 8), (512, 4)]),
        ("resnet34", [(64, 32), (64, 32), (128, 16), (256, 8), (512, 4)]),
        ("resnet18-imagenet", [(64, 16), (64, 8), (128, 4), (256, 2), (512, 1)]),
        ("mobilenetv2", [(32, 32), (24, 32), (32, 16), (96, 8), (1280, 4)]),
        ("efficientnet-b0", [(32, 32), (24, 16), (40, 8), (112, 4), (320, 2)]),
        ("googlenet", [(192, 32), (480, 32), (832, 16), (1024, 8)]),
        ("densenet121", [(64, 16), (256, 8), (512, 4), (1024, 2), (1024, 1)]),
    ],
)
def test_channels_and_pixels_at_the_taps(name: str, sizes: list[tuple[int, int]]) -> None:
    model, seen = on_meta(name, CIFAR), []
    for _, module in layer_taps(model):
        module.register_forward_hook(
            lambda _module, _inputs, output: seen.append((output.shape[1], output.shape[3]))
        )
    model(torch.zeros(2, 3, 32, 32, device="meta"))
    assert seen == sizes


def test_he_initialisation_has_variance_two_over_fan_out() -> None:
    name = "features.stage3.0.sum.branch.conv2.weight"
    weight = build("resnet8", CIFAR, 10, {"init": "he"}, seed=0).state_dict()[name]
    assert weight.std().item() == pytest.approx((2 / (256 * 9)) ** 0.5, rel=0.01)
    default = build("resnet8", CIFAR, 10, {}, seed=0).state_dict()[name]
    assert default.std().item() == pytest.approx((1 / (3 * 256 * 9)) ** 0.5, rel=0.01)
