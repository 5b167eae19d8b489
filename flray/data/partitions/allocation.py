"""What several partitions share: option types, cutting rows by shares, Dirichlet draws that leave nobody empty."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from flray.data.arrays import Rows
from flray.errors import DataError

Count = Annotated[int, Field(ge=1, description="number of clients")]
Concentration = Annotated[
    float, Field(gt=0, description="Dirichlet concentration; smaller is more skewed")
]
MinSize = Annotated[int, Field(ge=0, description="fewest samples a client may get")]

TRIES = 1000


def cut(rows: Rows, shares: NDArray[np.float64]) -> list[Rows]:
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
    remedy: str,
    *,
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
    wanted, remedy : str
        For the message: what no draw gave, and what to change.
    counted : int, optional
        Look at this many first parts only, default all.
    possible : bool
        False where no draw can succeed: none is made.

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
    raise DataError(f"{wanted} at least min_size={min_size} samples{tried}; {remedy}")
