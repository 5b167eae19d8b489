"""Tune schedulers that survive an interrupted sweep, and Optuna's suggestions."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ray.tune.schedulers import ASHAScheduler, FIFOScheduler
from ray.tune.search import Searcher

from flray import rng
from flray.config.experiment import Config, Experiment
from flray.config.sweep import Choice, Domain, Grid, LogUniform, RandInt, Uniform
from flray.errors import FlrayError
from flray.tuning.space import TrialSpec, Values
from flray.tuning.tune_types import EarlyStopRule, Report

TIME = "training_iteration"
"""The count of rounds in a trial's result."""
MAX_INFEASIBLE = 50
"""Consecutive infeasible suggestions before the search gives up."""
Scores = Sequence[tuple[int, float]]


class _PastTrial:
    """A trial that ended before this session."""

    def __init__(self, name: str) -> None:
        self.trial_id = self._name = name

    def __str__(self) -> str:
        return self._name


class EarlyStopping(FIFOScheduler):  # type: ignore[misc]
    """One of Tune's stopping rules per group of comparable trials, across sessions.

    Scores from before an interruption are reported to the rules again; otherwise the first trials
    after a resume would have none to be compared with.

    Parameters
    ----------
    make : callable
        Creates the rule of a group.
    group : callable
        Returns a trial's group, given its number.
    past : mapping of str to sequence of (int, float)
        Rounds and scores of trials from earlier sessions.
    ended : sequence of str
        Those of them that will not run again.
    """

    def __init__(
        self,
        make: Callable[[], EarlyStopRule],
        group: Callable[[str], str],
        past: Mapping[str, Scores],
        ended: Sequence[str],
    ) -> None:
        super().__init__()
        self._make, self._group, self._past = make, group, past
        self._rules: dict[str, EarlyStopRule] = {}
        for name in ended:
            self.on_trial_add(None, _PastTrial(name))

    def on_trial_add(self, controller: object, trial: object) -> None:
        """Add a trial with its scores of earlier sessions; decisions on those were made then."""
        rule = self._rule(trial)
        rule.on_trial_add(controller, trial)
        for round_, score in self._past.get(str(trial), ()):
            rule.on_trial_result(controller, trial, {TIME: round_, "score": score})

    def on_trial_result(self, controller: object, trial: object, result: Report) -> str:
        """Return the decision of the group's rule."""
        return str(self._rule(trial).on_trial_result(controller, trial, result))

    def on_trial_complete(self, controller: object, trial: object, result: Report) -> None:
        """Notify the group's rule."""
        self._rule(trial).on_trial_complete(controller, trial, result)

    def on_trial_error(self, controller: object, trial: object) -> None:
        """Notify the group's rule."""
        self._rule(trial).on_trial_error(controller, trial)

    def on_trial_remove(self, controller: object, trial: object) -> None:
        """Notify the group's rule."""
        self._rule(trial).on_trial_remove(controller, trial)

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def _rule(self, trial: object) -> EarlyStopRule:
        group = self._group(str(trial))
        if group not in self._rules:
            self._rules[group] = self._make()
        return self._rules[group]


def comparison_group(experiment: Experiment) -> str:
    """Return a key of comparable trials: same method, data, network and seed."""
    content = experiment.model_dump(
        mode="json", include={"data", "partition", "model", "models", "seed"}
    )
    return json.dumps({**content, "algorithm": experiment.algorithm.name}, sort_keys=True)


def scheduler(
    config: Config,
    points: Mapping[str, TrialSpec],
    past: Mapping[str, Scores],
    ended: Sequence[str],
) -> EarlyStopping | None:
    """Return Tune's scheduler of a sweep, or None.

    Parameters
    ----------
    config : Config
        The sweep.
    points : mapping of str to TrialSpec
        The trials by number; a search that suggests adds to it.
    past : mapping of str to Scores
        See `EarlyStopping`.
    ended : sequence of str
        See `EarlyStopping`.
    """
    chosen, rounds = config.sweep.scheduler, config.experiment.rounds
    if chosen is None:
        return None

    def rule() -> EarlyStopRule:
        made: EarlyStopRule = ASHAScheduler(
            time_attr=TIME,
            metric="score",
            mode=config.sweep.mode,
            max_t=rounds,
            grace_period=min(chosen.grace_period, rounds),
            reduction_factor=chosen.reduction_factor,
        )
        return made

    def group(number: str) -> str:
        return comparison_group(points[number].experiment) if chosen.compared == "alike" else ""

    return EarlyStopping(rule, group, past, ended)


class OptunaSearch(Searcher):  # type: ignore[misc]
    """Suggestions of Optuna's tree-structured Parzen estimator, each repeated with every seed.

    Ray's wrapper inside a ``Repeater`` keeps its state in pickles as old as Tune's last save. This
    one receives all trials of the sweep's folder and therefore resumes after any kill. A suggestion
    depends on the sweep's seed, its number and the results reported before it. With one trial at a
    time, a resumed sweep suggests the same settings as an uninterrupted one; with several trials at
    a time, other trials may have ended by then.

    Parameters
    ----------
    config : Config
        The sweep.
    known : sequence of (dict, sequence of TrialSpec, sequence of float)
        Settings suggested before, in order: the setting, its remaining trials, and the last scores
        of its ended ones.
    make : callable
        Creates the trials of a new setting, given the number of earlier ones; returns those to be
        run, and the last scores of those that were taken over.
    describe : callable
        Returns Tune's configuration of a trial.
    """

    def __init__(
        self,
        config: Config,
        known: Sequence[tuple[Values, Sequence[TrialSpec], Sequence[float]]],
        make: Callable[[Values, int], tuple[Sequence[TrialSpec], Sequence[float]]],
        describe: Callable[[TrialSpec], dict[str, Any]],
    ) -> None:
        super().__init__(metric="score", mode=config.sweep.mode)
        self._config, self._make, self._describe = config, make, describe
        self._asked: list[_Asked] = []
        self._waiting: deque[tuple[_Asked, TrialSpec]] = deque()
        self._running: dict[str, _Asked] = {}
        for setting, left, scores in known:
            self._add(setting, left, scores)

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the next trial: another seed of the current setting, or a new setting."""
        while not self._waiting:
            if len(self._asked) >= self._config.sweep.samples:
                return str(Searcher.FINISHED)
            self._ask()
        asked, point = self._waiting.popleft()
        self._running[trial_id] = asked
        return self._describe(point)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Record a trial's last score; its setting counts once all its seeds have ended."""
        asked = self._running.pop(trial_id)
        asked.scores.append(float((result or {}).get("score", math.nan)))
        asked.open -= 1

    def save(self, checkpoint_path: str) -> None:
        """Do nothing: everything is in the trials' folders."""

    def restore(self, checkpoint_path: str) -> None:
        """Do nothing: everything is in the trials' folders."""

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def past(self) -> list[tuple[Values, float | None]]:
        """Return the settings with their mean scores: NaN if all trials failed, None while any trial remains."""
        return [(asked.setting, None if asked.open else asked.score) for asked in self._asked]

    def _ask(self) -> None:
        sweep, index = self._config.sweep, len(self._asked)
        # A single stream would restart at a resume and repeat the suggestions of the first session.
        seed = rng.key(sweep.seed, "sampling", extra=f"optuna/{index}")
        found = suggestions(self._config.space, self.past(), seed, sweep.mode)
        for attempt, setting in enumerate(found, start=1):
            try:
                self._add(setting, *self._make(setting, index))
                return
            except FlrayError:
                # Options of one method with another's name: not every combination is feasible.
                if attempt == MAX_INFEASIBLE:
                    raise

    def _add(self, setting: Values, left: Sequence[TrialSpec], scores: Sequence[float]) -> None:
        asked = _Asked(setting, list(scores), len(left))
        self._asked.append(asked)
        self._waiting.extend((asked, point) for point in left)


@dataclass
class _Asked:
    """A suggested setting: the last scores of its ended trials, and the number of the others."""

    setting: Values
    scores: list[float]
    open: int

    @property
    def score(self) -> float:
        """The mean of the scores; NaN if no trial brought one."""
        known = [score for score in self.scores if not math.isnan(score)]
        return sum(known) / len(known) if known else math.nan


def distributions(space: Mapping[str, Domain]) -> dict[str, Any]:
    """Return a space in Optuna's form; of grids and choices the indices of their values."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    found: dict[str, Any] = {}
    for path, domain in space.items():
        match domain:
            case Grid() | Choice():
                found[path] = CategoricalDistribution(range(len(values_of(domain))))
            case Uniform():
                found[path] = FloatDistribution(*domain.uniform)
            case LogUniform():
                found[path] = FloatDistribution(*domain.loguniform, log=True)
            case RandInt():
                found[path] = IntDistribution(domain.randint[0], domain.randint[1] - 1)
    return found


def values_of(domain: Grid | Choice) -> list[Any]:
    """Return the values of a grid or a choice."""
    return domain.grid if isinstance(domain, Grid) else domain.choice


def setting_of(space: Mapping[str, Domain], params: Mapping[str, Any]) -> Values:
    """Return the setting of Optuna's parameters."""
    return {
        path: values_of(domain)[params[path]] if isinstance(domain, Grid | Choice) else params[path]
        for path, domain in space.items()
    }


def params_of(space: Mapping[str, Domain], setting: Values) -> dict[str, Any]:
    """Return a setting as Optuna's parameters."""
    return {
        path: values_of(domain).index(setting[path])
        if isinstance(domain, Grid | Choice)
        else setting[path]
        for path, domain in space.items()
    }


def suggestions(
    space: Mapping[str, Domain], past: Sequence[tuple[Values, float | None]], seed: int, mode: str
) -> Iterator[Values]:
    """Yield settings of Optuna's tree-structured Parzen estimator; they depend on the arguments alone.

    Parameters
    ----------
    space : mapping of str to Domain
        The domains to search.
    past : sequence of (dict, float or None)
        Settings with their scores, in order: NaN of a failed one, None of one that still runs, whose
        surroundings are avoided.
    seed : int
        The seed of these suggestions; each replaces the one before.
    mode : {"max", "min"}
        Whether a score is better high or low.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        direction="maximize" if mode == "max" else "minimize",
        sampler=optuna.samplers.TPESampler(seed=seed % 2**32),
    )
    known, failed = distributions(space), optuna.trial.TrialState.FAIL
    for setting, score in past:
        if score is None:
            outcome: dict[str, Any] = {"state": optuna.trial.TrialState.RUNNING}
        else:
            outcome = {"state": failed} if math.isnan(score) else {"value": score}
        study.add_trial(
            optuna.trial.create_trial(
                params=params_of(space, setting), distributions=known, **outcome
            )
        )
    while True:
        asked = study.ask(known)
        yield setting_of(space, asked.params)
        study.tell(asked, state=failed)
