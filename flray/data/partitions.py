"""Who gets which training samples: pure functions from labels and a seed to one list of rows per client.

A partition's positional parameters are filled in by name (``labels`` int64 [n], ``domains`` int64 [n] domain ids,
``seed``); it declares the ones it needs. Its keyword-only parameters are its options in the YAML file. It returns one
sorted int64 array of rows per client; no row twice. A partition that takes ``domains`` keeps clients to their domain,
any other one pools all domains.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from flray.errors import DataError
from flray.keys import numpy_generator
from flray.registry import register_partition

Rows = NDArray[np.int64]
Count = Annotated[int, Field(ge=1, description="number of clients")]
Concentration = Annotated[float, Field(gt=0, description="Dirichlet concentration; smaller is more skewed")]

_TRIES = 1000


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


@register_partition("dirichlet")
def dirichlet(
    labels: Rows, seed: int, *, clients: Count = 10, alpha: Concentration = 0.5,
    min_size: Annotated[int, Field(ge=0, description="fewest samples a client may get")] = 1,
) -> list[Rows]:
    """Split each class over the clients in proportions drawn from Dir(alpha, ..., alpha).

    The whole split is redrawn until the smallest client is large enough (Yurochkin et al. 2019; Hsu et al. 2019
    draw over classes instead). Client sizes differ.

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

    Raises
    ------
    DataError
        If no draw out of 1000 gives every client `min_size` samples.
    """
    generator = numpy_generator(seed, "partition")
    largest = -1
    if clients * min_size <= len(labels):
        for _ in range(_TRIES):
            parts = _dirichlet_draw(labels, clients, alpha, generator)
            smallest = min(len(part) for part in parts)
            if smallest >= min_size:
                return [np.sort(part) for part in parts]
            largest = max(largest, smallest)
    raise DataError(
        f"partition dirichlet: no split of {len(labels)} samples with alpha={alpha} gives each of clients={clients} "
        f"at least min_size={min_size} samples"
        + (f" ({_TRIES} draws, best smallest client {largest})" if largest >= 0 else "")
        + "; take a larger alpha, fewer clients, a smaller min_size or dirichlet-equal"
    )


@register_partition("dirichlet-equal")
def dirichlet_equal(
    labels: Rows, seed: int, *, clients: Count = 20, alpha: Concentration = 0.2,
) -> list[Rows]:
    """Split by Dirichlet label proportions, then re-cut to equal client sizes (sizes differ by at most one).

    The clients' shuffled lists of one plain Dirichlet draw are put one after another and cut again into equal parts,
    as FedSKC's released code does; defaults are FedSKC's (20 clients, alpha 0.2).

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
    parts = _dirichlet_draw(labels, clients, alpha, generator)
    line = np.concatenate([generator.permutation(part) for part in parts])
    return [np.sort(part) for part in np.array_split(line, clients)]


@register_partition("pathological")
def pathological(
    labels: Rows, seed: int, *, clients: Count = 10,
    classes_per_client: Annotated[int, Field(ge=1, description="classes each client holds")] = 2,
) -> list[Rows]:
    """Give every client a few classes; every class has a holder and every sample is given away.

    A class is split over its holders in proportion to q ~ U(0.4, 0.6) drawn per holder (Shamsian et al. 2021, pFedHN),
    so that holders of a class have similar, not equal, shares. Classes are dealt so that no class has more than one
    holder more than another.

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
            f"partition pathological: clients={clients} with classes_per_client={classes_per_client} on {len(classes)} "
            f"classes; classes_per_client must be at most {len(classes)} and clients * classes_per_client at least "
            f"{len(classes)}, so that every class has a holder"
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
        for client, rows_of_client in zip(who, _cut(rows, generator.uniform(0.4, 0.6, len(who))), strict=True):
            parts[client].append(rows_of_client)
    return [np.sort(np.concatenate(part)) for part in parts]


@register_partition("domains")
def by_domain(
    labels: Rows, domains: Rows, seed: int, *,
    clients_per_domain: Annotated[int, Field(ge=1, description="clients that share one domain")] = 1,
) -> list[Rows]:
    """Make one client of each domain, or several with equal shares of each of the domain's classes.

    Parameters
    ----------
    labels, domains : ndarray of int64 [n]
        Training labels and domain ids.
    seed : int
        The experiment's seed.
    clients_per_domain : int
        How many clients a domain is split into; domain 0's clients come first.
    """
    generator = numpy_generator(seed, "partition")
    parts: list[Rows] = []
    for domain in np.unique(domains):
        rows = generator.permutation(np.flatnonzero(domains == domain))
        rows = rows[np.argsort(labels[rows], kind="stable")]
        parts += [np.sort(rows[first::clients_per_domain]) for first in range(clients_per_domain)]
    return parts


def _dirichlet_draw(labels: Rows, clients: int, alpha: float, generator: np.random.Generator) -> list[Rows]:
    parts: list[list[Rows]] = [[] for _ in range(clients)]
    for label in np.unique(labels):
        rows = generator.permutation(np.flatnonzero(labels == label))
        for part, rows_of_client in zip(parts, _cut(rows, generator.dirichlet(np.full(clients, alpha))), strict=True):
            part.append(rows_of_client)
    return [np.concatenate(part) for part in parts]


def _cut(rows: Rows, shares: NDArray[np.float64]) -> list[Rows]:
    """Cut rows into consecutive pieces in proportion to shares, without losing a row to rounding."""
    ends = np.rint(np.cumsum(shares / shares.sum()) * len(rows)).astype(np.int64)
    return np.split(rows, ends[:-1])
