"""What makes training data scarce or noisy: pure functions from labels, domains and a seed to kept positions.

They combine with any partition. Every subset is nested: a milder shift keeps all that a stronger
one keeps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from flray.data.arrays import Rows
from flray.errors import ConfigError, nearest
from flray.rng import numpy_generator


def long_tail(labels: Rows, domains: Rows, seed: int, rho: float, num_classes: int) -> Rows:
    """Keep fewer of every later class of each domain.

    Parameters
    ----------
    labels, domains : ndarray of int64 [n]
        Class and domain of every sample.
    seed : int
        The experiment's seed.
    rho : float
        How many times smaller the last class is than the first.
    num_classes : int
        C.

    Returns
    -------
    ndarray of int64
        Sorted positions. Class c of a domain of n samples keeps ``floor(n / C * rho**(-c / (C -
        1)))`` (Cao et al. 2019), at least one and at most all it has.
    """
    kept = [np.empty(0, dtype=np.int64)]
    for domain in np.unique(domains):
        inside = domains == domain
        for label in np.unique(labels[inside]):
            rows = np.flatnonzero(inside & (labels == label))
            share = rho ** (-label / max(num_classes - 1, 1))
            # Added before rounding down: 500 / 100 must not become 4.
            size = max(1, int(inside.sum() / num_classes * share + 1e-6))
            order = numpy_generator(
                seed, "partition", extra=f"long-tail/{domain}/{label}"
            ).permutation(rows)
            kept.append(order[:size])
    return np.sort(np.concatenate(kept))


def private_sizes(domains: Rows, names: Sequence[str], seed: int, sizes: Mapping[str, int]) -> Rows:
    """Keep so many samples of single domains.

    Parameters
    ----------
    domains : ndarray of int64 [n]
        Domain id of every sample.
    names : sequence of str
        Domain names by id.
    seed : int
        The experiment's seed.
    sizes : mapping of str to int
        Samples to keep, by domain; domains that are not named keep all.

    Returns
    -------
    ndarray of int64
        Sorted positions.

    Raises
    ------
    ConfigError
        If there is no such domain, or it has fewer samples.
    """
    kept = []
    for name in sizes:
        if name not in names:
            raise ConfigError(
                f"experiment.shift.sizes.{name}",
                name,
                f"the domains are {', '.join(names)}{nearest(name, names)}",
            )
    for domain, name in enumerate(names):
        rows = np.flatnonzero(domains == domain)
        if name in sizes:
            if sizes[name] > len(rows):
                raise ConfigError(
                    f"experiment.shift.sizes.{name}",
                    str(sizes[name]),
                    f"at most the {len(rows)} training samples that split and long tail leave",
                )
            rows = numpy_generator(seed, "partition", extra=f"sizes/{name}").permutation(rows)[
                : sizes[name]
            ]
        kept.append(rows)
    return np.sort(np.concatenate(kept))


def used_share(rows: Rows, seed: int, client: int, ratio: float) -> Rows:
    """Return the share of a client's training rows that is used, at least one, sorted.

    Parameters
    ----------
    rows : ndarray of int64
        The client's training rows.
    seed, client : int
        The experiment's seed and the client's position.
    ratio : float
        In (0, 1].
    """
    if ratio == 1:
        return rows
    order = numpy_generator(seed, "partition", client=client, extra="ratio").permutation(rows)
    return np.sort(order[: max(1, round(ratio * len(rows)))])


def noise_levels(parts: Sequence[Rows], size: int, sigma: float) -> NDArray[np.float32]:
    """Return each sample's noise: ``sigma * i / (N - 1)`` for all samples of client i of N (Fed-CO2 F.3).

    Parameters
    ----------
    parts : sequence of ndarray of int64
        All rows of each client, test rows included.
    size : int
        Number of rows of the federation.
    sigma : float
        The last client's standard deviation, in units of normalised inputs. Fed-CO2 prints 5 to 20
        without a unit: on pixels from 0 to 255, 20 are ``20 / (255 * std)`` here, about 0.3.

    Returns
    -------
    ndarray of float32 [size]
        0 for rows that nobody has.
    """
    levels = np.zeros(size, dtype=np.float32)
    for i, rows in enumerate(parts):
        levels[rows] = sigma * i / max(len(parts) - 1, 1)
    return levels
