"""Flower's partitioners give what they give alone, repeat themselves, and are refused in one line."""

from __future__ import annotations

import warnings
from typing import Any

import datasets
import numpy as np
import pytest
from flwr_datasets import partitioner as known

from flray.data.partitions import flower
from flray.errors import DataError
from flray.registry import partitions
from flray.rng import numpy_generator

LABELS = np.random.default_rng(0).integers(0, 10, 1000)
CHOSEN: dict[str, tuple[int | None, dict[str, Any] | None]] = {
    "ContinuousPartitioner": (4, {"strictness": 0.5}),
    "DirichletPartitioner": (10, {"alpha": 0.5}),
    "DistributionPartitioner": (
        10,
        {
            "distribution_array": [[3, 4] for _ in range(10)],
            "num_unique_labels_per_partition": 2,
            "preassigned_num_samples_per_label": 5,
        },
    ),
    "ExponentialPartitioner": (5, {}),
    "IidPartitioner": (7, None),
    "InnerDirichletPartitioner": (None, {"partition_sizes": [100, 200], "alpha": 0.5}),
    "LinearPartitioner": (5, None),
    "PathologicalPartitioner": (10, {"num_classes_per_partition": 2}),
    "ShardPartitioner": (10, {"num_shards_per_partition": 2}),
    "SizePartitioner": (None, {"partition_sizes": [100, 200]}),
    "SquarePartitioner": (5, None),
}

BY_SIZE = [
    f"{how}Partitioner" for how in ("Exponential", "Iid", "Linear", "Size", "Square")
]  # take neither classes nor a seed


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


def test_the_seed_decides() -> None:
    first, second = (
        flower(LABELS, seed, partitioner="DirichletPartitioner", clients=5, options={"alpha": 1})
        for seed in (0, 1)
    )
    assert any(not np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"partitioner": "Shard", "clients": 3}, "there are ContinuousPartitioner, Dirichlet"),
        (
            {"partitioner": "ShardPartitoner", "clients": 3},
            "did you mean 'ShardPartitioner'?; there",
        ),
        ({"partitioner": "NaturalIdPartitioner"}, "there are ContinuousPartitioner, Dirichlet"),
        ({"partitioner": "ShardPartitioner", "clients": 3}, "needs to be specified"),
        (
            {"partitioner": "ShardPartitioner", "clients": 3, "options": {"shards": 2}},
            "has no option 'shards' here; did you mean 'shard_size'?; it has keep_incomplete",
        ),
        ({"partitioner": "IidPartitioner"}, "set clients"),
        (
            {"partitioner": "SizePartitioner", "clients": 3, "options": {"partition_sizes": [3]}},
            "leave clients out",
        ),
        (
            {"partitioner": "IidPartitioner", "clients": 3, "options": {"seed": 3}},
            "has no option 'seed' here: the run's seed or partition.seed; it has none",
        ),
        (
            {"partitioner": "DirichletPartitioner", "clients": 3, "options": {"alpha": "x"}},
            "alpha format is not supported",
        ),
        ({"partitioner": "IidPartitioner", "clients": 2000}, "out of range"),
    ],
)
def test_what_does_not_suit_is_one_line(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError) as refused:
        partitions.get("flower")(LABELS, 3, **settings)
    text = str(refused.value)
    assert text.startswith("partition flower: ") and said in text and "\n" not in text


def test_a_warning_is_a_line_of_the_log(caplog: pytest.LogCaptureFixture) -> None:
    with warnings.catch_warnings(action="error", category=UserWarning):
        flower(LABELS, 3, partitioner="SizePartitioner", options={"partition_sizes": [100, 200]})
    (record,) = caplog.records
    assert record.getMessage().startswith("partition flower: The sum of partition sizes is 300")
