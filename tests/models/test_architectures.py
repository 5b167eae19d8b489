"""Parameter counts and layer shapes against the papers' definitions, worked out from the published tables."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torchvision.models import alexnet, densenet121, resnet18

from flray import registry
from flray.models import build, layer_taps

CIFAR, MNIST, LARGE = (3, 32, 32), (1, 28, 28), (3, 256, 256)


def on_meta(name: str, shape: tuple[int, ...], num_classes: int = 10, **options: Any) -> nn.Module:
    """The network without storage: shapes only, in no time."""
    with torch.device("meta"):
        model = registry.models.get(name)(shape, num_classes, **options)
    assert isinstance(model, nn.Module)
    return model


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def conv(inputs: int, outputs: int, kernel: int, bias: bool = False) -> int:
    return inputs * outputs * kernel * kernel + bias * outputs


def fc(*sizes: int) -> int:
    return sum((inputs + 1) * outputs for inputs, outputs in pairwise(sizes))


def conv5(*channels: int) -> int:
    """Return what convolutions of 5x5 with biases have, one behind the other."""
    return sum(conv(inputs, outputs, 5, True) for inputs, outputs in pairwise(channels))


def norm(*channels: int) -> int:
    return 2 * sum(channels)


def resnet(blocks: list[int], stem: int, classes: int = 10, width: int = 64) -> int:
    total, inputs = stem + norm(width), width
    for stage, number in enumerate(blocks):
        outputs = width * 2**stage
        for _ in range(number):
            total += conv(inputs, outputs, 3) + conv(outputs, outputs, 3) + norm(outputs, outputs)
            total += conv(inputs, outputs, 1) + norm(outputs) if inputs != outputs else 0
            inputs = outputs
    return total + fc(inputs, classes)


STEM = conv(3, 64, 3)


@pytest.mark.parametrize(
    ("name", "shape", "classes", "published", "derived"),
    [
        ("linear", MNIST, 10, 7_850, fc(784, 10)),
        # McMahan et al. 2017: "199,210 total parameters" and "1,663,370 total parameters"
        ("mlp", MNIST, 10, 199_210, fc(784, 200, 200, 10)),
        ("emnist-cnn", MNIST, 10, 1_663_370, conv5(1, 32, 64) + fc(3136, 512, 10)),
        ("lenet", CIFAR, 10, 62_006, conv5(3, 6, 16) + fc(400, 120, 84, 10)),
        ("cnn", CIFAR, 10, 121_182, conv5(3, 16, 32) + fc(800, 120, 84, 10)),
        ("cnn", CIFAR, 100, 128_832, conv5(3, 16, 32) + fc(800, 120, 84, 100)),
        ("simple-cnn", CIFAR, 10, 92_626, conv5(3, 6, 16) + fc(400, 120, 84, 84, 256, 10)),
        (
            "digit-cnn",
            (3, 28, 28),
            10,
            14_219_210,
            conv5(3, 64, 64, 128) + norm(64, 64, 128, 2048, 512) + fc(6272, 2048, 512, 10),
        ),
        (
            "alexnet",
            LARGE,
            10,
            57_063_498,
            conv(3, 64, 11, True)
            + conv5(64, 192)
            + sum(conv(i, o, 3, True) for i, o in pairwise((192, 384, 256, 256)))
            + norm(64, 192, 384, 256, 256, 4096, 4096)
            + fc(9216, 4096, 4096, 10),
        ),
        ("resnet8", CIFAR, 10, 1_227_594, resnet([1, 1, 1], STEM)),
        ("resnet10", CIFAR, 10, 4_903_242, resnet([1, 1, 1, 1], STEM)),
        ("resnet12", CIFAR, 10, 4_977_226, resnet([2, 1, 1, 1], STEM)),
        ("resnet18", CIFAR, 10, 11_173_962, resnet([2, 2, 2, 2], STEM)),
        ("resnet34", CIFAR, 10, 21_282_122, resnet([3, 4, 6, 3], STEM)),
        ("resnet18-imagenet", LARGE, 1000, 11_689_512, resnet([2, 2, 2, 2], conv(3, 64, 7), 1000)),
    ],
)
def test_parameter_count(
    name: str, shape: tuple[int, ...], classes: int, published: int, derived: int
) -> None:
    assert derived == published == count(on_meta(name, shape, classes))


def test_unet_has_the_parameters_of_its_levels() -> None:
    sizes = [32, 64, 128, 256, 512]
    levels = [conv(i, o, 3) + conv(o, o, 3) + norm(o, o) for i, o in pairwise([3, *sizes])]
    back = [
        conv(2 * o, o, 2, True) + conv(2 * o, o, 3) + conv(o, o, 3) + norm(o, o) for o in sizes[:-1]
    ]
    total = sum(levels) + sum(back)
    assert total + conv(32, 1, 1, True) == 7_763_041  # the widely used form with one structure
    assert count(on_meta("unet", (3, 256, 256), 2)) == total + conv(32, 2, 1, True) == 7_763_074
    # group norm scales and shifts each channel as batch norm does; without, there is one bias
    assert count(on_meta("unet", (3, 64, 64), 2, norm="group")) == 7_763_074
    biases = 2 * sum([*sizes, *sizes[:-1]])
    assert count(on_meta("unet", (3, 64, 64), 2, norm="none")) == 7_763_074 - biases


def test_protonet_has_the_parameters_of_four_blocks() -> None:
    encoder = conv(3, 64, 3, True) + 3 * conv(64, 64, 3, True) + norm(64, 64, 64, 64)
    assert encoder == 113_088  # Snell et al. 2017, with three channels
    assert count(on_meta("protonet", CIFAR, 5)) == encoder + fc(256, 5)
    assert count(on_meta("protonet", (3, 84, 84), 5)) == encoder + fc(1600, 5)


def test_mobilenet_has_the_parameters_of_its_table() -> None:
    table = [(1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1)]
    total, inputs = conv(3, 32, 3) + norm(32), 32
    for expansion, outputs, blocks, first in [*table, (6, 160, 3, 2), (6, 320, 1, 1)]:
        for block in range(blocks):
            hidden = expansion * inputs
            total += conv(inputs, hidden, 1) + 9 * hidden + conv(hidden, outputs, 1)
            total += norm(hidden, hidden, outputs)
            if inputs != outputs and (first == 1 or block > 0):
                total += conv(inputs, outputs, 1) + norm(outputs)
            inputs = outputs
    total += conv(320, 1280, 1) + norm(1280) + fc(1280, 10)
    assert total == 2_296_922
    assert count(on_meta("mobilenetv2", CIFAR)) == total


def test_efficientnet_has_the_parameters_of_its_table() -> None:
    table = [(1, 16, 1, 3), (6, 24, 2, 3), (6, 40, 2, 5), (6, 80, 3, 3), (6, 112, 3, 5)]
    total, inputs = conv(3, 32, 3) + norm(32), 32
    for expansion, outputs, blocks, kernel in [*table, (6, 192, 4, 5), (6, 320, 1, 3)]:
        for _ in range(blocks):
            hidden = expansion * inputs
            total += conv(inputs, hidden, 1) + norm(hidden) if expansion > 1 else 0
            total += kernel * kernel * hidden + conv(hidden, outputs, 1) + norm(hidden, outputs)
            total += fc(hidden, inputs // 4, hidden)
            inputs = outputs
    total += fc(320, 10)
    # the CIFAR form's first block holds an expansion that it never applies
    unused = conv(32, 32, 1) + norm(32)
    assert total == 3_599_686 - unused
    assert count(on_meta("efficientnet-b0", CIFAR)) == total


def test_googlenet_has_the_parameters_of_its_table() -> None:
    rows = [
        (64, 96, 128, 16, 32, 32),
        (128, 128, 192, 32, 96, 64),
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
        (256, 160, 320, 32, 128, 128),
        (384, 192, 384, 48, 128, 128),
    ]
    total, inputs = conv(3, 192, 3, True) + norm(192), 192
    for one, r3, three, r5, five, pool in rows:
        pointwise = [(inputs, one, 1), (inputs, r3, 1), (inputs, r5, 1), (inputs, pool, 1)]
        larger = [(r3, three, 3), (r5, five, 3), (five, five, 3)]
        total += sum(conv(i, o, k, True) + norm(o) for i, o, k in [*pointwise, *larger])
        inputs = one + three + five + pool
    total += fc(1024, 10)
    assert (inputs, total) == (1024, 6_166_250)
    model = on_meta("googlenet", CIFAR)
    assert count(model) == total
    for name in ("features.pool4", "features.pool5"):
        pool = model.get_submodule(name)
        assert (pool.kernel_size, pool.stride, pool.padding) == (3, 2, 1)


def test_densenet_has_the_parameters_of_torchvisions() -> None:
    with torch.device("meta"):
        theirs = count(densenet121(weights=None))
    assert theirs == 7_978_856  # Huang et al. 2017
    found = count(on_meta("densenet121", (3, 96, 96), 2))
    assert found == theirs - fc(1024, 1000) + fc(1024, 2) == 6_955_906
    assert on_meta("densenet121", (1, 96, 96), 2).features.dense.conv0.weight.shape == (64, 1, 7, 7)


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


def test_alexnet_classifier_is_about_55_of_57_million() -> None:
    model = on_meta("alexnet", LARGE)
    published = fc(9216, 4096, 4096, 10) + norm(4096, 4096)
    assert count(model.get_submodule("classifier")) == published == 54_591_498
    head = on_meta("alexnet", LARGE, split="head").get_submodule("classifier")
    assert count(head) == fc(4096, 10)
    plain = on_meta("alexnet", LARGE, classifier_norm=False)
    assert count(model) - count(plain) == norm(4096, 4096)


def test_digit_cnn_options() -> None:
    def made(side: int = 28, **options: Any) -> Any:
        return on_meta("digit-cnn", (3, side, side), **options)

    full = made()
    shapes = [tuple(getattr(full.classifier, f"fc{i}").weight.shape) for i in (1, 2, 3)]
    assert shapes == [(2048, 6272), (512, 2048), (10, 512)]
    assert made(32).classifier.fc1.in_features == 128 * 8 * 8
    assert count(made(layers=4)) - count(full) == conv5(128, 128) + norm(128)
    assert count(full) - count(made(classifier_norm=False)) == norm(2048, 512)
    head = made(split="head")
    assert count(head) == count(full) and head.classifier.weight.shape == (10, 512)
    narrow = made(width=0.25)
    widths = [narrow.get_submodule(f"features.conv{i}").out_channels for i in (1, 2, 3)]
    assert widths == [16, 16, 32]
    assert narrow.classifier.fc1.weight.shape == (512, 32 * 49)


def test_norm_options_add_the_parameters_of_the_norms_and_nothing_else() -> None:
    plain = count(on_meta("lenet", CIFAR))
    for kind in ("batch", "group"):
        assert count(on_meta("lenet", CIFAR, norm=kind)) - plain == norm(6, 16, 120, 84)
        assert count(on_meta("cnn", CIFAR, norm=kind)) - 121_182 == norm(16, 32, 120, 84)
    assert count(on_meta("resnet18", CIFAR, norm="group")) == 11_173_962


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
