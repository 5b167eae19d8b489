"""Which of a sweep's pairs are decided, while seeds are added."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from flray.results import measures
from flray.results.build_studies import build_studies, place_and_name
from flray.results.load import load_folder
from flray.results.paired import Difference


@dataclass(frozen=True)
class Comparison:
    """The pairs of a sweep with ``sweep.until``, as its report has them.

    Attributes
    ----------
    differences : list of (int, int, Difference)
        What is compared by its number, and the comparison.
    seconds : mapping of int to float
        Mean training time of one trial of each.
    """

    differences: list[tuple[int, int, Difference]]
    seconds: Mapping[int, float]

    @classmethod
    def of(cls, sweep: Path, unit_of: Mapping[str, int]) -> Comparison:
        """Return what a sweep's finished trials say.

        Parameters
        ----------
        sweep : Path
            Its folder.
        unit_of : mapping of str to int
            By a trial's number, that of what it is one seed of.
        """
        source = load_folder(sweep, allow_empty=True)
        # By the primary metric, of a paper's suite too, whose columns are several measures.
        source = replace(source, config={**source.config, "paper": None})
        trials = [trial for trial in source.trials if trial.number in unit_of]
        units = {place_and_name(source, trial): unit_of[trial.number] for trial in trials}
        studies, reference = build_studies(source), source.config["sweep"].get("reference")
        if any(reference in study.values for study in studies.each):
            studies = studies.against(reference)
        times: dict[int, list[float]] = {unit: [] for unit in unit_of.values()}
        for trial in trials:
            times[unit_of[trial.number]].append(measures.total(trial, "time/round"))
        return cls(
            [
                (units[study.place, one.first], units[study.place, one.second], one)
                for study in studies.each
                for one in study.differences
            ],
            {unit: float(np.nanmean(found)) if found else 0.0 for unit, found in times.items()},
        )

    @property
    def pairs(self) -> int:
        """How many pairs there are."""
        return len(self.differences)

    @property
    def undecided(self) -> int:
        """How many of them are not decided."""
        return sum(1 for _ in self.open_pairs())

    def open_pairs(self) -> Iterator[tuple[int, int]]:
        """Yield the pairs that are not decided."""
        for first, second, one in self.differences:
            if not one.verdict:
                yield first, second
