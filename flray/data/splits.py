"""The split into training, validation and test samples, and shifts that make training data scarce or noisy.

Shifts combine with any partition. Every subset is nested: a milder shift keeps all that a stronger
one keeps.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from flray.config.sections import SplitName
from flray.data.types import Rows, Singles, rows_by_number
from flray.errors import ConfigError, nearest
from flray.rng import numpy_generator

FEDBN_DIGITS = 743
"""FedBN's training images per client: a tenth of the training part of its smallest domain, USPS."""
FEDBN_PART = 743.8
"""Where its next tenth begins (data_preprocess.py, split)."""

FEDBN_SHARES = {"fedbn-office": (0.5, 0.4), "fedbn-domainnet": (0.05, 0.05)}
"""FedBN's shares of the smallest domain's training length: for training and for validation of every domain."""
LGMIX_VALIDATION = 0.25
"""LG-Mix's share of a domain's training part (med-air/HeteroPFL, get_datasets.py)."""


@dataclass(frozen=True)
class Division:
    """Rows of all domains' training parts followed by all their test parts.

    Attributes
    ----------
    fit : ndarray of int64
        The rows that the partition gives to clients, sorted.
    val, test : ndarray of int64
        The rows for validation and test, sorted. Empty if the clients divide their samples
        themselves.
    """

    fit: Rows
    val: Rows
    test: Rows


def divide(
    split: SplitName | tuple[float, float, float],
    labels: Rows,
    domains: Rows,
    num_train: int,
    names: Sequence[str],
    ratio: float = 1.0,
    ordered: bool = False,
) -> Division:
    """Return the division of a data set under a split.

    Parameters
    ----------
    split : str or three floats
        As in the configuration.
    labels, domains : ndarray of int64 [n]
        Class and domain of every row.
    num_train : int
        The first so many rows are the official training parts.
    names : sequence of str
        Domain names by id.
    ratio : float
        ``shift.ratio``; fedbn-digits takes so many times its number of training images.
    ordered : bool
        Whether parts and order are those of the authors' archive; otherwise seed 0 draws them.

    Raises
    ------
    ConfigError
        If a domain is too small for the split, or the ratio asks for more than there is.
    """
    rows = np.arange(len(labels), dtype=np.int64)
    none = rows[:0]
    if ratio > 1 and split != "fedbn-digits":
        raise ConfigError(
            "experiment.shift.ratio", str(ratio), "at most 1, except with split fedbn-digits"
        )
    if split == "official":
        return Division(rows[:num_train], none, rows[num_train:])
    if split == "fedbn-digits" and not ordered:
        return _fedbn_digits(labels, domains, names, ratio)
    if isinstance(split, str):
        return _by_length(split, domains, num_train, names, ratio, ordered)
    return Division(rows, none, none)


def by_client(
    rows: Rows, shares: tuple[float, float, float], seed: int, client: int
) -> tuple[Rows, Rows, Rows]:
    """Return a client's training, validation and test rows, each sorted.

    Parameters
    ----------
    rows : ndarray of int64 [n]
        All its samples.
    shares : three floats
        Sum to 1; validation and test get ``round(share * n)``, training the rest but at least one.
    seed, client : int
        The experiment's seed and the client's position.
    """
    order = numpy_generator(seed, "partition", client=client, extra="split").permutation(rows)
    test = min(round(shares[2] * len(rows)), len(rows) - 1)
    val = min(round(shares[1] * len(rows)), len(rows) - 1 - test)
    return np.sort(order[test + val :]), np.sort(order[test : test + val]), np.sort(order[:test])


def assign_test_samples(
    trains: Sequence[Rows], groups: Rows, test_groups: Rows, num_classes: int
) -> list[Rows]:
    """Assign test samples to clients so that each client is tested on what it trains on.

    Parameters
    ----------
    trains : sequence of ndarray of int64
        Each client's training rows.
    groups, test_groups : ndarray of int64 [n], [m]
        Group (domain * num_classes + class) of every training and test sample.
    num_classes : int
        Number of classes.

    Returns
    -------
    list of ndarray of int64
        Sorted rows of the test set per client; disjoint, together all of it. A group is assigned in
        proportion to the clients' training samples of it (largest remainder, ties to the client
        with the fewest test samples so far); a group without training samples in proportion to
        those of its domain, or else to the clients' sizes.
    """
    # A table of clients by groups would be huge where each client is a domain.
    of_row = np.repeat(np.arange(len(trains)), [len(train) for train in trains])
    held = groups[np.concatenate(trains)]
    order = np.argsort(held)
    of_row, held = of_row[order], held[order]
    owners = np.empty(len(test_groups), dtype=np.int64)
    assigned = np.zeros(len(trains), dtype=np.int64)
    for group, rows in rows_by_number(test_groups):
        domain = group // num_classes * num_classes
        for limits in ((group, group + 1), (domain, domain + num_classes), (0, held[-1] + 1)):
            first, last = np.searchsorted(held, limits)
            if first < last:
                break
        clients, counts = np.unique(of_row[first:last], return_counts=True)
        sizes = _largest_remainder(counts, len(rows), assigned[clients])
        assigned[clients] += sizes
        owners[rows] = np.repeat(clients, sizes)
    return np.split(np.argsort(owners, kind="stable"), np.cumsum(assigned)[:-1])


def _fedbn_digits(labels: Rows, domains: Rows, names: Sequence[str], ratio: float) -> Division:
    """Pool the official parts, cut 80 to 20 by class, and take 743 (times the ratio) for training; seed 0 always."""
    size, fits, tests = round(FEDBN_DIGITS * ratio), [], []
    for domain, name in enumerate(names):
        generator = numpy_generator(0, "partition", extra=f"fedbn-digits/{name}")
        rows = generator.permutation(np.flatnonzero(domains == domain))
        rows = rows[np.argsort(labels[rows], kind="stable")]
        # Every fifth of the rows sorted by class: a fifth of each class up to one sample.
        place = np.arange(len(rows)) % 5 == 4
        train = generator.permutation(rows[~place])
        if len(train) < size:
            raise _too_few(ratio, size, f"80 % of {name} are {len(train)}")
        fits.append(train[:size])
        tests.append(rows[place])
    return Division(
        np.sort(np.concatenate(fits)), np.empty(0, dtype=np.int64), np.sort(np.concatenate(tests))
    )


def _too_few(ratio: float, size: int, found: str) -> ConfigError:
    where, value = ("shift.ratio", str(ratio)) if ratio > 1 else ("split", "fedbn-digits")
    need = f"this needs {size} training images of each domain, and {found}"
    return ConfigError(f"experiment.{where}", value, need)


def _by_length(
    split: SplitName,
    domains: Rows,
    num_train: int,
    names: Sequence[str],
    ratio: float,
    ordered: bool,
) -> Division:
    """Take the first samples of each domain's training part for training, later ones for validation.

    In the authors' order these are the last ones, as in their code; otherwise seed 0 draws the order.
    """
    sizes = np.bincount(domains[:num_train], minlength=len(names))
    smallest = int(sizes.min())
    fits, vals = [], []
    for domain, (name, size) in enumerate(zip(names, sizes.tolist(), strict=True)):
        if split == "fedbn-digits":
            num_fit, num_val = int((FEDBN_PART if ratio >= 1 else FEDBN_DIGITS) * ratio), 0
            if size < num_fit:
                raise _too_few(ratio, num_fit, f"{name} has {size}")
        elif split == "lgmix-digits":
            num_val = int(size * LGMIX_VALIDATION)
            num_fit = size - num_val
        else:
            num_fit, num_val = (int(smallest * share) for share in FEDBN_SHARES[split])
        if not num_val and split != "fedbn-digits":
            why = f"{names[int(sizes.argmin())]} has {smallest} training samples, too few to validate on"
            raise ConfigError("experiment.split", split, why)
        rows = np.flatnonzero(domains[:num_train] == domain)
        if not ordered:
            generator = numpy_generator(0, "partition", extra=f"{split}/{name}")
            rows = generator.permutation(rows)
        fits.append(rows[:num_fit])
        first = len(rows) - num_val if ordered else num_fit
        vals.append(rows[first : first + num_val])
    test = np.arange(num_train, len(domains), dtype=np.int64)
    return Division(np.sort(np.concatenate(fits)), np.sort(np.concatenate(vals)), test)


def _largest_remainder(weights: Rows, total: int, so_far: Rows) -> Rows:
    """Split `total` into integers in proportion to integer weights."""
    quotas = weights * total
    sizes: Rows = quotas // weights.sum()
    by_remainder = np.lexsort((so_far, -(quotas % weights.sum())))
    sizes[by_remainder[: total - sizes.sum()]] += 1
    return sizes


def long_tail(
    labels: Rows, domains: Rows, seed: int, rho: float, num_classes: int, purpose: str = "long-tail"
) -> Rows:
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
    purpose : str
        The draw's key; another one for another part of the data.

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
                seed, "partition", extra=f"{purpose}/{domain}/{label}"
            ).permutation(rows)
            kept.append(order[:size])
    return np.sort(np.concatenate(kept))


def private_sizes(domains: Rows, names: Sequence[str], seed: int, sizes: Mapping[str, int]) -> Rows:
    """Keep a given number of samples of single domains.

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
        If a domain does not exist, or has fewer samples.
    """
    kept = []
    for name in sizes:
        if name not in names:
            why = f"the domains are {', '.join(names)}{nearest(name, names)}"
            raise ConfigError(f"experiment.shift.sizes.{name}", name, why)
    for domain, name in enumerate(names):
        rows = np.flatnonzero(domains == domain)
        if name in sizes:
            if sizes[name] > len(rows):
                why = f"at most the {len(rows)} training samples that split and long tail leave"
                raise ConfigError(f"experiment.shift.sizes.{name}", str(sizes[name]), why)
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
    order = numpy_generator(seed, "partition", client=client, extra="ratio").permutation(rows)
    return np.sort(order[: max(1, round(ratio * len(rows)))])


def noise_levels(parts: Sequence[Rows], size: int, sigma: float) -> Singles:
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
