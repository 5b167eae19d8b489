"""Settings that are compared with each other: under one measure, on the same data."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import pandas as pd

from flray.errors import FlrayError, nearest
from flray.metrics.direction import is_share, lower_is_better
from flray.results import sequential
from flray.results.paired import METHOD, Difference, Failed, Looks, Rule, Values, compare
from flray.results.ranks import Ranks, rank


@dataclass(frozen=True)
class Study:
    """Settings that are compared with each other.

    Attributes
    ----------
    place : str
        The data or circumstances they have in common; empty where there is one alone.
    measure : str
        What is compared; shares are in percent.
    values : mapping
        By setting, the values by seed.
    reference : str, optional
        The setting that all others are compared with; default: all pairs.
    rule : Rule, optional
        Where seeds were added until pairs were decided.
    failed : mapping
        See `flray.results.paired.Failed`.
    looks : mapping
        See `flray.results.paired.Looks`.
    """

    place: str
    measure: str
    values: Values
    reference: str | None = None
    rule: Rule | None = None
    failed: Failed = field(default_factory=dict)
    looks: Looks = field(default_factory=dict)

    @property
    def lower(self) -> bool:
        """Whether less is better."""
        return lower_is_better(self.measure)

    @property
    def unit(self) -> str:
        """``points`` of percent, or nothing."""
        held = [one for seeds in self.values.values() for one in seeds.values()]
        return "points" if is_share(self.measure) and all(0 <= one <= 100 for one in held) else ""

    @cached_property
    def differences(self) -> list[Difference]:
        """The comparisons."""
        reference = self.reference if self.reference in self.values else None
        return compare(self.values, self.lower, reference, self.rule, self.failed, self.looks)

    @property
    def means(self) -> dict[str, float]:
        """Mean over the seeds of each setting, best first."""
        found = {name: float(np.mean(list(one.values()))) for name, one in self.values.items()}
        return dict(sorted(found.items(), key=lambda item: item[1] if self.lower else -item[1]))


@dataclass(frozen=True)
class Studies:
    """All comparisons of a result set.

    Attributes
    ----------
    each : list of Study
        By place and measure.
    left_out : list of str
        Settings that cannot be compared, with the reason.
    """

    each: list[Study] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    @cached_property
    def ranks(self) -> dict[str, Ranks]:
        """By measure, the ranks over the places."""
        found = {}
        for measure in dict.fromkeys(study.measure for study in self.each):
            same = [study for study in self.each if study.measure == measure]
            ranks = rank({study.place: study.means for study in same}, same[0].lower)
            if ranks is not None:
                found[measure] = ranks
        return found

    @property
    def method(self) -> str:
        """How they are compared, in words."""
        kinds = {one.sequential for study in self.each for one in study.differences}
        if len(kinds) == 1:
            return sequential.METHOD if True in kinds else METHOD
        return f"{METHOD}; where seeds were added after a look, {sequential.METHOD}"

    def frame(self) -> pd.DataFrame:
        """Return a row per pair: place, measure, and the fields of `flray.results.paired.Difference`."""
        rows = [
            {"place": study.place, "measure": study.measure, **vars(one)}
            for study in self.each
            for one in study.differences
        ]
        names = {"mean": "difference", "corrected": "p_corrected"}
        left_out = ["lower", "pairs", "alpha"]
        if all(study.rule is None for study in self.each):
            left_out.append("margin")
        return pd.DataFrame(rows).rename(columns=names).drop(columns=left_out)

    def against(self, reference: str | None, where: str = "reference") -> Studies:
        """Return the comparisons with one setting.

        Parameters
        ----------
        reference : str or None
            Its name; without one all pairs are compared.
        where : str
            What names it, for the error.

        Raises
        ------
        FlrayError
            If no study has such a setting.
        """
        if reference is None or not self.each:
            return self
        names = list(dict.fromkeys(name for study in self.each for name in study.values))
        if reference not in names:
            raise FlrayError(
                f"{where}: found {reference!r}{nearest(reference, names)}; one of "
                f"{', '.join(map(repr, names))}"
            )
        return Studies([replace(one, reference=reference) for one in self.each], self.left_out)
