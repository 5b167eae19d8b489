"""The same network in bfloat16: near the float32 one inside, float32 at its border; and compiled: the same function."""

import copy
import os
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

from flray.models import acceleration, build
from tests.helpers import python
from tests.messages import refused

CASES: list[tuple[str, Mapping[str, Any]]] = [
    ("resnet8", {"width": 4}),
    ("resnet8", {"width": 4, "norm": "group"}),
    ("mlp", {}),
]
cases = pytest.mark.parametrize(("name", "options"), CASES)


def network(name: str, options: Mapping[str, Any], seed: int = 0) -> nn.Module:
    return build(name, (3, 16, 16), 5, options, seed)


def images(count: int = 6) -> torch.Tensor:
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(1))


@cases
def test_bfloat16_stays_within_the_network(name: str, options: Mapping[str, Any]) -> None:
    plain, lowered = network(name, options), network(name, options)
    acceleration.in_bfloat16(lowered)
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
    outputs.square().sum().backward()
    expected.square().sum().backward()
    assert {p.grad.dtype for p in lowered.parameters() if p.grad is not None} == {torch.float32}
    ours, theirs = (
        torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
        for model in (lowered, plain)
    )
    assert len(ours) == len(theirs) == sum(p.numel() for p in plain.parameters())
    assert float(torch.cosine_similarity(ours, theirs, dim=0)) > 0.95


def test_a_copy_computes_likewise_with_its_own_values() -> None:
    lowered, other = network("lenet", {}), network("lenet", {}, seed=1)
    acceleration.in_bfloat16(lowered)
    acceleration.in_bfloat16(other)
    twin = copy.deepcopy(lowered)
    twin.load_state_dict(other.state_dict())
    assert torch.equal(twin(images()), other(images()))
    assert torch.equal(twin.features(images()), other.features(images()))
    assert not torch.equal(twin(images()), lowered(images()))


def compiled(
    name: str, options: Mapping[str, Any], batch_size: int = 6
) -> tuple[nn.Module, list[int]]:
    """Return a network compiled for torch's own kernels, which is quick, and the sizes of the batches so run."""
    model, sizes = network(name, options), list[int]()

    def noting(graph: Any, inputs: Any) -> Any:
        def run(*values: Any) -> Any:
            sizes.extend({len(v) for v in values if v.dim() and len(v) == batch_size})
            return graph(*values)

        return run

    torch._dynamo.reset()
    acceleration.compile_model(model, batch_size, backend=noting)
    return model, sizes


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
    for ours, theirs in zip(fast.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad)
    for ours, theirs in zip(fast.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_only_whole_training_batches_run_compiled() -> None:
    model, sizes = compiled("resnet8", {"width": 8})
    model(images(5))
    with torch.no_grad():
        model(images())
    model.eval()(images())
    model.train()
    layer = model.features.stage1
    seen: list[int] = []
    hook = layer.register_forward_hook(lambda module, inputs, output: seen.append(1))
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
        acceleration.in_bfloat16(model)
    acceleration.compile_model(both, 6, backend="eager")
    torch.testing.assert_close(both(images()), lowered(images()))
    assert both.features(images()).dtype == torch.float32


class Branching(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if x.sum() > 0 else -x


def test_a_network_that_has_no_graph_is_refused_in_one_line() -> None:
    model = Branching()
    acceleration.compile_model(model, 6, backend="eager")
    refused(model, images())
    assert torch.equal(model(images(5)).sum().abs(), images(5).sum().abs())


def test_narrow_strided_shortcuts_do_not_corrupt_memory_on_avx2() -> None:
    """In a process of its own, for oneDNN chooses its instructions once, and what it writes past would be ours."""
    code = """if True:
        import torch
        from flray.models import acceleration, build

        torch.set_num_threads(1)
        model = build("resnet8", (3, 16, 16), 10, {"width": 4}, 0)
        acceleration.convert_layout(model, torch.channels_last)
        for _ in range(20):
            x = torch.randn(2, 3, 16, 16).contiguous(memory_format=torch.channels_last)
            model(x).sum().backward()
    """
    python(code, env={**os.environ, "ONEDNN_MAX_CPU_ISA": "AVX2"})
