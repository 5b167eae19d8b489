"""The large array keeps its values and its place: seen as [n, C, H, W], lying by pixel, shared without a copy."""

from __future__ import annotations

import pickle

import numpy as np

from flray.data.federated import federate
from flray.data.types import DataSet, Domain, Pooled


def dataset() -> DataSet:
    x = np.random.default_rng(0).integers(0, 256, (12, 3, 4, 5), dtype=np.uint8)
    y = np.arange(12, dtype=np.int64) % 2
    return DataSet(
        "d",
        (
            Domain("a", "real", x[:6], y[:6], x[6:8], y[6:8]),
            Domain("b", "real", x[8:10], y[8:10], x[10:], y[10:]),
        ),
        ("0", "1"),
        (0.5,) * 3,
        (0.5,) * 3,
    )


def test_rows_are_training_parts_then_test_parts() -> None:
    whole, pooled = dataset(), Pooled.of(dataset())
    parts = [d.train_x for d in whole.domains] + [d.test_x for d in whole.domains]
    assert np.array_equal(pooled.x, np.concatenate(parts))
    assert np.moveaxis(pooled.x, 1, -1).flags.c_contiguous


def test_it_travels_out_of_band_and_arrives_as_it_was() -> None:
    data = federate(dataset(), "domains", {}, seed=0)
    buffers: list[pickle.PickleBuffer] = []
    stream = pickle.dumps(data, protocol=5, buffer_callback=buffers.append)
    assert any(b.raw().nbytes == data.x.nbytes for b in buffers)
    arrived = pickle.loads(stream, buffers=buffers)
    assert np.array_equal(arrived.x, data.x) and arrived.x.strides == data.x.strides
    assert np.shares_memory(arrived.x, data.x)
    assert arrived.partition_fingerprint == data.partition_fingerprint


def test_features_that_are_no_images_stay_as_they_are() -> None:
    x = np.arange(12.0, dtype=np.float32).reshape(6, 2)
    y = np.zeros(6, dtype=np.int64)
    flat = DataSet(
        "f", (Domain("a", "random", x[:4], y[:4], x[4:], y[4:]),), ("0",), (0.0,), (1.0,)
    )
    assert np.array_equal(Pooled.of(flat).x, x)
    assert Pooled.of(flat).x.flags.c_contiguous
