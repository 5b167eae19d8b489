"""A few classes per client."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from flray.data.arrays import Rows
from flray.data.partitions.allocation import Count, cut
from flray.errors import DataError
from flray.registry import register_partition
from flray.rng import numpy_generator


@register_partition("pathological")
def pathological(
    labels: Rows,
    seed: int,
    *,
    clients: Count = 10,
    classes_per_client: Annotated[int, Field(ge=1, description="classes each client holds")] = 2,
) -> list[Rows]:
    """Give every client a few classes; every class has a holder and every sample is given away.

    A class is split over its holders in proportion to q ~ U(0.4, 0.6) drawn per holder (Shamsian et
    al. 2021, pFedHN), so that holders of a class have similar, not equal, shares. Classes are dealt
    so that no class has more than one holder more than another.

    Parameters
    ----------
    labels : ndarray of int64 [n]
        Training labels.
    seed : int
        The experiment's seed.
    clients : int
        Number of clients.
    classes_per_client : int
        Classes each client holds.

    Raises
    ------
    DataError
        If a client cannot hold that many classes, or the clients together cannot hold every class.
    """
    classes = np.unique(labels)
    if classes_per_client > len(classes) or clients * classes_per_client < len(classes):
        raise DataError(
            f"partition pathological: clients={clients} with "
            f"classes_per_client={classes_per_client} on {len(classes)} classes; "
            f"classes_per_client must be at most {len(classes)} and clients * classes_per_client "
            f"at least {len(classes)}, so that every class has a holder"
        )
    generator = numpy_generator(seed, "partition")
    holders: list[list[int]] = [[] for _ in classes]
    for client in range(clients):
        fewest_first = sorted(generator.permutation(len(classes)), key=lambda c: len(holders[c]))
        for c in fewest_first[:classes_per_client]:
            holders[c].append(client)
    parts: list[list[Rows]] = [[] for _ in range(clients)]
    for label, who in zip(classes, holders, strict=True):
        rows = generator.permutation(np.flatnonzero(labels == label))
        for client, rows_of_client in zip(
            who, cut(rows, generator.uniform(0.4, 0.6, len(who))), strict=True
        ):
            parts[client].append(rows_of_client)
    return [np.sort(np.concatenate(part)) for part in parts]
