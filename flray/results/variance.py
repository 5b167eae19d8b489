"""How much of the variance is due to who holds what, and how much to initialisation and sampling.

Components of a two-way crossed design without replication, estimated from mean squares (Searle,
Casella and McCulloch, "Variance Components", Wiley 1992, section 4.3).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from flray.results import measures
from flray.results.result_set import ResultSet

PARTITION_SEED = "partition.seed"


@dataclass(frozen=True)
class Variance:
    """Components of the variance of a setting's values.

    Attributes
    ----------
    name : str
        The setting.
    partitions, seeds : int
        How many of each; every partition was run with every seed.
    partition, seed, both : float
        Variance between partitions, between the run's seeds, and what remains: how they act together.
        One that is estimated below zero is zero.
    """

    name: str
    partitions: int
    seeds: int
    partition: float
    seed: float
    both: float

    @property
    def shares(self) -> tuple[float, float, float]:
        """Partition, seed and both as shares of their sum; NaN where nothing varies."""
        total = self.partition + self.seed + self.both
        if not total:
            return math.nan, math.nan, math.nan
        return self.partition / total, self.seed / total, self.both / total


def split_variance(name: str, values: Mapping[int, Mapping[int, float]]) -> Variance | None:
    """Estimate the components of a setting's variance.

    Parameters
    ----------
    name : str
        The setting.
    values : mapping
        By the partition's seed, the values by the run's seed.

    Returns
    -------
    Variance or None
        None with fewer than two of either at which every combination has a finite value.
    """
    seeds = [
        seed
        for seed in next(iter(values.values()), {})
        if all(math.isfinite(row.get(seed, math.nan)) for row in values.values())
    ]
    table = np.array([[row[seed] for seed in seeds] for row in values.values()])
    if len(values) < 2 or len(seeds) < 2:
        return None
    rows, columns = table.shape
    mean, by_row, by_column = table.mean(), table.mean(axis=1), table.mean(axis=0)
    rest = table - by_row[:, None] - by_column[None, :] + mean
    remaining = float((rest**2).sum()) / ((rows - 1) * (columns - 1))
    between_rows = columns * float(by_row.var(ddof=1))
    between_columns = rows * float(by_column.var(ddof=1))
    return Variance(
        name,
        rows,
        columns,
        max(0.0, (between_rows - remaining) / columns),
        max(0.0, (between_columns - remaining) / rows),
        remaining,
    )


def variances(source: ResultSet) -> list[Variance]:
    """Return the components of each setting of a sweep that varies ``partition.seed`` and ``seed``; else nothing.

    Parameters
    ----------
    source : ResultSet
        The sweep; trials that have not finished are left out.
    """
    found: dict[str, dict[int, dict[int, float]]] = {}
    if PARTITION_SEED not in source.varying():
        return []
    for trial in source.trials:
        own = trial.setting.get(PARTITION_SEED)
        if own is not None and trial.status == "finished" and len(trial.history):
            name = source.label(trial, without=PARTITION_SEED) or trial.method
            by_seed = found.setdefault(name, {}).setdefault(int(own), {})
            by_seed[trial.seed] = measures.value(trial, "auto")
    split = (split_variance(name, values) for name, values in found.items())
    return [one for one in split if one is not None]
