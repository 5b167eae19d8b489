"""A small part of a data set, to try things out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from flray import rng
from flray.data.types import DataSet, Labels


def take_subset(dataset: DataSet, most: int) -> DataSet:
    """Return a data set with at most `most` training and `most` test samples of each domain, drawn by key.

    Parameters
    ----------
    dataset : DataSet
        Public samples stay as they are.
    most : int
        At least 1. Every class keeps at least one sample where `most` allows it.
    """

    def drawn(labels: Labels, what: str) -> NDArray[np.int64]:
        order = rng.numpy_generator(0, "sampling", extra=f"subset/{what}").permutation(len(labels))
        flat = labels.reshape(len(labels), -1)[:, 0]
        _, first = np.unique(flat[order], return_index=True)
        rest = np.setdiff1d(np.arange(len(order)), first)
        return np.sort(order[np.concatenate([np.sort(first), rest])[:most]])

    domains = []
    for domain in dataset.domains:
        train, test = (
            drawn(domain.train_y, f"{domain.name}/train"),
            drawn(domain.test_y, f"{domain.name}/test"),
        )
        domains.append(
            replace(
                domain,
                train_x=domain.train_x[train],
                train_y=domain.train_y[train],
                test_x=domain.test_x[test],
                test_y=domain.test_y[test],
            )
        )
    return replace(dataset, domains=tuple(domains))
