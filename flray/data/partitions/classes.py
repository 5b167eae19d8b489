"""Label skew: a few classes per client, or a distribution over a hierarchy of classes."""

from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from flray.data.partitions.dirichlet import Concentration, Count, cut
from flray.data.types import Rows
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
    al. 2021, pFedHN), so that holders of a class have similar, not equal, shares. The numbers of
    holders of two classes differ by at most one.

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
    """Let every client draw its samples from a personal distribution over superclasses, then over their classes.

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
    """Return the position that a point of [0, 1) falls on, among the shares whose `there` is true."""
    shares = shares * there
    if shares.sum() == 0:  # a tiny concentration has put everything on what is used up
        shares = there.astype(np.float64)
    ends = np.cumsum(shares)
    return int(
        np.searchsorted(ends, min(point * ends[-1], np.nextafter(ends[-1], 0)), side="right")
    )
