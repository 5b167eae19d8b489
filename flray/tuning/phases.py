"""Plan the next batch of trials from the finished ones: tuning, then comparison, optionally until decided.

A batch runs to its end before the next one is planned. So the plan depends on the trials' histories
alone, and a sweep that is killed and resumed makes the same plan.
"""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from flray import rng
from flray.config.experiment import Config
from flray.config.loader import experiment_at
from flray.config.sweep import Tune
from flray.errors import FlrayError
from flray.metrics import AUTO, VALIDATION, lower_is_better
from flray.results.build_studies import compare_units
from flray.tuning.space import Phase, TrialSpec, Values, draw_of_data, first_values, trial_number
from flray.tuning.trial_store import ENDED_STATUSES, TrialFolder
from flray.tuning.units import STARTUP, Unit, units

Entry = TypeVar("Entry")
GENERATION = 5
"""Settings of an arm that Optuna suggests between two looks at scores."""


@dataclass(frozen=True)
class Batch:
    """Trials that must run before the next decision.

    Attributes
    ----------
    points : tuple of TrialSpec
        The trials, in the order that they begin in.
    until : int or None
        The number of rounds that they pause after; None: they run to the end.
    line : str
        A description of the batch for the user.
    """

    points: tuple[TrialSpec, ...]
    until: int | None
    line: str


class Phases:
    """Decides what a sweep with ``sweep.tune`` or ``sweep.until`` runs next.

    Parameters
    ----------
    config : Config
        The sweep.
    settings : sequence of dict
        The compared settings; not needed if ``sweep.tune`` is set.

    Attributes
    ----------
    points : dict of str to TrialSpec
        The trials by number: all that were run, and those that may be next.
    """

    def __init__(self, config: Config, settings: Sequence[Values] = ()) -> None:
        self._config, self._until = config, config.sweep.until
        self.points: dict[str, TrialSpec] = {}
        self._is_tuned, self._tune = config.sweep.tune is not None, config.sweep.tune or Tune()
        self._tunings = config.sweep.repeat.tuning or 1
        once = units(config) if self._is_tuned else [Unit(one, {}) for one in settings]
        # Each tuning has units of its own, which choose without looking at the others.
        self._units = [replace(one, repetition=r) for r in range(self._tunings) for one in once]
        self._compared_units = len(once)

    def next(self, sweep: Path) -> Batch | None:
        """Return the next batch; None where all is done.

        Parameters
        ----------
        sweep : Path
            The sweep's folder.
        """
        return self._tuning(sweep) or self._comparison(sweep)

    def probes(self) -> Iterator[TrialSpec]:
        """Yield a trial of everything that is compared, with the first value of each domain, to be checked."""
        for unit in self._units[: self._compared_units]:
            first = first_values(unit.space)
            yield self._spec(0, unit, first, self._config.sweep.seeds[0], "comparison", 0)

    @property
    def most(self) -> int:
        """How many trials there will be at most."""
        seeds = self._until.at_most if self._until else len(self._config.sweep.seeds)
        tuned = sum(unit.budget(self._tune) for unit in self._units)
        return tuned * len(self._tune.seeds) + self._compared_units * seeds

    # Tuning

    def _draw_seed(self, repetition: int) -> int:
        """Return the seed of the settings that a tuning draws."""
        seed = self._config.sweep.seed
        return rng.key(seed, "sampling", extra=f"tuning/{repetition}") if repetition else seed

    @cached_property
    def _tuning_seeds(self) -> list[list[int]]:
        """The tuning seeds of each repetition: the next free ones for each."""
        given = list(self._tune.seeds)
        free = (n for n in itertools.count(max(given) + 1) if n not in self._config.sweep.seeds)
        return [given, *([next(free) for _ in given] for _ in range(self._tunings - 1))]

    @cached_property
    def _most(self) -> int:
        return max((unit.budget(self._tune) for unit in self._units), default=0)

    @cached_property
    def _generations(self) -> list[tuple[int, int]]:
        most = self._most
        if self._tune.search != "optuna":
            return [(0, most)]
        ends = [*range(STARTUP, most, GENERATION), most]
        return list(zip([0, *ends[:-1]], ends, strict=True))

    @cached_property
    def _rungs(self) -> list[int]:
        """The rounds that end a rung: the worse settings stop there. Empty without a scheduler."""
        found, scheduler = [], self._tune.scheduler
        rung = float(scheduler.grace_period) if scheduler else math.inf
        while math.isfinite(rung) and round(rung) < self._config.experiment.rounds:
            found.append(round(rung))
            rung *= scheduler.reduction_factor if scheduler else 1
        return list(dict.fromkeys(found))

    def _tuning(self, sweep: Path) -> Batch | None:
        for start, stop in self._generations:
            entries = [
                (u, k)
                for k in range(start, stop)
                for u, unit in enumerate(self._units)
                if k < unit.budget(self._tune)
            ]
            trials = self._candidates(sweep, entries, start)
            alive = entries
            for rung in (*self._rungs, None):
                todo = [
                    point
                    for entry in alive
                    for point in trials[entry]
                    if not has_reached(sweep, point, rung)
                ]
                if todo:
                    where = "to the end" if rung is None else f"to round {rung}"
                    return Batch(
                        tuple(todo),
                        rung,
                        f"tuning: settings {start + 1} to {stop} of each arm, {len(todo)} trials {where}",
                    )
                if rung is not None:
                    alive = self._halve(sweep, alive, trials, rung)
        return None

    def _candidates(
        self, sweep: Path, entries: Sequence[tuple[int, int]], start: int
    ) -> dict[tuple[int, int], list[TrialSpec]]:
        """Return the trials of a generation's settings: read from the folder if they exist, otherwise suggested.

        A suggestion depends on the scores of earlier generations and on the settings before it.
        """
        before = [
            [self._tuned(sweep, u, i) for i in range(min(start, unit.budget(self._tune)))]
            for u, unit in enumerate(self._units)
        ]
        past = [
            [(tuned, self._score(sweep, u, i)) for i, tuned in enumerate(settings)]
            for u, settings in enumerate(before)
        ]
        found = {}
        for u, k in entries:
            unit, index = self._units[u], self._tuned_index(u, k)
            if self._folder(sweep, u, k).exists:
                tuned = self._tuned(sweep, u, k)
            else:
                tuned = unit.suggest(
                    self._tune, self._draw_seed(unit.repetition), k, past[u], before[u], self._mode
                )
            before[u].append(tuned)
            found[u, k] = [
                self._spec(index + s, unit, tuned, seed, "tuning", unit.repetition)
                for s, seed in enumerate(self._tuning_seeds[unit.repetition])
            ]
        return found

    def _folder(self, sweep: Path, u: int, k: int, s: int = 0) -> TrialFolder:
        return TrialFolder(sweep, trial_number(self._tuned_index(u, k) + s))

    def _tuned(self, sweep: Path, u: int, k: int) -> Values:
        folder = self._folder(sweep, u, k)
        setting = folder.identity["setting"]
        if missing := self._units[u].space.keys() - setting.keys():
            raise FlrayError(
                f"{folder.path / 'run.json'}: found nothing for {min(missing)!r} in setting, which "
                "is not what was written; restore it"
            )
        return {path: setting[path] for path in self._units[u].space}

    def _tuned_index(self, u: int, k: int) -> int:
        return (k * len(self._units) + u) * len(self._tune.seeds)

    @property
    def _mode(self) -> str:
        """The direction of the metric that settings are chosen by; that of ``sweep.metric`` may be another."""
        metric, sweep = self._tune.metric, self._config.sweep
        if lower_is_better(metric) or metric in (AUTO, VALIDATION) or lower_is_better(sweep.metric):
            return "min" if lower_is_better(metric) else "max"
        return sweep.mode

    def _score(
        self, sweep: Path, u: int, k: int, rung: int | None = None, whole: bool = False
    ) -> float:
        """Return a setting's mean score over the seeds; NaN if a seed has no score.

        Parameters
        ----------
        sweep, u, k : Path, int, int
            The sweep's folder, the unit's index, and the setting's index in the unit.
        rung : int, optional
            The last round that counts; by default all rounds count.
        whole : bool
            Whether the score is NaN unless every trial has run to the end.
        """
        scores = []
        for s in range(len(self._tune.seeds)):
            folder = self._folder(sweep, u, k, s)
            if folder.status == "failed" or (whole and folder.status != "finished"):
                return math.nan
            scores.append(folder.last_score(math.inf if rung is None else rung))
        return math.fsum(scores) / len(scores)

    def _best_first(self, scores: Mapping[Entry, float]) -> list[Entry]:
        """Return the entries that have a score, the best first."""
        scored = [entry for entry, score in scores.items() if not math.isnan(score)]
        return sorted(scored, key=lambda entry: scores[entry], reverse=self._mode == "max")

    def _halve(
        self,
        sweep: Path,
        alive: Sequence[tuple[int, int]],
        trials: dict[tuple[int, int], list[TrialSpec]],
        rung: int,
    ) -> list[tuple[int, int]]:
        """Return the best part of each unit's settings; the others' trials are stopped."""
        assert self._tune.scheduler is not None
        kept = set()
        for u in range(len(self._units)):
            mine = [entry for entry in alive if entry[0] == u]
            good = self._best_first({entry: self._score(sweep, *entry, rung) for entry in mine})
            kept |= set(good[: math.ceil(len(mine) / self._tune.scheduler.reduction_factor)])
            if not good:  # nothing has been evaluated so far
                kept |= {
                    entry
                    for entry in mine
                    if all(TrialFolder(sweep, p.number).status != "failed" for p in trials[entry])
                }
        # One that was stopped here before does not replace one that has failed since.
        kept -= {
            entry
            for entry in kept
            for folder in (TrialFolder(sweep, point.number) for point in trials[entry])
            if folder.status == "stopped" and folder.rounds_recorded() <= rung
        }
        for entry in alive:
            for point in trials[entry] if entry not in kept else ():
                TrialFolder(sweep, point.number).stop()
        return [entry for entry in alive if entry in kept]

    def chosen(self, sweep: Path) -> dict[int, Values]:
        """Return the best finished setting of each unit; units without a finished setting are missing."""
        found: dict[int, Values] = {}
        for u, unit in enumerate(self._units):
            count = unit.budget(self._tune)
            good = self._best_first({k: self._score(sweep, u, k, whole=True) for k in range(count)})
            if good or not count:
                found[u] = self._tuned(sweep, u, good[0]) if good else {}
        return found

    # Comparison

    def _seed(self, position: int) -> int:
        """Return the seed at a position: first those of the file, then unused numbers from 0."""
        given = self._config.sweep.seeds
        if position < len(given):
            return given[position]
        used = {*given, *(itertools.chain(*self._tuning_seeds) if self._is_tuned else ())}
        unused = (number for number in itertools.count() if number not in used)
        return next(itertools.islice(unused, position - len(given), None))

    def _compared(self, u: int, tuned: Values, position: int) -> TrialSpec:
        first = self._tuned_index(0, self._most) + position * self._compared_units
        index, seed = first + u % self._compared_units, self._seed(position)
        return self._spec(index, self._units[u], tuned, seed, "comparison", position)

    def _comparison(self, sweep: Path) -> Batch | None:
        chosen = self.chosen(sweep)
        until = self._until
        count = len(self._config.sweep.seeds) if until is None else until.at_least
        todo = [
            point
            for position in range(count)
            for u, tuned in chosen.items()
            if self._units[u].repetition == position % self._tunings
            and not has_reached(sweep, point := self._compared(u, tuned, position), None)
        ]
        if todo or until is None:
            line = f"comparison: {len(todo)} trials at {count} seeds"
            if until is not None and len(self._config.sweep.seeds) > count:
                line += " (sweep.until.at_least), at further ones of sweep.seeds until decided"
            return Batch(tuple(todo), None, line) if todo else None
        points = {
            (u, position): self._compared(u, tuned, position)
            for u, tuned in chosen.items()
            for position in range(until.at_most)
        }
        ended = {
            u: next(
                (p for p in range(until.at_most) if not has_reached(sweep, points[u, p], None)),
                until.at_most,
            )
            for u in chosen
        }
        pairs, seconds = compare_units(sweep, {point.number: u for (u, _), point in points.items()})
        undecided = [(first, second) for first, second, one in pairs if not one.verdict]
        wanted: dict[tuple[int, int], float] = {}
        for first, second in undecided:
            position, cost = min(ended[first], ended[second]), seconds[first] + seconds[second]
            for u in (first, second):
                if ended[u] == position < until.at_most:
                    wanted[u, position] = min(cost, wanted.get((u, position), math.inf))
        if not wanted:
            return None
        order = sorted(wanted, key=lambda one: (wanted[one], one))
        return Batch(
            tuple(points[one] for one in order),
            None,
            f"comparison: {len(undecided)} of {len(pairs)} pairs are not decided, "
            f"{len(order)} more trials",
        )

    def _spec(
        self, index: int, unit: Unit, tuned: Values, seed: int, phase: Phase, position: int
    ) -> TrialSpec:
        """Return a trial of a unit; its position among the seeds, or its tuning, decides on its draw of the data."""
        setting = {**unit.setting, **tuned}
        draw = draw_of_data(self._config, setting, position)
        point = TrialSpec(
            trial_number(index),
            setting,
            seed,
            experiment_at(self._config, {**setting, **draw, "seed": seed}),
            phase,
            unit.setting if self._is_tuned else None,
            unit.repetition,
            draw,
        )
        self.points[point.number] = point
        return point


def metric_of(config: Config, point: TrialSpec) -> str:
    """Return the metric that a trial is scored by; it may differ between tuning and comparison."""
    tune = config.sweep.tune
    return config.sweep.metric if tune is None or point.phase == "comparison" else tune.metric


def has_reached(sweep: Path, point: TrialSpec, rung: int | None) -> bool:
    """Return whether a trial has ended, or got to a round."""
    folder = TrialFolder(sweep, point.number)
    if not folder.exists:
        return False
    ended = folder.status in ENDED_STATUSES
    return ended or (rung is not None and folder.rounds_recorded() >= rung)
