"""The same network in bfloat16: near the float32 one inside, float32 at its border."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import pytest
import torch
from torch import nn

from flray.models import build, faster

CASES: list[tuple[str, Mapping[str, Any]]] = [
    ("resnet8", {"width": 8}), ("resnet8", {"width": 8, "norm": "group"}), ("lenet", {}), ("mlp", {})]
cases = pytest.mark.parametrize(("name", "options"), CASES)


def network(name: str, options: Mapping[str, Any], seed: int = 0) -> nn.Module:
    return build(name, (3, 16, 16), 5, options, seed)


def images(count: int = 6) -> torch.Tensor:
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(1))


@cases
def test_bfloat16_stays_within_the_network(name: str, options: Mapping[str, Any]) -> None:
    plain, lowered = network(name, options), network(name, options)
    faster.in_bfloat16(lowered)
    assert list(lowered.state_dict()) == list(plain.state_dict())
    inside: list[torch.dtype] = []
    next(m for m in lowered.modules() if isinstance(m, (nn.Conv2d, nn.Linear))).register_forward_hook(
        lambda module, inputs, output: inside.append(output.dtype))
    outputs, expected = lowered(images()), plain(images())
    assert inside == [torch.bfloat16]
    assert outputs.dtype == lowered.features(images()).dtype == torch.float32
    assert 0 < float((outputs - expected).detach().norm() / expected.detach().norm()) < 0.03
    again = lowered.classifier(lowered.features(images()))
    assert torch.equal(again, lowered(images())), "the parts alone are the whole"
    outputs.square().sum().backward()
    expected.square().sum().backward()
    assert {p.grad.dtype for p in lowered.parameters() if p.grad is not None} == {torch.float32}
    ours, theirs = (torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
                    for model in (lowered, plain))
    assert len(ours) == len(theirs) == sum(p.numel() for p in plain.parameters())
    assert float(torch.cosine_similarity(ours, theirs, dim=0)) > 0.95


def test_a_copy_computes_likewise_with_its_own_values() -> None:
    lowered, other = network("lenet", {}), network("lenet", {}, seed=1)
    faster.in_bfloat16(lowered)
    faster.in_bfloat16(other)
    twin = copy.deepcopy(lowered)
    twin.load_state_dict(other.state_dict())
    assert torch.equal(twin(images()), other(images()))
    assert torch.equal(twin.features(images()), other.features(images()))
    assert not torch.equal(twin(images()), lowered(images()))
