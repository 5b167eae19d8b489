"""Label skew over a hierarchy of classes."""

from __future__ import annotations

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from flray.data.arrays import Rows
from flray.data.partitions.allocation import Concentration, Count
from flray.errors import DataError
from flray.registry import register_partition
from flray.rng import numpy_generator


@register_partition("pachinko")
def pachinko(
    labels: Rows,
    superclasses: Rows,
    seed: int,
    *,
    clients: Count = 100,
    alpha: Concentration = 0.3,
    beta: Annotated[
        float, Field(gt=0, description="Dirichlet concentration over the classes of a superclass")
    ] = 10.0,
) -> list[Rows]:
    """Let every client draw its samples from its own distribution over superclasses, then over their classes.

    A client has one Dir(alpha, ..., alpha) over the superclasses and one Dir(beta, ..., beta) over
    the classes of each of them; for each sample it draws a superclass, then one of its classes, and
    takes a sample of that class that nobody has yet. A class that is used up leaves the client's
    distribution, as does a superclass without classes left (pachinko allocation, Reddi et al. 2021,
    appendix). Defaults are Fed-CO2's on CIFAR-100. Sizes differ by at most one and every sample is
    given away.

    Parameters
    ----------
    labels, superclasses : ndarray of int64 [n]
        Class and superclass of every training sample; a class belongs to one superclass.
    seed : int
        The experiment's seed.
    clients : int
        Number of clients.
    alpha, beta : float
        Concentrations over superclasses and over the classes of one.

    Raises
    ------
    DataError
        If a class has two superclasses.
    """
    pairs = np.unique(np.stack([labels, superclasses]), axis=1)
    classes, parents = pairs
    if len(np.unique(classes)) < len(classes):
        raise DataError(
            "partition pachinko: a class has samples of two superclasses; each class must have one"
        )
    generator = numpy_generator(seed, "partition")
    stacks = [generator.permutation(np.flatnonzero(labels == label)) for label in classes]
    left = np.array([len(stack) for stack in stacks])
    children = [np.flatnonzero(parents == parent) for parent in np.unique(parents)]
    left_of_parents = np.array([left[group].sum() for group in children])
    clients_rows: list[Rows] = []
    for part in np.array_split(np.arange(len(labels)), clients):
        coarse = generator.dirichlet(np.full(len(children), alpha))
        fine = [generator.dirichlet(np.full(len(group), beta)) for group in children]
        taken = np.empty(len(part), dtype=np.int64)
        for i, (first, second) in enumerate(generator.random((len(part), 2))):
            parent = _pick(coarse, left_of_parents > 0, first)
            chosen = children[parent][_pick(fine[parent], left[children[parent]] > 0, second)]
            left[chosen] -= 1
            left_of_parents[parent] -= 1
            taken[i] = stacks[chosen][left[chosen]]
        clients_rows.append(np.sort(taken))
    return clients_rows


def _pick(shares: NDArray[np.float64], there: NDArray[np.bool_], point: float) -> int:
    """Return the position that a point of [0, 1) falls on when the shares of what is not there are left out."""
    shares = shares * there
    if shares.sum() == 0:  # a tiny concentration has put everything on what is used up
        shares = there.astype(np.float64)
    ends = np.cumsum(shares)
    return int(
        np.searchsorted(ends, min(point * ends[-1], np.nextafter(ends[-1], 0)), side="right")
    )
