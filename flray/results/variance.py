"""Shares of the variance: partitions and seeds of a setting, tunings, draws of the data and runs of a difference."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from flray.results import ResultSet, measures
from flray.results.paired import Levels
from flray.results.study import DRAWS, PARTITION_SEED, TUNINGS, Studies

_PIVOTS = 4000
"""Draws of the intervals of shares."""
_CROSSED = ("who holds what", "run's seed", "both together")
_NESTED = {TUNINGS: "tuning", DRAWS: "draw of the data"}


@dataclass(frozen=True)
class Variance:
    """Components of the variance of values, by the things that varied.

    Attributes
    ----------
    name : str
        The setting, or the two whose difference it is.
    design : str
        How many varied of each, such as ``3 partitions x 2 seeds``.
    parts : mapping of str to float
        The components. Estimates below zero are set to zero.
    intervals : mapping of str to (float, float)
        95 % intervals of their shares.
    counts : mapping of str to int
        How many there are of each, if the mean over them is what is compared.
    """

    name: str
    design: str
    parts: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def shares(self) -> dict[str, float]:
        """The components as shares of their sum; NaN if nothing varies."""
        total = sum(self.parts.values()) or math.nan
        return {name: part / total for name, part in self.parts.items()}

    @property
    def widest(self) -> str:
        """The component that most of the mean's variance is of, with its share; more of it narrow an interval most."""
        of_mean = {name: self.parts[name] / count for name, count in self.counts.items()}
        part, name = max((part, name) for name, part in of_mean.items())
        return f"{name} ({100 * part / total:.0f} %)" if (total := sum(of_mean.values())) else ""


def _estimated(
    name: str,
    design: str,
    parts: Sequence[str],
    squares: Sequence[float],
    freedom: Sequence[int],
    weights: Sequence[float],
    less: Sequence[int | None],
) -> Variance:
    """Estimate components, each a weight times a mean square, less the mean square that it holds besides.

    The intervals are generalised ones (Weerahandi 1993): mean squares over their pivots, chi-squared
    by degrees of freedom, are draws of the expected ones.
    """
    pivots = np.random.default_rng(0).chisquare(freedom, size=(_PIVOTS, len(freedom))) / freedom
    drawn = np.vstack([squares, squares / pivots])
    rest = np.stack([0 * drawn[:, 0] if of is None else drawn[:, of] for of in less], axis=1)
    found = ((drawn - rest) * weights).clip(min=0.0)
    total = found[1:].sum(axis=1, keepdims=True)
    ends = np.quantile(found[1:] / np.where(total > 0, total, 1), (0.025, 0.975), axis=0).T.tolist()
    shares = {part: (low, high) for part, (low, high) in zip(parts, ends, strict=True)}
    return Variance(name, design, dict(zip(parts, found[0].tolist(), strict=True)), shares)


def split_variance(name: str, values: Mapping[int, Mapping[int, float]]) -> Variance | None:
    """Split a setting's variance into that between partitions, between the run's seeds, and of their interaction.

    Parameters
    ----------
    name : str
        The setting.
    values : mapping
        By the partition's seed, the values by the run's seed.

    Returns
    -------
    Variance or None
        None unless two partitions and two seeds have a finite value at every combination.
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
    by_row, by_column = table.mean(axis=1), table.mean(axis=0)
    rest = table - by_row[:, None] - by_column[None, :] + table.mean()
    both = (rows - 1) * (columns - 1)
    squares = (
        columns * float(by_row.var(ddof=1)),
        rows * float(by_column.var(ddof=1)),
        float((rest**2).sum()) / both,
    )
    freedom, weights = (rows - 1, columns - 1, both), (1 / columns, 1 / rows, 1.0)
    design = f"{rows} partitions x {columns} seeds"
    return _estimated(name, design, _CROSSED, squares, freedom, weights, (2, 2, None))


def nested_variance(name: str, values: Mapping[Any, float], levels: Levels) -> Variance | None:
    """Split the variance of values into that between the members of levels, each level within the one before.

    Parameters
    ----------
    name : str
        The name of the values.
    values : mapping
        The values by seed.
    levels : mapping
        By level and seed, the member; see `flray.results.paired.Levels`.

    Returns
    -------
    Variance or None
        None unless two things vary, one within the other, and a level's members have equally many runs.
    """
    if not (runs := len(values)):
        return None
    data, members = np.array(list(values.values())), 1
    fitted = np.full(runs, data.mean())
    groups = {
        _NESTED[level]: np.unique([of.get(seed, "") for seed in values], return_inverse=True)[1]
        for level, of in levels.items()
        if level in _NESTED
    }
    parts: list[str] = []
    squares, freedom, sizes = [], [], []
    before = np.zeros(runs, int)
    for part, own in sorted(
        [*groups.items(), ("run", np.arange(runs))], key=lambda x: len({*x[1]})
    ):
        count, outer = np.bincount(own), members
        if (
            len(count) == outer
        ):  # one for each of these, so that their shares are not to be told apart
            parts[-1:] = [f"{one} and {part}" for one in parts[-1:]]
            continue
        if np.ptp(count) or len({*zip(before.tolist(), own.tolist(), strict=True)}) > len(count):
            return None
        means, before = (np.bincount(own, data) / count)[own], own
        members = len(count)
        parts.append(part)
        sizes.append(members)
        freedom.append(members - outer)
        squares.append(float(((means - fitted) ** 2).sum()) / freedom[-1])
        fitted = means
    if len(parts) < 2 or members < runs:
        return None
    design = ", ".join(f"{size} x {part}" for part, size in zip(parts, sizes, strict=True))
    less = [*range(1, len(parts)), None]
    found = _estimated(name, design, parts, squares, freedom, [s / runs for s in sizes], less)
    return replace(found, counts=dict(zip(parts, sizes, strict=True)))


def variances(source: ResultSet, studies: Studies) -> Iterator[Variance]:
    """Yield settings' components if ``partition.seed`` and ``seed`` vary, and differences' if data or tunings do.

    Parameters
    ----------
    source : ResultSet
        The sweep; only finished trials count.
    studies : Studies
        The comparisons.
    """
    found: dict[str, dict[int, dict[int, float]]] = {}
    for trial in source.trials if PARTITION_SEED in source.varying else ():
        own = trial.setting.get(PARTITION_SEED)
        if own is not None and trial.status == "finished" and len(trial.history):
            name = source.label(trial, without=PARTITION_SEED) or trial.method
            by_seed = found.setdefault(name, {}).setdefault(int(own), {})
            by_seed[trial.seed] = measures.value(trial, "auto")
    yield from filter(None, (split_variance(name, values) for name, values in found.items()))
    for study in studies.each:
        for pair in study.differences:
            one, other = study.values[pair.first], study.values[pair.second]
            gaps = {seed: one[seed] - other[seed] for seed in one if seed in other}
            finite = {seed: gap for seed, gap in gaps.items() if math.isfinite(gap)}
            place = f"{study.place}: " if study.place else ""
            name = f"{place}{pair.first} less {pair.second}"
            if (split := nested_variance(name, finite, study.levels)) is not None:
                yield split
