"""Tune schedulers that survive an interrupted sweep, and Optuna's suggestions."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
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


def _failed_state() -> Any:
    import optuna

    return optuna.trial.TrialState.FAIL


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
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._config, self._make, self._describe = config, make, describe
        direction = "maximize" if config.sweep.mode == "max" else "minimize"
        self._study = optuna.create_study(direction=direction, sampler=self._sampler(0))
        self._asked: dict[int, Any] = {}
        self._scores: dict[int, list[float]] = {}
        self._open: dict[int, int] = {}
        self._waiting: deque[tuple[int, TrialSpec]] = deque()
        self._running: dict[str, int] = {}
        self._count = 0
        for setting, left, scores in known:
            self._study.enqueue_trial(params_of(self._config.space, setting))
            self._ask((left, scores))

    def suggest(self, trial_id: str) -> dict[str, Any] | str | None:
        """Return the next trial: another seed of the current setting, or a new setting."""
        while not self._waiting:
            if self._count >= self._config.sweep.samples:
                return str(Searcher.FINISHED)
            self._ask()
        index, point = self._waiting.popleft()
        self._running[trial_id] = index
        return self._describe(point)

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Report a setting's mean score to Optuna once all its seeds have ended."""
        index = self._running.pop(trial_id)
        self._scores[index].append(float((result or {}).get("score", math.nan)))
        self._open[index] -= 1
        self._tell(index)

    def save(self, checkpoint_path: str) -> None:
        """Do nothing: everything is in the trials' folders."""

    def restore(self, checkpoint_path: str) -> None:
        """Do nothing: everything is in the trials' folders."""

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def _sampler(self, index: int) -> Any:
        """Return a sampler keyed by the suggestion.

        A single stream would restart at a resume and repeat the suggestions of the first session.
        """
        import optuna

        seed = rng.key(self._config.sweep.seed, "sampling", extra=f"optuna/{index}")
        return optuna.samplers.TPESampler(seed=seed % 2**32)

    def _ask(self, known: tuple[Sequence[TrialSpec], Sequence[float]] | None = None) -> None:
        index, self._count = self._count, self._count + 1
        self._study.sampler = self._sampler(index)
        for attempt in range(MAX_INFEASIBLE):
            asked = self._asked[index] = self._study.ask(distributions(self._config.space))
            setting = setting_of(self._config.space, asked.params)
            try:
                trials, scores = self._make(setting, index) if known is None else known
                break
            except FlrayError:
                # Options of one method with another's name: not every combination is feasible.
                self._study.tell(asked, state=_failed_state())
                if attempt + 1 == MAX_INFEASIBLE:
                    raise
        self._scores[index], self._open[index] = list(scores), len(trials)
        self._waiting.extend((index, point) for point in trials)
        self._tell(index)

    def _tell(self, index: int) -> None:
        if self._open[index]:
            return
        known = [score for score in self._scores[index] if not math.isnan(score)]
        if known:
            self._study.tell(self._asked[index], sum(known) / len(known))
        else:
            self._study.tell(self._asked[index], state=_failed_state())


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


def suggest(
    space: Mapping[str, Domain], past: Sequence[tuple[Values, float]], seed: int, mode: str
) -> Values:
    """Return the next setting of Optuna's tree-structured Parzen estimator; it depends on the arguments alone.

    Parameters
    ----------
    space : mapping of str to Domain
        The domains to search.
    past : sequence of (dict, float)
        Settings with their scores, in order; a failed setting has NaN.
    seed : int
        The seed of this suggestion.
    mode : {"max", "min"}
        Whether a score is better high or low.
    """
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        direction="maximize" if mode == "max" else "minimize",
        sampler=optuna.samplers.TPESampler(seed=seed % 2**32),
    )
    known = distributions(space)
    for setting, score in past:
        outcome = {"state": _failed_state()} if math.isnan(score) else {"value": score}
        study.add_trial(
            optuna.trial.create_trial(
                params=params_of(space, setting), distributions=known, **outcome
            )
        )
    return setting_of(space, study.ask(known).params)
