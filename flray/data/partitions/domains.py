"""Clients that keep to one domain each."""

from __future__ import annotations

import functools
from typing import Annotated

import numpy as np
from pydantic import Field

from flray.data.arrays import Rows
from flray.data.partitions.allocation import (
    Concentration,
    MinSize,
    dirichlet_draw,
    draw_until_large_enough,
)
from flray.errors import DataError
from flray.registry import register_partition
from flray.rng import numpy_generator


@register_partition("domains")
def by_domain(
    labels: Rows,
    domains: Rows,
    seed: int,
    *,
    clients_per_domain: Annotated[
        int, Field(ge=1, description="clients that share one domain")
    ] = 1,
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


@register_partition("domain-dirichlet")
def domain_dirichlet(
    labels: Rows,
    domains: Rows,
    seed: int,
    *,
    alpha: Concentration = 0.3,
    parts: Annotated[int, Field(ge=1, description="parts a domain is cut into")] = 3,
    keep: Annotated[
        int,
        Field(ge=1, description="parts of each domain that become clients; nobody has the rest"),
    ] = 1,
    min_size: MinSize = 1,
    balanced: Annotated[
        bool, Field(description="a part that holds its equal share gets no further class")
    ] = False,
) -> list[Rows]:
    """Cut each domain into parts by Dirichlet label proportions and keep one part, or several, as clients.

    Fed-CO2's label and feature skew (appendix A) keeps one part: Digits alpha 0.3 of 3 parts,
    Office-Caltech10 alpha 1.0 of 2, DomainNet alpha 2.0 of 5. A client is tested on its own label
    distribution, because the parts that nobody has take their share of the test samples with them.
    With ``keep`` equal to ``parts`` all samples are used.

    Parameters
    ----------
    labels, domains : ndarray of int64 [n]
        Training labels and domain ids.
    seed : int
        The experiment's seed.
    alpha : float
        Concentration of the Dirichlet distribution.
    parts, keep : int
        How many parts are cut, and how many of them are clients; domain 0's clients come first.
    min_size : int
        Fewest samples a client may have.
    balanced : bool
        Go through the classes in order and leave out of the rest a part that holds its share of the
        domain already, so that sizes differ less (Fed-CO2, released code).

    Raises
    ------
    DataError
        If more parts are to be kept than there are, or no draw out of 1000 gives the kept ones
        `min_size` samples.
    """
    if keep > parts:
        raise DataError(
            f"partition domain-dirichlet: keep={keep} of parts={parts}; keep must be at most parts"
        )
    generator = numpy_generator(seed, "partition")
    clients: list[Rows] = []
    for domain in np.unique(domains):
        rows = np.flatnonzero(domains == domain)
        cuts = draw_until_large_enough(
            functools.partial(
                dirichlet_draw, labels[rows], parts, alpha, generator, balanced=balanced
            ),
            min_size,
            f"partition domain-dirichlet: no split of a domain's {len(rows)} samples with "
            f"alpha={alpha} and parts={parts} gives each of keep={keep}",
            "take a larger alpha, fewer parts or a smaller min_size",
            counted=keep,
            possible=keep * min_size <= len(rows),
        )
        clients += [rows[part] for part in cuts[:keep]]
    return clients
