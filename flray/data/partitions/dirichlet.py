"""All domains pooled: samples assigned at random, or sizes or classes by Dirichlet proportions."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from pydantic import Field

from flray.data.arrays import Rows
from flray.data.partitions.allocation import (
    Concentration,
    Count,
    MinSize,
    cut,
    dirichlet_draw,
    draw_until_large_enough,
)
from flray.registry import register_partition
from flray.rng import numpy_generator


@register_partition("iid")
def iid(labels: Rows, seed: int, *, clients: Count = 10) -> list[Rows]:
    """Deal shuffled samples to clients of equal size (sizes differ by at most one).

    Parameters
    ----------
    labels : ndarray of int64 [n]
        Training labels.
    seed : int
        The experiment's seed.
    clients : int
        Number of clients.
    """
    order = numpy_generator(seed, "partition").permutation(len(labels))
    return [np.sort(part) for part in np.array_split(order, clients)]


@register_partition("quantity")
def quantity(
    labels: Rows,
    seed: int,
    *,
    clients: Count = 10,
    alpha: Concentration = 0.5,
    min_size: MinSize = 1,
) -> list[Rows]:
    """Deal shuffled samples to clients of unequal size: shares drawn from Dir(alpha, ..., alpha), labels alike.

    Quantity skew of Li et al. (ICDE 2022, section IV-C), who take alpha 0.5.

    Parameters
    ----------
    labels : ndarray of int64 [n]
        Training labels; only their number counts.
    seed : int
        The experiment's seed.
    clients : int
        Number of clients.
    alpha : float
        Concentration of the Dirichlet distribution of the sizes.
    min_size : int
        Fewest samples a client may have.

    Raises
    ------
    DataError
        If no draw out of 1000 gives every client `min_size` samples.
    """
    generator = numpy_generator(seed, "partition")
    order = generator.permutation(len(labels))
    return draw_until_large_enough(
        lambda: cut(order, generator.dirichlet(np.full(clients, alpha))),
        min_size,
        f"partition quantity: no split of {len(labels)} samples with alpha={alpha} gives each of "
        f"clients={clients}",
        "take a larger alpha, fewer clients or a smaller min_size",
        possible=clients * min_size <= len(labels),
    )


@register_partition("dirichlet")
def dirichlet(
    labels: Rows,
    seed: int,
    *,
    clients: Count = 10,
    alpha: Concentration = 0.5,
    min_size: MinSize = 1,
    balanced: Annotated[
        bool, Field(description="who holds its equal share gets no further class")
    ] = False,
) -> list[Rows]:
    """Split each class over the clients in proportions drawn from Dir(alpha, ..., alpha).

    The whole split is draw_until_large_enough until the smallest client is large enough (Yurochkin et al. 2019; Hsu
    et al. 2019 draw over classes instead). Client sizes differ.

    Parameters
    ----------
    labels : ndarray of int64 [n]
        Training labels.
    seed : int
        The experiment's seed.
    clients : int
        Number of clients.
    alpha : float
        Concentration of the Dirichlet distribution.
    min_size : int
        Fewest samples a client may have.
    balanced : bool
        Go through the classes in order and leave out of the rest whoever holds n / clients samples
        already (Yurochkin et al. 2019, released code), so that sizes differ less.

    Raises
    ------
    DataError
        If no draw out of 1000 gives every client `min_size` samples.
    """
    generator = numpy_generator(seed, "partition")
    return draw_until_large_enough(
        lambda: dirichlet_draw(labels, clients, alpha, generator, balanced=balanced),
        min_size,
        f"partition dirichlet: no split of {len(labels)} samples with alpha={alpha} gives each of "
        f"clients={clients}",
        "take a larger alpha, fewer clients, a smaller min_size or dirichlet-equal",
        possible=clients * min_size <= len(labels),
    )


@register_partition("dirichlet-equal")
def dirichlet_equal(
    labels: Rows, seed: int, *, clients: Count = 20, alpha: Concentration = 0.2
) -> list[Rows]:
    """Split by Dirichlet label proportions, then re-cut to equal client sizes (sizes differ by at most one).

    The clients' shuffled lists of one plain Dirichlet draw are put one after another and cut again
    into equal parts, as FedSKC's released code does; defaults are FedSKC's (20 clients, alpha 0.2).

    Parameters
    ----------
    labels : ndarray of int64 [n]
        Training labels.
    seed : int
        The experiment's seed.
    clients : int
        Number of clients.
    alpha : float
        Concentration of the Dirichlet distribution.
    """
    generator = numpy_generator(seed, "partition")
    parts = dirichlet_draw(labels, clients, alpha, generator)
    line = np.concatenate([generator.permutation(part) for part in parts])
    return [np.sort(part) for part in np.array_split(line, clients)]
