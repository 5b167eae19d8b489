"""What every built-in network promises at its smallest, and the same network in bfloat16 and compiled."""

import copy
import itertools
import os
from collections.abc import Mapping
from typing import Any

import pytest
import torch
import yaml
from torch import nn

from flray import models, registry
from flray.trees import sha256
from tests.helpers import python
from tests.messages import refused

# name, options that keep it small, least height and width, features
CASES: list[Any] = yaml.safe_load(
    """[[linear, {}, 1, 3], [mlp, {hidden: [7, 5]}, 1, 5], [mlp, {hidden: [7, 5], norm: batch}, 1, 5],
    [mlp, {hidden: [7, 5], norm: group}, 1, 5], [lenet, {}, 16, 84],
    [lenet, {norm: batch}, 16, 84], [lenet, {norm: group}, 16, 84],
    [cnn, {kernels: 4, norm: batch}, 16, 84], [cnn, {kernels: 3, norm: group}, 16, 84],
    [simple-cnn, {}, 16, 256], [emnist-cnn, {}, 4, 512], [digit-cnn, {width: 0.1}, 4, 13],
    [digit-cnn, {classifier_norm: false, layers: 4, split: head, width: 0.1}, 4, 51],
    [digit-cnn, {norm: group, width: 0.1}, 4, 13], [alexnet, {width: 0.05}, 63, 468],
    [alexnet, {split: head, width: 0.05}, 63, 205], [resnet8, {width: 8}, 4, 32],
    [resnet8, {norm: group, width: 8}, 4, 32], [resnet10, {width: 4}, 8, 32],
    [resnet12, {width: 4}, 8, 32], [resnet18, {width: 4}, 8, 32],
    [resnet18, {norm: group, width: 4}, 8, 32], [resnet34, {width: 4}, 8, 32],
    [resnet18-imagenet, {width: 4}, 32, 32], [mobilenetv2, {}, 8, 1280],
    [efficientnet-b0, {}, 16, 320], [googlenet, {}, 4, 1024], [densenet121, {}, 29, 1024],
    [densenet121, {norm: group}, 29, 1024], [torchvision, {network: resnet18}, 1, 512],
    [torchvision, {network: shufflenet_v2_x0_5, norm: group}, 1, 1024],
    [protonet, {width: 4}, 16, 4], [protonet, {norm: group, width: 4}, 16, 4],
    [unet, {width: 4}, 16, 4], [unet, {norm: group, width: 4}, 16, 4]]"""
)
IDS = ["-".join([name, *map(str, options.values())]) for name, options, _, _ in CASES]
MAPS = {"unet"}  # whose features and outputs are maps of the images' size
BUILT = [one for one in CASES if one[0] in ("mlp", "digit-cnn", "resnet8", "unet", "torchvision")]
every = pytest.mark.parametrize(("name", "options", "size", "features"), CASES, ids=IDS)


def small(name: str, options: Mapping[str, Any], size: int, seed: int = 0) -> models.SplitModel:
    return models.as_split(models.build(name, (3, size, size), 5, options, seed))


def batch(size: int) -> torch.Tensor:
    return torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(1))


def test_every_built_in_model_is_here_and_all_but_linear_have_a_norm() -> None:
    assert {name for name, *_ in CASES} == OWN == {"linear", *NORMED}


@every
def test_layouts_and_taps(name: str, options: Mapping[str, Any], size: int, features: int) -> None:
    model, x = small(name, options, size).eval(), batch(size)
    outputs: list[tuple[torch.Tensor, torch.Tensor]] = []
    taps = models.layer_taps(model) if name != "linear" else []
    for _, module in taps:
        module.register_forward_hook(lambda _m, _i, out: outputs.append((out, out.clone())))
    with torch.no_grad():
        logits = model(x)
        assert len(outputs) == len(taps) == len({tap for tap, _ in taps})
        # A ReLU in place behind a tap would change what the hook was given.
        assert all(torch.equal(y, copy) for y, copy in outputs)
        hidden = model.features(x)
        place = (size, size) if name in MAPS else ()
        assert features == models.feature_dim(model)
        assert hidden.shape == (2, features, *place) and logits.shape == (2, 5, *place)
        if name not in ("linear", "simple-cnn", "efficientnet-b0"):  # these do not end in a ReLU
            assert hidden.min() >= 0
        assert torch.equal(model.classifier(hidden), logits)
        # In double precision: rounding alone may differ, and a group norm of two equal values enlarges it.
        expected, x = model.double()(x.double()), x.double()
        last = {"memory_format": torch.channels_last}
        other = model.to(**last)(x.contiguous(**last))
    torch.testing.assert_close(other, expected, rtol=1e-8, atol=1e-8)


@every
def test_groups_partition_the_state(name: str, options: Any, size: int, features: int) -> None:
    model = small(name, options, size)
    state = set(model.state_dict())
    head, body = models.select(model, "classifier"), models.select(model, "features")
    assert head and body == state - head
    norms = models.select(model, "batch_norm")
    assert models.select(model, "not_batch_norm") == state - norms
    # weight, bias, running mean, running variance and counter of each
    assert len(norms) == 5 * len(models.batch_norm_modules(model))
    if options.get("norm") == "group":
        assert not norms and any(isinstance(module, nn.GroupNorm) for module in model.modules())


@pytest.mark.parametrize(("name", "options", "size", "features"), BUILT)
def test_values_come_from_the_seed_alone(name: str, options: Any, size: int, features: int) -> None:
    torch.manual_seed(123)
    before = torch.get_rng_state()
    first = small(name, options, size)
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(1)
    assert sha256(small(name, options, size).state_dict()) == sha256(first.state_dict())
    assert sha256(small(name, options, size, seed=1).state_dict()) != sha256(first.state_dict())


@pytest.mark.parametrize(("name", "size"), sorted({(n, s) for n, _, s, _ in CASES if s > 1}))
def test_too_small_an_image_or_none_is_refused(name: str, size: int) -> None:
    for shape in ((3, size - 1, size), (64,)):
        refused(models.build, name, shape, 5, {}, seed=0)


OWN = set(registry.models.names()) - set(registry.models.added())
NORMED = sorted(name for name in OWN if "norm" in registry.models.params(name).model_fields)


@pytest.mark.parametrize("name", NORMED)
def test_every_network_with_norms_has_them_as_group_norm(name: str) -> None:
    build_one = registry.models.get(name)
    with torch.device("meta"):
        batch_form, group_form = (build_one((3, 64, 64), 5, norm=n) for n in ("batch", "group"))
    norms = [m for m in group_form.modules() if isinstance(m, nn.GroupNorm)]
    assert norms and not models.batch_norm_modules(group_form)
    assert len(norms) == len(models.batch_norm_modules(batch_form))
    assert all(m.num_channels // m.num_groups >= 2 for m in norms)
    taps = [[n for n, _ in models.layer_taps(form)] for form in (batch_form, group_form)]
    assert taps[0] == taps[1]


def test_flattened_models_take_any_shape_and_unet_sizes_that_can_be_halved_alone() -> None:
    for shape, name in itertools.product([(64,), (1, 8, 8), (5, 4, 3, 2)], ("linear", "mlp")):
        assert models.build(name, shape, 4, {}, seed=0)(torch.zeros(2, *shape)).shape == (2, 4)
    assert small("unet", {"width": 2, "depth": 3}, 24).eval()(batch(24)).shape == (2, 5, 24, 24)
    refused(small, "unet", {}, 24)


def test_dropout_of_efficientnet_acts_in_training_only() -> None:
    model = small("efficientnet-b0", {"dropout": 0.5, "norm": "group"}, 16)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        dropped, kept = ((model.train(on).features(batch(16)) == 0) for on in (True, False))
    assert dropped.float().mean().item() == pytest.approx(0.5, abs=0.08) and not kept.any()


SMALL = [("resnet8", {"width": 4}), ("resnet8", {"width": 4, "norm": "group"}), ("mlp", {})]
cases = pytest.mark.parametrize(("name", "options"), SMALL)


def network(name: str, options: Mapping[str, Any], seed: int = 0) -> nn.Module:
    return models.build(name, (3, 16, 16), 5, options, seed)


def images(count: int = 6) -> torch.Tensor:
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(1))


@cases
def test_bfloat16_stays_within_the_network(name: str, options: Mapping[str, Any]) -> None:
    plain, lowered = network(name, options), network(name, options)
    models.acceleration.in_bfloat16(lowered)
    assert list(lowered.state_dict()) == list(plain.state_dict())
    inside: list[torch.dtype] = []
    first = next(m for m in lowered.modules() if isinstance(m, (nn.Conv2d, nn.Linear)))
    first.register_forward_hook(lambda module, inputs, output: inside.append(output.dtype))
    outputs, expected = lowered(images()), plain(images())
    assert inside == [torch.bfloat16]
    assert outputs.dtype == lowered.features(images()).dtype == torch.float32
    assert 0 < float((outputs - expected).detach().norm() / expected.detach().norm()) < 0.03
    again = lowered.classifier(lowered.features(images()))
    assert torch.equal(again, lowered(images())), "the parts alone are the whole"
    (outputs.square().sum() + expected.square().sum()).backward()
    found = [
        [p.grad for p in model.parameters() if p.grad is not None] for model in (lowered, plain)
    ]
    assert {gradient.dtype for gradient in found[0]} == {torch.float32}
    ours, theirs = (torch.cat([gradient.flatten() for gradient in one]) for one in found)
    assert len(ours) == len(theirs) == sum(p.numel() for p in plain.parameters())
    assert float(torch.cosine_similarity(ours, theirs, dim=0)) > 0.95


def test_a_copy_computes_likewise_with_its_own_values() -> None:
    lowered, other = (network("lenet", {}, seed) for seed in (0, 1))
    for model in (lowered, other):
        models.acceleration.in_bfloat16(model)
    twin = copy.deepcopy(lowered)
    twin.load_state_dict(other.state_dict())
    assert torch.equal(twin(images()), other(images()))
    assert torch.equal(twin.features(images()), other.features(images()))
    assert not torch.equal(twin(images()), lowered(images()))


def compiled(name: str, options: Any, batch_size: int = 6) -> tuple[nn.Module, list[int]]:
    """Return a network compiled for torch's own kernels, which is quick, and the sizes of the batches so run."""
    model, sizes = network(name, options), list[int]()

    def noting(graph: Any, inputs: Any) -> Any:
        def run(*values: Any) -> Any:
            sizes.extend({len(v) for v in values if v.dim() and len(v) == batch_size})
            return graph(*values)

        return run

    torch._dynamo.reset()
    models.acceleration.compile_model(model, batch_size, backend=noting)
    return model, sizes


@pytest.mark.slow
@cases
def test_compiled_it_is_the_same_function(name: str, options: Mapping[str, Any]) -> None:
    plain, (fast, sizes) = network(name, options), compiled(name, options)
    assert list(fast.state_dict()) == list(plain.state_dict())
    for _ in range(2):  # twice, for a batch norm's statistics
        outputs = [model.classifier(model.features(images())) for model in (plain, fast)]
        torch.testing.assert_close(outputs[1], outputs[0])
        torch.testing.assert_close(fast(images()), plain(images()))
    assert len(sizes) == 8, "both parts, each time"
    for model in (plain, fast):
        model(images()).square().sum().backward()
    ours, theirs = ([*(p.grad for p in m.parameters()), *m.buffers()] for m in (fast, plain))
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("kind", ["register_forward_hook", "register_forward_pre_hook"])
def test_only_whole_training_batches_run_compiled(kind: str) -> None:
    model, sizes = compiled("resnet8", {"width": 8})
    model(images(5))
    with torch.no_grad():
        model(images())
    model.eval()(images())
    model.train()
    seen: list[int] = []
    hook = getattr(model.features.stage1, kind)(lambda *_: seen.append(1))
    model(images())
    assert not sizes[1:] and seen == [1], "a hook is never compiled away (the classifier has none)"
    hook.remove()
    model(images())
    assert len(sizes) == 3


def test_a_copy_is_not_compiled_and_parameters_from_elsewhere_are_used() -> None:
    """As by methods whose step looks at other parameters than the model's."""
    model, sizes = compiled("lenet", {})
    other = network("lenet", {}, seed=1)
    twin = copy.deepcopy(model)
    twin.load_state_dict(other.state_dict())
    torch.testing.assert_close(twin(images()), other(images()))
    assert not sizes
    model(images())
    outputs = torch.func.functional_call(model, dict(other.named_parameters()), (images(),))
    torch.testing.assert_close(outputs, other(images()))
    assert len(sizes) == 4


def test_both_together_are_bfloat16_compiled() -> None:
    torch._dynamo.reset()
    lowered, both = network("lenet", {}), network("lenet", {})
    for model in (lowered, both):
        models.acceleration.in_bfloat16(model)
    models.acceleration.compile_model(both, 6, backend="eager")
    torch.testing.assert_close(both(images()), lowered(images()))
    assert both.features(images()).dtype == torch.float32


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


def test_a_network_that_has_no_graph_is_refused_in_one_line() -> None:
    model = Branching()
    models.acceleration.compile_model(model, 6, backend="eager")
    refused(model, images())
    assert torch.equal(model(images(5)).sum().abs(), images(5).sum().abs())


@pytest.mark.slow
def test_narrow_strided_shortcuts_do_not_corrupt_memory_on_avx2() -> None:
    """In a process of its own, for oneDNN chooses its instructions once, and what it writes past would be ours."""
    code = """if True:
        import torch
        from flray.models import acceleration, build

        torch.set_num_threads(1)
        model = build("resnet8", (3, 16, 16), 10, {"width": 4}, 0)
        acceleration.in_channels_last(model)
        for _ in range(20):
            x = torch.randn(2, 3, 16, 16).contiguous(memory_format=torch.channels_last)
            model(x).sum().backward()
    """
    python(code, env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"})
