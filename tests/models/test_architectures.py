"""Parameter counts and layer shapes against the papers' definitions, worked out from the published tables."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn

from flray import registry


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
        ("linear", (1, 28, 28), 10, 7_850, fc(784, 10)),
        (
            "mlp",
            (1, 28, 28),
            10,
            199_210,
            fc(784, 200, 200, 10),
        ),  # McMahan et al. 2017: "199,210 total parameters"
        (
            "lenet",
            (3, 32, 32),
            10,
            62_006,
            conv(3, 6, 5, True) + conv(6, 16, 5, True) + fc(400, 120, 84, 10),
        ),
        (
            "cnn",
            (3, 32, 32),
            10,
            121_182,
            conv(3, 16, 5, True) + conv(16, 32, 5, True) + fc(800, 120, 84, 10),
        ),
        (
            "cnn",
            (3, 32, 32),
            100,
            128_832,
            conv(3, 16, 5, True) + conv(16, 32, 5, True) + fc(800, 120, 84, 100),
        ),
        (
            "simple-cnn",
            (3, 32, 32),
            10,
            92_626,
            conv(3, 6, 5, True) + conv(6, 16, 5, True) + fc(400, 120, 84, 84, 256, 10),
        ),
        # McMahan et al. 2017: "1,663,370 total parameters"
        (
            "emnist-cnn",
            (1, 28, 28),
            10,
            1_663_370,
            conv(1, 32, 5, True) + conv(32, 64, 5, True) + fc(3136, 512, 10),
        ),
        (
            "digit-cnn",
            (3, 28, 28),
            10,
            14_219_210,
            conv(3, 64, 5, True)
            + conv(64, 64, 5, True)
            + conv(64, 128, 5, True)
            + norm(64, 64, 128, 2048, 512)
            + fc(6272, 2048, 512, 10),
        ),
        (
            "alexnet",
            (3, 256, 256),
            10,
            57_063_498,
            conv(3, 64, 11, True)
            + conv(64, 192, 5, True)
            + conv(192, 384, 3, True)
            + conv(384, 256, 3, True)
            + conv(256, 256, 3, True)
            + norm(64, 192, 384, 256, 256, 4096, 4096)
            + fc(9216, 4096, 4096, 10),
        ),
        ("resnet8", (3, 32, 32), 10, 1_227_594, resnet([1, 1, 1], STEM)),
        ("resnet10", (3, 32, 32), 10, 4_903_242, resnet([1, 1, 1, 1], STEM)),
        ("resnet12", (3, 32, 32), 10, 4_977_226, resnet([2, 1, 1, 1], STEM)),
        ("resnet18", (3, 32, 32), 10, 11_173_962, resnet([2, 2, 2, 2], STEM)),
        ("resnet34", (3, 32, 32), 10, 21_282_122, resnet([3, 4, 6, 3], STEM)),
        (
            "resnet18-imagenet",
            (3, 256, 256),
            1000,
            11_689_512,
            resnet([2, 2, 2, 2], conv(3, 64, 7), 1000),
        ),
    ],
)
def test_parameter_count(
    name: str, shape: tuple[int, ...], classes: int, published: int, derived: int
) -> None:
    assert derived == published
    assert count(on_meta(name, shape, classes)) == published


def test_unet_has_the_parameters_of_its_levels() -> None:
    sizes = [32, 64, 128, 256, 512]
    levels = [conv(i, o, 3) + conv(o, o, 3) + norm(o, o) for i, o in pairwise([3, *sizes])]
    back = [
        conv(2 * o, o, 2, True) + conv(2 * o, o, 3) + conv(o, o, 3) + norm(o, o) for o in sizes[:-1]
    ]
    total = sum(levels) + sum(back)
    assert total + conv(32, 1, 1, True) == 7_763_041  # the widely used form with one structure
    assert count(on_meta("unet", (3, 256, 256), 2)) == total + conv(32, 2, 1, True) == 7_763_074
    same = count(on_meta("unet", (3, 64, 64), 2, norm="group"))
    assert same == 7_763_074  # group norm scales and shifts each channel, as batch norm does
    biases = 2 * sum([*sizes, *sizes[:-1]])
    assert (
        count(on_meta("unet", (3, 64, 64), 2, norm="none")) == 7_763_074 - biases
    )  # a bias instead of two


def test_protonet_has_the_parameters_of_four_blocks() -> None:
    encoder = conv(3, 64, 3, True) + 3 * conv(64, 64, 3, True) + norm(64, 64, 64, 64)
    assert encoder == 113_088  # Snell et al. 2017, with three channels
    assert count(on_meta("protonet", (3, 32, 32), 5)) == encoder + fc(256, 5)
    assert count(on_meta("protonet", (3, 84, 84), 5)) == encoder + fc(1600, 5)


def test_a_norm_adds_its_own_parameters_to_the_mlp() -> None:
    plain = count(on_meta("mlp", (120,), 2, hidden=(64, 32)))
    assert plain == fc(120, 64, 32, 2)
    assert count(on_meta("mlp", (120,), 2, hidden=(64, 32), norm="batch")) == plain + norm(64, 32)


def test_mobilenet_has_the_parameters_of_its_table() -> None:
    table = [
        (1, 16, 1, 1),
        (6, 24, 2, 1),
        (6, 32, 3, 2),
        (6, 64, 4, 2),
        (6, 96, 3, 1),
        (6, 160, 3, 2),
        (6, 320, 1, 1),
    ]
    total, inputs = conv(3, 32, 3) + norm(32), 32
    for expansion, outputs, blocks, first in table:
        for block in range(blocks):
            hidden = expansion * inputs
            total += (
                conv(inputs, hidden, 1)
                + 9 * hidden
                + conv(hidden, outputs, 1)
                + norm(hidden, hidden, outputs)
            )
            if inputs != outputs and (first == 1 or block > 0):
                total += conv(inputs, outputs, 1) + norm(outputs)
            inputs = outputs
    total += conv(320, 1280, 1) + norm(1280) + fc(1280, 10)
    assert total == 2_296_922
    assert count(on_meta("mobilenetv2", (3, 32, 32))) == total


def test_efficientnet_has_the_parameters_of_its_table() -> None:
    table = [
        (1, 16, 1, 3),
        (6, 24, 2, 3),
        (6, 40, 2, 5),
        (6, 80, 3, 3),
        (6, 112, 3, 5),
        (6, 192, 4, 5),
        (6, 320, 1, 3),
    ]
    total, inputs = conv(3, 32, 3) + norm(32), 32
    for expansion, outputs, blocks, kernel in table:
        for _ in range(blocks):
            hidden = expansion * inputs
            total += conv(inputs, hidden, 1) + norm(hidden) if expansion > 1 else 0
            total += kernel * kernel * hidden + conv(hidden, outputs, 1) + norm(hidden, outputs)
            total += fc(hidden, inputs // 4, hidden)
            inputs = outputs
    total += fc(320, 10)
    unused = conv(32, 32, 1) + norm(
        32
    )  # the CIFAR form's first block holds an expansion that it never applies
    assert total == 3_599_686 - unused
    assert count(on_meta("efficientnet-b0", (3, 32, 32))) == total


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
        total += sum(
            conv(i, o, k, True) + norm(o)
            for i, o, k in [
                (inputs, one, 1),
                (inputs, r3, 1),
                (r3, three, 3),
                (inputs, r5, 1),
                (r5, five, 3),
                (five, five, 3),
                (inputs, pool, 1),
            ]
        )
        inputs = one + three + five + pool
    total += fc(1024, 10)
    assert (inputs, total) == (1024, 6_166_250)
    assert count(on_meta("googlenet", (3, 32, 32))) == total


def test_densenet_has_the_parameters_of_its_table() -> None:
    total, channels = conv(3, 64, 7) + norm(64), 64
    for stage, layers in enumerate([6, 12, 24, 16]):
        for _ in range(layers):
            total += norm(channels, 128) + conv(channels, 128, 1) + conv(128, 32, 3)
            channels += 32
        if stage < 3:
            total += norm(channels) + conv(channels, channels // 2, 1)
            channels //= 2
    total += norm(channels)
    assert total + fc(channels, 1000) == 7_978_856  # Huang et al. 2017 and torchvision
    assert count(on_meta("densenet121", (3, 96, 96), 2)) == total + fc(channels, 2) == 6_955_906
    assert on_meta("densenet121", (1, 96, 96), 2).features.dense.conv0.weight.shape == (64, 1, 7, 7)


def test_resnet18_imagenet_has_torchvisions_layers() -> None:
    from torchvision.models import resnet18

    with torch.device("meta"):
        theirs = resnet18(weights=None, num_classes=10)
    ours = on_meta("resnet18-imagenet", (3, 256, 256))
    assert Counter(p.shape for p in ours.parameters()) == Counter(
        p.shape for p in theirs.parameters()
    )
    assert ours(torch.zeros(2, 3, 256, 256, device="meta")).shape == (2, 10)


def test_resnet18_imagenet_computes_what_torchvisions_does() -> None:
    from torchvision.models import resnet18

    from flray.models import build

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
    from torchvision.models import alexnet

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
    from flray.models import build

    model = build("lenet", (3, 32, 32), 10, {"norm": "batch"}, seed=0).double().train()
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
        expected = normed(
            expected @ entries[f"features.fc{i}.weight"].T + entries[f"features.fc{i}.bias"]
        )
    expected = expected @ entries["classifier.weight"].T + entries["classifier.bias"]
    torch.testing.assert_close(model(x), expected)


def test_googlenet_pools_as_in_its_table() -> None:
    model = on_meta("googlenet", (3, 32, 32))
    for name in ("features.pool4", "features.pool5"):
        pool = model.get_submodule(name)
        assert (pool.kernel_size, pool.stride, pool.padding) == (3, 2, 1)


def test_alexnet_classifier_is_about_55_of_57_million() -> None:
    model = on_meta("alexnet", (3, 256, 256))
    assert (
        count(model.get_submodule("classifier"))
        == fc(9216, 4096, 4096, 10) + norm(4096, 4096)
        == 54_591_498
    )
    assert count(on_meta("alexnet", (3, 256, 256), split="head").get_submodule("classifier")) == fc(
        4096, 10
    )
    plain = on_meta("alexnet", (3, 256, 256), classifier_norm=False)
    assert count(model) - count(plain) == norm(4096, 4096)


def test_digit_cnn_options() -> None:
    full = on_meta("digit-cnn", (3, 28, 28))
    assert full.classifier.fc1.weight.shape == (2048, 6272)
    assert full.classifier.fc2.weight.shape == (512, 2048)
    assert full.classifier.fc3.weight.shape == (10, 512)
    assert on_meta("digit-cnn", (3, 32, 32)).classifier.fc1.in_features == 128 * 8 * 8
    assert count(on_meta("digit-cnn", (3, 28, 28), layers=4)) - count(full) == conv(
        128, 128, 5, True
    ) + norm(128)
    assert count(full) - count(on_meta("digit-cnn", (3, 28, 28), classifier_norm=False)) == norm(
        2048, 512
    )
    head = on_meta("digit-cnn", (3, 28, 28), split="head")
    assert count(head) == count(full)
    assert head.classifier.weight.shape == (10, 512)
    narrow = on_meta("digit-cnn", (3, 28, 28), width=0.25)
    assert [narrow.get_submodule(f"features.conv{i}").out_channels for i in (1, 2, 3)] == [
        16,
        16,
        32,
    ]
    assert narrow.classifier.fc1.weight.shape == (512, 32 * 49)


def test_norm_options_add_the_parameters_of_the_norms_and_nothing_else() -> None:
    plain = count(on_meta("lenet", (3, 32, 32)))
    for kind in ("batch", "group"):
        assert count(on_meta("lenet", (3, 32, 32), norm=kind)) - plain == norm(6, 16, 120, 84)
        assert count(on_meta("cnn", (3, 32, 32), norm=kind)) - 121_182 == norm(16, 32, 120, 84)
    assert count(on_meta("resnet18", (3, 32, 32), norm="group")) == 11_173_962


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
    from flray.models import layer_taps

    model, seen = on_meta(name, (3, 32, 32)), []
    for _, module in layer_taps(model):
        module.register_forward_hook(
            lambda _module, _inputs, output: seen.append((output.shape[1], output.shape[3]))
        )
    model(torch.zeros(2, 3, 32, 32, device="meta"))
    assert seen == sizes


def test_he_initialisation_has_variance_two_over_fan_out() -> None:
    from flray.models import build

    name = "features.stage3.0.sum.branch.conv2.weight"
    weight = build("resnet8", (3, 32, 32), 10, {"init": "he"}, seed=0).state_dict()[name]
    assert weight.std().item() == pytest.approx((2 / (256 * 9)) ** 0.5, rel=0.01)
    default = build("resnet8", (3, 32, 32), 10, {}, seed=0).state_dict()[name]
    assert default.std().item() == pytest.approx((1 / (3 * 256 * 9)) ** 0.5, rel=0.01)
