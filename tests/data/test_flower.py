"""Flower's partitioners give what they give alone, repeat themselves, and are refused in one line."""

import warnings
from typing import Any

import datasets
import numpy as np
import pytest
from flwr_datasets import partitioner as known

from flray.data.partitions import flower
from flray.registry import partitions
from flray.rng import numpy_generator
from tests.messages import refused

LABELS = np.random.default_rng(0).integers(0, 10, 1000)
DISTRIBUTION = {
    "distribution_array": [[3, 4] for _ in range(10)],
    "num_unique_labels_per_partition": 2,
    "preassigned_num_samples_per_label": 5,
}
CHOSEN: dict[str, tuple[int | None, dict[str, Any] | None]] = {
    "ContinuousPartitioner": (4, {"strictness": 0.5}),
    "DirichletPartitioner": (10, {"alpha": 0.5}),
    "DistributionPartitioner": (10, DISTRIBUTION),
    "IidPartitioner": (7, None),
    "SizePartitioner": (None, {"partition_sizes": [100, 200]}),
}

BY_SIZE = ("IidPartitioner", "SizePartitioner")  # take neither classes nor a seed


@pytest.mark.parametrize("name", sorted(CHOSEN))
def test_each_gives_what_it_gives_alone(name: str) -> None:
    clients, options = CHOSEN[name]
    parts = flower(LABELS, 3, partitioner=name, clients=clients, options=options)
    again = flower(LABELS, 3, partitioner=name, clients=clients, options=options)
    assert all(np.array_equal(a, b) for a, b in zip(parts, again, strict=True))
    own: dict[str, Any] = {
        k: np.array(v) if k == "distribution_array" else v for k, v in (options or {}).items()
    }
    if clients:
        own["num_partitions"] = clients
    if name not in BY_SIZE:
        seed = int(numpy_generator(3, "partition").integers(2**31))
        own.update(partition_by="label", seed=seed)
    alone = getattr(known, name)(**own)
    table = {"label": LABELS, "row": np.arange(len(LABELS))}
    with warnings.catch_warnings(action="ignore"):
        alone.dataset = datasets.Dataset.from_dict(table)
        expected = [sorted(alone.load_partition(i)["row"]) for i in range(alone.num_partitions)]
    assert [part.tolist() for part in parts] == expected
    rows = np.concatenate(parts)
    assert len(set(rows.tolist())) == len(rows) > 0
    assert all(part.dtype == np.int64 for part in parts)


registered = partitions.get("flower")


@pytest.mark.parametrize(
    ("name", "clients", "options"),
    [
        ("Shard", 3, None),
        ("ShardPartitoner", 3, None),
        ("NaturalIdPartitioner", None, None),
        ("ShardPartitioner", 3, None),
        ("ShardPartitioner", 3, {"shards": 2}),
        ("IidPartitioner", None, None),
        ("SizePartitioner", 3, {"partition_sizes": [3]}),
        ("IidPartitioner", 3, {"seed": 3}),
        ("DirichletPartitioner", 3, {"alpha": "x"}),
        ("IidPartitioner", 2000, None),
    ],
)
def test_what_does_not_suit_is_one_line(
    name: str, clients: int | None, options: dict[str, Any] | None
) -> None:
    refused(registered, LABELS, 3, partitioner=name, clients=clients, options=options)


def test_a_warning_is_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with warnings.catch_warnings(action="error", category=UserWarning):
        flower(LABELS, 3, partitioner="SizePartitioner", options={"partition_sizes": [100, 200]})
    (record,) = caplog.records
    assert record.getMessage().startswith("partition flower: The sum of partition sizes is 300")
