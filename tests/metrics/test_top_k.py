"""Top-k accuracy against counting by hand and torch.topk, and what it is refused for."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from flray.errors import ConfigError
from flray.tasks import make_task
from flray.tasks.classification import Classification, among_largest
from tests.algorithms.helpers import gaussian_clients, run_federation, spec_of


def test_by_hand() -> None:
    logits = torch.tensor([[4.0, 3.0, 2.0, 1.0]] * 4)
    assert among_largest(logits, torch.arange(4), 2).tolist() == [True, True, False, False]
    assert among_largest(logits, torch.arange(4), 3).tolist() == [True, True, True, False]


def test_equals_torch() -> None:
    generator = torch.Generator().manual_seed(0)
    logits = torch.randn(500, 9, generator=generator, dtype=torch.float64)
    labels = torch.randint(9, (500,), generator=generator)
    for k in range(1, 9):
        wanted = (logits.topk(k, 1).indices == labels[:, None]).any(1)
        assert torch.equal(among_largest(logits, labels, k), wanted)


def test_exactly_k_classes_count_where_logits_are_equal() -> None:
    """A network that says nothing is right as often as chance."""
    logits, labels = torch.zeros(5, 5), torch.arange(5)
    assert among_largest(logits, labels, 2).sum() == 2
    assert torch.equal(among_largest(logits, labels, 1), logits.argmax(1) == labels)


def test_a_diverged_network_is_never_right() -> None:
    logits, labels = torch.full((5, 5), math.nan), torch.arange(5)
    assert not among_largest(logits, labels, 4).any()
    logits = torch.tensor([[math.nan, 1.0, 0.0]])
    assert not among_largest(logits, torch.tensor([1]), 1).any()
    assert among_largest(logits, torch.tensor([1]), 2).all()


def test_of_no_samples_it_is_nan() -> None:
    task = Classification(5)
    found = task.summarise(
        {
            name: one.numpy()
            for name, one in task.predictions(
                torch.zeros(0, 9), torch.zeros(0, dtype=torch.int64)
            ).items()
        }
    )
    assert set(found) == set(task.measures) == {"accuracy", "loss", "top5"}
    assert all(math.isnan(value) for value in found.values())


@pytest.mark.parametrize("algorithm", ["fedavg", "fedbn"])
def test_it_stands_beside_accuracy_and_changes_nothing_else(algorithm: str) -> None:
    clients = gaussian_clients((12, 9, 15), classes=4)
    settings: dict[str, Any] = {"classes": 4, "rounds": 1, "local": {"epochs": 2}}
    plain = run_federation(algorithm, clients, **settings)
    more = run_federation(algorithm, clients, **settings, evaluation={"top_k": 2, "others": True})
    assert plain.sha256() == more.sha256()
    found, before = more.evaluate(), plain.evaluate()
    assert {name: found[name] for name in before} == before
    added = {name for name in found if "/top2" in name}
    assert {n.replace("top2", "accuracy") for n in added} == {n for n in found if "accuracy" in n}
    for name in added:
        if not name.endswith("/std"):
            assert found[name.replace("top2", "accuracy")] <= found[name] <= 1
    assert any(found[name.replace("top2", "accuracy")] < found[name] for name in added)


@pytest.mark.parametrize("k", [3, 5])
def test_as_many_as_there_are_classes_is_refused(k: int) -> None:
    with pytest.raises(ConfigError, match=rf"evaluation\.top_k: found {k}.* 3 classes.* at most 2"):
        spec_of("fedavg", evaluation={"top_k": k})


@pytest.mark.parametrize("task", ["segmentation", "few-shot"])
def test_without_fixed_classes_it_is_refused(task: str) -> None:
    with pytest.raises(ConfigError, match=rf"evaluation\.top_k.*this task is {task}"):
        make_task(task, ("cup",), top_k=5)
