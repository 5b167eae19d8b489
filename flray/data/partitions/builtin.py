"""Partitions by chance, by Dirichlet shares, by domain, and by classes: shards and superclasses."""

import functools
from collections.abc import Callable
from typing import Annotated

import numpy as np
from pydantic import Field

from flray.data.types import Flags, Floats, Rows
from flray.errors import DataError
from flray.registry import register_partition
from flray.rng import numpy_generator

Count = Annotated[int, Field(ge=1, description="number of clients")]
Concentration = Annotated[
    float, Field(gt=0, description="Dirichlet concentration; smaller is more skewed")
]
MinSize = Annotated[int, Field(ge=0, description="fewest samples a client may get")]

TRIES = 1000


def cut(rows: Rows, shares: Floats) -> list[Rows]:
    """Cut rows into consecutive pieces in proportion to shares, without losing a row to rounding."""
    ends = np.rint(np.cumsum(shares / shares.sum()) * len(rows)).astype(np.int64)
    return np.split(rows, ends[:-1])


def dirichlet_draw(
    labels: Rows,
    clients: int,
    alpha: float,
    generator: np.random.Generator,
    *,
    balanced: bool = False,
) -> list[Rows]:
    """Cut each class by a draw from Dir(alpha, ..., alpha).

    Parameters
    ----------
    labels : ndarray of int64 [n]
        Labels.
    clients : int
        Number of parts.
    alpha : float
        Concentration.
    generator : numpy.random.Generator
        Shuffles the rows and draws the proportions.
    balanced : bool
        A part that holds n / clients samples already gets nothing of the classes that follow.

    Returns
    -------
    list of ndarray of int64
        Rows by part, unsorted.
    """
    parts: list[list[Rows]] = [[] for _ in range(clients)]
    held = np.zeros(clients, dtype=np.int64)
    for label in np.unique(labels):
        rows = generator.permutation(np.flatnonzero(labels == label))
        shares = generator.dirichlet(np.full(clients, alpha))
        if balanced:
            hungry = shares * (held < len(labels) / clients)
            # A tiny alpha can leave all of a class's mass on parts that are full: the emptiest then
            # takes it.
            shares = hungry if hungry.sum() > 0 else (held == held.min()).astype(np.float64)
        for k, rows_of_part in enumerate(cut(rows, shares)):
            parts[k].append(rows_of_part)
            held[k] += len(rows_of_part)
    return [np.concatenate(part) for part in parts]


def draw_until_large_enough(
    draw: Callable[[], list[Rows]],
    min_size: int,
    wanted: str,
    fewer: str,
    *,
    instead: str = "",
    counted: int | None = None,
    possible: bool = True,
) -> list[Rows]:
    """Draw again until the smallest part is large enough.

    Parameters
    ----------
    draw : callable
        Makes one split.
    min_size : int
        Fewest samples.
    wanted, fewer : str
        The requirement that every draw failed, and the parts that are too many, both for the message.
    instead : str
        Another partition, which has no such requirement.
    counted : int, optional
        The number of first parts that must be large enough; default all.
    possible : bool
        False if no draw can succeed; then no draw is made.

    Returns
    -------
    list of ndarray of int64
        All parts, each sorted.

    Raises
    ------
    DataError
        If no draw out of 1000 succeeds.
    """
    best = -1
    for _ in range(TRIES if possible else 0):
        parts = draw()
        smallest = min(len(part) for part in parts[:counted])
        if smallest >= min_size:
            return [np.sort(part) for part in parts]
        best = max(best, smallest)
    tried = f" ({TRIES} draws, best smallest client {best})" if best >= 0 else ""
    ways = [
        *(["a larger alpha"] if possible else []),
        f"fewer {fewer}",
        *(["a smaller min_size"] if min_size > 1 else []),  # each client needs one
        *([instead] if instead and possible else []),
    ]
    take = f"{', '.join(ways[:-1])} or {ways[-1]}" if len(ways) > 1 else ways[0]
    raise DataError(f"{wanted} at least min_size={min_size} samples{tried}; take {take}")


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
        f"partition quantity: no split of {len(labels)} samples with alpha={alpha} gives each of clients={clients}",
        "clients",
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

    The whole split is drawn again until the smallest client is large enough (Yurochkin et al. 2019;
    Hsu et al. 2019 draw over classes instead). Client sizes differ.

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
        f"partition dirichlet: no split of {len(labels)} samples with alpha={alpha} gives each of clients={clients}",
        "clients",
        instead="dirichlet-equal",
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
    Office-Caltech10 alpha 1.0 of 2, DomainNet alpha 2.0 of 5. A client's test samples have the label
    distribution of its training samples, because unused parts take their share of the test samples
    with them. With ``keep`` equal to ``parts`` all samples are used.

    Parameters
    ----------
    labels, domains : ndarray of int64 [n]
        Training labels and domain ids.
    seed : int
        The experiment's seed.
    alpha : float
        Concentration of the Dirichlet distribution.
    parts, keep : int
        The number of parts per domain, and the number of them that are clients; domain 0's clients
        come first.
    min_size : int
        Fewest samples a client may have.
    balanced : bool
        Whether a part that holds its share of the domain gets no samples of the later classes, so
        that sizes differ less (Fed-CO2, released code).

    Raises
    ------
    DataError
        If `keep` exceeds `parts`, or no draw out of 1000 gives every client `min_size` samples.
    """
    if keep > parts:
        raise DataError(
            f"partition domain-dirichlet: keep={keep} of parts={parts}; keep must be at most parts"
        )
    generator = numpy_generator(seed, "partition")
    clients: list[Rows] = []
    for domain in np.unique(domains):
        rows = np.flatnonzero(domains == domain)
        possible = keep * min_size <= len(rows)
        cuts = draw_until_large_enough(
            functools.partial(
                dirichlet_draw, labels[rows], parts, alpha, generator, balanced=balanced
            ),
            min_size,
            f"partition domain-dirichlet: no split of a domain's {len(rows)} samples with "
            f"alpha={alpha} and parts={parts} gives each of keep={keep}",
            "parts" if possible else "kept parts (keep)",
            counted=keep,
            possible=possible,
        )
        clients += [rows[part] for part in cuts[:keep]]
    return clients


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
    classes, parents = np.unique(np.stack([labels, superclasses]), axis=1)
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


def _pick(shares: Floats, there: Flags, point: float) -> int:
    """Return the position that a point of [0, 1) falls on, among the shares whose `there` is true."""
    shares = shares * there
    if shares.sum() == 0:  # a tiny concentration has put everything on what is used up
        shares = there.astype(np.float64)
    ends = np.cumsum(shares)
    return int(
        np.searchsorted(ends, min(point * ends[-1], np.nextafter(ends[-1], 0)), side="right")
    )
