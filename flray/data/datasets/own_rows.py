"""Samples of one's own with a label, a domain and perhaps a part each: cut into domains' training and test parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from flray.data.arrays import Array
from flray.data.types import Domain
from flray.errors import DataError
from flray.rng import numpy_generator

_TRAINING, _TEST = ("train", "training"), ("test", "testing")


@dataclass(frozen=True)
class Rows:
    """Samples before they are cut.

    Attributes
    ----------
    name : str
        The data set's.
    x : ndarray [n, ...]
        The samples.
    labels : sequence
        The class of each, of any one type that can be sorted.
    domains : sequence of str
        The domain of each.
    parts : sequence of str or None
        ``train`` or ``test`` of each, where the data say so.
    """

    name: str
    x: Array
    labels: Sequence[Any]
    domains: Sequence[str]
    parts: Sequence[str] | None = None


def domains_of(
    rows: Rows, share: float, seed: int, where: str
) -> tuple[list[Domain], tuple[str, ...]]:
    """Return the domains, by name, and the names of the classes.

    Parameters
    ----------
    rows : Rows
        The samples.
    share : float
        Of each class of a domain for test, where there are no parts; one at least in each part where
        a class has two samples of a domain.
    seed : int
        Which ones.
    where : str
        For messages.

    Raises
    ------
    DataError
        If a part is neither train nor test, or a domain has no sample of one, or there is one class.
    """
    numeric = all(isinstance(one, int | float) for one in rows.labels)
    found = sorted(set(rows.labels) if numeric else {str(one) for one in rows.labels})
    if len(found) < 2:
        raise DataError(
            f"data set {rows.name}: {where} has {len(found)} class{'es' * (not found)}; two at least are needed"
        )
    number = {one: place for place, one in enumerate(found)}
    y = np.array([number[one if numeric else str(one)] for one in rows.labels], dtype=np.int64)
    of_domain = np.array(rows.domains)
    test = _test_rows(rows, y, of_domain, share, seed, where)
    domains = []
    for name in sorted(set(rows.domains)):
        parts = []
        for part, chosen in (("training", ~test), ("test", test)):
            places = np.flatnonzero((of_domain == name) & chosen)
            if not len(places):
                raise DataError(
                    f"data set {rows.name}: {name!r} of {where} has no {part} samples; take it away, "
                    f"or join it with another"
                )
            parts += [np.ascontiguousarray(rows.x[places]), y[places]]
        domains.append(Domain(name, "real", *parts))
    return domains, tuple(str(one) for one in found)


def _test_rows(
    rows: Rows, y: Array, of_domain: Array, share: float, seed: int, where: str
) -> Array:
    test = np.zeros(len(y), dtype=bool)
    if rows.parts is not None:
        said = np.array([one.lower() for one in rows.parts])
        wrong = sorted(set(said.tolist()) - {*_TRAINING, *_TEST})
        if wrong:
            raise DataError(
                f"data set {rows.name}: {where} has the part {wrong[0]!r}; only train and test are known"
            )
        return np.isin(said, _TEST)
    for name in sorted(set(rows.domains)):
        for label in range(int(y.max()) + 1):
            places = np.flatnonzero((of_domain == name) & (y == label))
            key = f"{rows.name}/split/{name}/{label}"
            order = numpy_generator(seed, "data", extra=key).permutation(places)
            test[order[: min(max(round(share * len(places)), 1), max(len(places) - 1, 0))]] = True
    return test
