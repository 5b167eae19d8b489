"""Settings that are compared under one measure on the same data, and the question that a sweep was registered with."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from flray.errors import FlrayError, nearest
from flray.metrics import is_share
from flray.records.directory import flatten_settings
from flray.results import ResultSet, sequential
from flray.results.paired import METHOD, Added, Difference, Failed, Levels, Rule, Values, compare
from flray.results.ranks import Ranks, rank

DRAWS, PARTITIONS, TUNINGS = "draws of the data", "partitions", "tunings"
"""Levels of repetition, see `flray.results.paired.Levels`; members are empty texts where nothing is known of them."""


@dataclass(frozen=True)
class Study:
    """Settings that are compared with each other.

    Attributes
    ----------
    place : str
        The data or circumstances that they have in common; empty if there is only one place.
    measure : str
        The compared measure; shares are in percent.
    values : mapping
        By setting, the values by seed.
    reference : str, optional
        The setting that all others are compared with; default: all pairs.
    rule : Rule, optional
        The rule for adding seeds, if they were added until pairs were decided.
    failed : mapping
        See `flray.results.paired.Failed`.
    looks, levels : mapping
        See `flray.results.paired.Added` and `flray.results.paired.Levels`.
    afterwards : bool
        Whether the reference was chosen when the values were there: it may be the best or the worst
        by chance. Then tests and intervals are corrected for all pairs.
    partitions : mapping
        By seed and setting, the SHA-256 of who held which samples, if it was tracked.
    lower : bool
        Whether less is better.
    """

    place: str
    measure: str
    values: Values
    reference: str | None = None
    rule: Rule | None = None
    failed: Failed = field(default_factory=dict)
    looks: Added = field(default_factory=dict)
    levels: Levels = field(default_factory=dict)
    afterwards: bool = False
    partitions: Mapping[Any, Mapping[str, str]] = field(default_factory=dict)
    lower: bool = False

    @property
    def unit(self) -> str:
        """``points`` of percent, or nothing."""
        held = [one for seeds in self.values.values() for one in seeds.values()]
        return "points" if is_share(self.measure) and all(one <= 100 for one in held) else ""

    @cached_property
    def differences(self) -> list[Difference]:
        """The comparisons."""
        reference = self.reference if self.reference in self.values else None
        more = (self.rule, self.failed, self.looks, self.levels, self.afterwards)
        return compare(self.values, self.lower, reference, *more)

    @property
    def means(self) -> dict[str, float]:
        """Mean over the seeds of each setting, best first."""
        found = {name: float(np.mean(list(one.values()))) for name, one in self.values.items()}
        return dict(sorted(found.items(), key=lambda item: item[1] if self.lower else -item[1]))

    @property
    def survived(self) -> "Study":
        """The same without the seeds that a compared setting failed at."""
        gone = {seed for name in self.values for seed in self.failed.get(name, ())}
        kept = {
            name: {seed: value for seed, value in one.items() if seed not in gone}
            for name, one in self.values.items()
        }
        return replace(self, values={name: one for name, one in kept.items() if one})

    @cached_property
    def winner(self) -> str:
        """The setting that is better than every other, among all pairs and without a doubt; empty if none is."""
        best = next(iter(self.means), "")
        rivals = replace(self, reference=best, afterwards=True).differences
        return best if rivals and all(one.verdict == "worse" and one.sure for one in rivals) else ""


@dataclass(frozen=True)
class Studies:
    """All comparisons of a result set.

    Attributes
    ----------
    each : list of Study
        By place and measure.
    left_out : list of str
        Settings that cannot be compared, with the reason.
    registered : str or None
        The reference that was chosen before there were values; None: all pairs were to be compared.
    closed : bool
        Whether ``sweep.until`` would be refused or ask something else: a search or a scheduler chose
        the settings, or repetitions differ in draws of the data, partitions or tunings.
    """

    each: list[Study] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    registered: str | None = None
    closed: bool = False

    @cached_property
    def ranks(self) -> dict[str, "Ranks"]:
        """By measure, the ranks over the places."""
        found = {}
        for measure in dict.fromkeys(study.measure for study in self.each):
            same = [study for study in self.each if study.measure == measure]
            ranks = rank({study.place: study.survived.means for study in same}, same[0].lower)
            if ranks is None:
                continue
            places = [set(study.levels.get(DRAWS, {}).values()) - {""} for study in same]
            if any(one & other for one, other in itertools.combinations(places, 2)):
                ranks = replace(ranks, p=math.nan, critical=math.inf)
            failed = {name for study in same for name in study.failed}
            found[measure] = replace(ranks, failed=tuple(n for n in ranks.names if n in failed))
        return found

    def title(self, study: Study) -> str:
        """Return the place of one of them, and its measure if they have several."""
        several = len({one.measure for one in self.each}) > 1
        return " · ".join(filter(None, [study.place, study.measure if several else ""]))

    @property
    def method(self) -> str:
        """How they are compared, in words."""
        kinds = {one.last_look > 0: None for one in self._differences if one.sequential}
        named = [sequential.PLANNED if planned else sequential.OPEN for planned in sorted(kinds)]
        looked = sequential.METHOD.format(" or ".join(named))
        if all(one.sequential for one in self._differences):
            return looked if named else METHOD
        return f"{METHOD}; where seeds were added after a look, {looked}" if named else METHOD

    @property
    def _differences(self) -> list[Difference]:
        return [one for study in self.each for one in study.differences]

    def frame(self) -> pd.DataFrame:
        """Return a row per pair: place, measure, and the fields of `flray.results.paired.Difference`."""
        rows = [
            {"place": study.place, "measure": study.measure, **vars(one), "sure": one.sure}
            for study in self.each
            for one in study.differences
        ]
        names = {"mean": "difference", "corrected": "p_corrected"}
        table = pd.DataFrame(rows)
        ends = sequential.share_interval(table["improvement"] * table["seeds"], table["seeds"])
        table["improvement_low"], table["improvement_high"] = ends
        left_out = ["lower", "pairs", "alpha", "doubt", "freedom", "farthest"]
        if all(study.rule is None for study in self.each):
            left_out.append("margin")
        return table.rename(columns=names).drop(columns=left_out)

    def against(self, reference: str | None, where: str = "reference") -> "Studies":
        """Return the comparisons with one setting.

        Parameters
        ----------
        reference : str or None
            Its name; without one all pairs are compared. One that was not registered spares no
            correction, see `Study`.
        where : str
            The place that names it, which the error shows.

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
        late = reference != self.registered
        each = [replace(one, reference=reference, afterwards=late) for one in self.each]
        return replace(self, each=each)


def behind_best(studies: Sequence[Study]) -> dict[str, NDArray[np.float64]]:
    """Return each setting's distance from the best one at every place and seed, smallest first.

    Parameters
    ----------
    studies : sequence of Study
        Studies of one measure, one per place. Settings that some place lacks do not count, nor do
        seeds that a setting lacks.
    """
    names = (
        [name for name in studies[0].values if all(name in study.values for study in studies)]
        if studies
        else []
    )
    behind = [pd.DataFrame()]
    for study in studies:
        values = pd.DataFrame({name: study.values[name] for name in names}, dtype=float)
        values = values.where(np.isfinite(values)).dropna()
        best = values.min(axis=1) if study.lower else values.max(axis=1)
        behind.append(values.rsub(best, axis=0).abs())
    whole = pd.concat(behind)
    return {name: np.sort(whole[name]) for name in names if len(whole)}


PARTITION_SEED = "partition.seed"

_OF_SWEEP = ("metric", "mode", "places", "reference", "repeat", "seeds", "until")
_PARTS = (*(f"sweep.{name}" for name in _OF_SWEEP), "evaluation.last", "evaluation.protocol")
"""Settings that make up the question, or that hold such settings."""
AFTERWARDS = (
    "the reference {} was chosen afterwards, so tests and intervals are corrected for all pairs"
)


def registered_question(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that make up the question of a sweep.

    Parameters
    ----------
    settings : mapping
        The sweep's settings by path, as recorded when it started.
    """
    return {
        path: value
        for path, value in settings.items()
        if any(path == part or path.startswith(f"{part}.") for part in _PARTS)
    }


def registered_reference(source: ResultSet) -> str | None:
    """Return the reference that a sweep registered; None if it asked for all pairs."""
    now = (source.config.get("sweep") or {}).get("reference")
    found = source.registered.get("sweep.reference", str(now))
    return None if found == str(None) else found


def question_lines(source: ResultSet, found: Studies) -> Iterator[str]:
    """Yield the registered question, and how the report differs from it, unless nothing is compared.

    Parameters
    ----------
    source : ResultSet
        The sweep.
    found : Studies
        The comparisons of its report.
    """
    if not source.registered and any(one.afterwards for one in found.each):
        yield AFTERWARDS.format(found.each[0].reference)
    if not found.each or not source.registered:
        return
    reference = registered_reference(source)
    asked = f"all against {reference}" if reference else "all pairs"
    if margin := source.registered.get("sweep.until.margin"):
        most = source.registered.get("sweep.until.at_most", "")
        asked += f", until decided at a margin of {margin} or at {most} seeds"
    taken = sum(bool(trial.taken_over) for trial in source.trials)
    if taken:
        asked += f"; when it was asked, {taken} of {len(source.trials)} runs had ended elsewhere"
    differs = "; ".join(_differences(source, found, reference))
    yield f"not as registered ({asked}): {differs}" if differs else f"as registered: {asked}"


def forecast(found: Studies, seconds: float, difference: float) -> Iterator[str]:
    """Yield by measure the seeds, trials and hours that it takes to see a difference.

    Parameters
    ----------
    found : Studies
        The comparisons of a pilot: the same settings at a few seeds.
    seconds : float
        Mean training time of one of its trials.
    difference : float
        In the unit of the measure, for shares points of percent.
    """
    for measure in dict.fromkeys(study.measure for study in found.each):
        studies = [study for study in found.each if study.measure == measure]
        pairs = [one for study in studies for one in study.differences if one.std > 0]
        if any(one.repeated for one in pairs):
            yield f"{measure}: not known, because seeds of the pilot share draws of the data or tunings"
            continue
        if not pairs:
            yield f"{measure}: not known, because the pilot has no pair with two seeds that vary"
            continue
        std = math.sqrt(sum(one.std**2 for one in pairs) / len(pairs))
        freedom = min(one.seeds for one in pairs) - 1
        level = sequential.ALPHA / max(one.pairs for one in pairs)
        count, few, many = (
            sequential.seeds_to_detect(one, difference, level)
            for one in (
                std,
                *(sequential.uncertain_std(std, freedom, chance) for chance in sequential.UNSURE),
            )
        )
        unit = f" {studies[0].unit}" if studies[0].unit else ""
        unit = unit.removesuffix("s") if difference == 1 else unit
        head = f"{measure}: a difference of {difference:g}{unit} would probably be seen (4 times in 5) "
        settings = sum(len(study.values) for study in studies)
        if count is None:
            yield f"{head}with more than 1,000 seeds of {settings} settings"
            continue
        most = "over 1,000" if many is None else str(many)
        text = f"{head}with {count} seeds ({few} to {most}): {settings * count} trials"
        if math.isfinite(hours := settings * seconds / 3600):
            longest = "more" if many is None else f"{hours * many:.2g}"
            least = f"{hours * (few or count):.2g}"
            text += f", {hours * count:.2g} hours of training ({least} to {longest})"
        yield f"{text}; mean deviation of the differences {std:.2g} at {freedom + 1} seeds"


def _differences(source: ResultSet, found: Studies, reference: str | None) -> Iterator[str]:
    shown = found.each[0].reference
    if shown is None and reference is not None:
        yield f"{reference} has no values, so all pairs are compared"
    elif shown != reference:
        yield AFTERWARDS.format(shown)
    evaluation = source.config["experiment"]["evaluation"]
    now = dict(flatten_settings(source.config.get("sweep") or {}, "sweep."))
    now |= flatten_settings(evaluation, "evaluation.")
    for path, before in source.registered.items():
        if path != "sweep.reference" and now.get(path, before) != before:
            yield f"{path} is {now[path]} and was {before}"
