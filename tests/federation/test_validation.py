"""Clients of one sample under batch norm: refused before round 0 where it cannot be trained, run where it can."""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from flray import registry
from flray.data.types import DataSet, Domain
from flray.federation.federation import Federation
from flray.federation.worker.client_runner import InlineExecutor
from tests.helpers import built
from tests.messages import refused

SIZES = {"lonely": 1, "pair": 2, "five": 5}


def sites(root: Path, *, masks: bool = False) -> DataSet:
    """Domains of 1, 2 and 5 training samples."""
    generator = np.random.default_rng(0)
    domains = []
    for name, count in SIZES.items():
        x = generator.integers(0, 256, (count + 2, 3, 16, 16), dtype=np.uint8)
        y: Any = (x[:, :1] > 128).astype(np.uint8) if masks else np.arange(count + 2) % 2
        domains.append(Domain(name, "random", x[2:], y[2:], x[:2], y[:2]))
    return DataSet(
        "sites",
        tuple(domains),
        ("a",) if masks else ("a", "b"),
        (0.5,) * 3,
        (0.3,) * 3,
        task="segmentation" if masks else "classification",
    )


@pytest.fixture(autouse=True)
def _sites() -> Iterator[None]:
    registry.datasets.register("sites")(sites)
    yield
    del registry.datasets._entries["sites"]


def federation(model: Any, **settings: Any) -> Federation:
    content = {
        "data": "sites",
        "partition": "domains",
        "model": model,
        "algorithm": "fedavg",
        "rounds": 1,
        "resources": {"executor": "inline"},
        "tracking": {"uri": None},
        **settings,
    }
    spec = built(content)
    return Federation(spec, InlineExecutor(spec), lambda line: None)


@pytest.mark.parametrize(
    "model",
    [
        {"name": "mlp", "norm": "batch"},
        {"name": "lenet", "norm": "batch"},
        {"name": "digit-cnn", "width": 0.05},
    ],
)
def test_a_client_of_one_sample_is_named(model: dict[str, Any]) -> None:
    refused(federation, model)


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ({"name": "mlp", "norm": "group"}, {}),
        ({"name": "mlp"}, {}),
        ({"name": "resnet8", "width": 4}, {}),
        ({"name": "digit-cnn", "width": 0.05, "classifier_norm": False}, {}),
        ({"name": "unet", "width": 2, "depth": 2}, {"data": {"name": "sites", "masks": True}}),
    ],
)
@pytest.mark.parametrize("batch_size", [1, 2, 4])
def test_one_sample_is_trained_on_where_that_is_possible(
    model: dict[str, Any], settings: dict[str, Any], batch_size: int
) -> None:
    metrics = federation(model, **settings, local={"batch_size": batch_size}).step().metrics
    assert metrics["cohort/left_out"] == 0 and math.isfinite(metrics["train/loss/client/lonely"])
    # a last batch of one sample is left out under batch norm, unless it is the client's only one
    single = model["name"] in ("resnet8", "unet", "digit-cnn") and batch_size > 1
    assert metrics["train/samples"] == 1 + 2 + (4 if single else 5)


def test_batches_of_one_are_named() -> None:
    small = {"data": {"name": "digits-sklearn", "samples": 20}, "local": {"batch_size": 1}}
    refused(federation, {"name": "lenet", "norm": "batch"}, **small)
    federation({"name": "lenet", "norm": "group"}, **small)


def test_such_clients_are_left_out_and_reported_where_that_is_wanted() -> None:
    skip = {"faults": {"on_client_error": "skip"}}
    metrics = federation({"name": "mlp", "norm": "batch"}, **skip).step().metrics
    assert metrics["cohort/left_out"] == 1 and math.isfinite(metrics["global/common/loss"])


@pytest.mark.parametrize("size", [7, 32, 512, 700, 2048, 5000])
def test_evaluation_tasks_have_the_batches_of_whole_chunks(
    digits: dict[str, Any], size: int
) -> None:
    """So that all actors evaluate, and no bit of a metric depends on where a task ends."""

    def batches(parts: list[Any]) -> list[list[int]]:
        return [part[at : at + size].tolist() for part in parts for at in range(0, len(part), size)]

    spec, rows = built(digits, evaluation={"batch_size": size}), np.arange(5000)
    parts = spec.evaluation_chunks(rows)
    assert batches(parts) == batches([rows[at : at + 2048] for at in range(0, 5000, 2048)])
    assert max(map(len, parts)) <= min(2048, max(512, size))
