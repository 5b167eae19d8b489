"""The search and the stopping rule of a sweep, which read what earlier sessions left, for Ray Tune."""

from __future__ import annotations

import json
import math
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ray.tune.schedulers import FIFOScheduler
from ray.tune.search import Searcher

from flray import rng
from flray.config.experiment import Config, Experiment
from flray.config.sweep import Choice, Domain, Grid, LogUniform, RandInt
from flray.errors import FlrayError
from flray.tuning.space import TrialSpec, Values, bounds, trial_specs, values_of
from flray.tuning.trial_store import ENDED_STATUSES, TrialFolder

MAX_INFEASIBLE = 50
"""Consecutive infeasible suggestions before the search gives up."""


class Asha(FIFOScheduler):  # type: ignore[misc]
    """Asynchronous successive halving of comparable trials, across sessions.

    At each rung a trial stops if its score is below the quantile of those that were there before.
    Tune's own scheduler forgets the trials of earlier sessions.

    Parameters
    ----------
    config : Config
        The sweep.
    points : mapping of str to TrialSpec
        The trials by number; a search that suggests adds to it.
    past : mapping of str to sequence of (int, float)
        Rounds and scores of trials from earlier sessions.
    """

    def __init__(
        self,
        config: Config,
        points: Mapping[str, TrialSpec],
        past: Mapping[str, Sequence[tuple[int, float]]],
    ) -> None:
        super().__init__()
        rule = config.sweep.scheduler
        assert rule is not None
        self._rule, self._points = rule, points
        self._sign = 1.0 if config.sweep.mode == "max" else -1.0
        self._reached: dict[tuple[str, int], dict[str, float]] = defaultdict(dict)
        rounds = config.experiment.rounds
        first = min(rule.grace_period, rounds)
        count = int(np.log(rounds / first) / np.log(rule.reduction_factor) + 1)
        self._rungs = [first * rule.reduction_factor**k for k in range(count)]
        for number, scores in past.items():  # decided on before
            for round_, score in scores:
                self._is_worse(number, round_, score)

    def on_trial_result(self, controller: object, trial: object, result: dict[str, Any]) -> str:
        """Return whether the trial continues."""
        worse = self._is_worse(str(trial), result["training_iteration"], result["score"])
        return str(self.STOP if worse else self.CONTINUE)

    def on_trial_complete(self, controller: object, trial: object, result: dict[str, Any]) -> None:
        """Record the last score."""
        self._is_worse(str(trial), result["training_iteration"], result["score"])

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def _is_worse(self, number: str, round_: int, score: float) -> bool:
        """Record a score at the highest rung that is new to the trial; return whether it stops there."""
        group = ""
        if self._rule.compared == "alike":
            group = comparison_group(self._points[number].experiment)
        for k, rung in reversed(list(enumerate(self._rungs))):
            reached = self._reached[group, k]
            if round_ >= rung and number not in reached:
                others = list(reached.values())
                reached[number] = value = self._sign * score
                quantile = 100 * (1 - 1 / self._rule.reduction_factor)
                return bool(others) and value < np.nanpercentile(others, quantile)
        return False


def comparison_group(experiment: Experiment) -> str:
    """Return a key of comparable trials: same method, data, network and seed."""
    content = experiment.model_dump(
        mode="json", include={"data", "partition", "model", "models", "seed"}
    )
    return json.dumps({**content, "algorithm": experiment.algorithm.name}, sort_keys=True)


class OptunaSearch(Searcher):  # type: ignore[misc]
    """Suggestions of Optuna's tree-structured Parzen estimator, each repeated with every seed.

    A suggestion depends on the sweep's seed, its number and the trials that have ended, which are
    read from their folders. So with one trial at a time, a resumed sweep suggests the same settings
    as an uninterrupted one; with several at a time, other trials may have ended by then.

    Parameters
    ----------
    config : Config
        The sweep.
    sweep : Path
        Its folder.
    points : dict of str to TrialSpec
        The trials suggested before, by number and in order; new ones are added.
    create : callable
        Creates the folders of a new setting's trials; raises if it is infeasible.
    describe : callable
        Returns Tune's configuration of a trial.
    """

    def __init__(
        self,
        config: Config,
        sweep: Path,
        points: dict[str, TrialSpec],
        create: Callable[[Sequence[TrialSpec]], object],
        describe: Callable[[TrialSpec], dict[str, Any]],
    ) -> None:
        super().__init__(metric="score", mode=config.sweep.mode)
        self._config, self._folder, self._points = config, sweep, points
        self._create, self._describe = create, describe
        self._scores: dict[str, float] = {}
        self._waiting = deque(p for p in points.values() if self._score(p) is None)

    def suggest(self, trial_id: str) -> dict[str, Any] | str:
        """Return the next trial: another seed of the current setting, or a new setting."""
        while not self._waiting:
            if len(self._points) >= self._config.sweep.samples * len(self._config.sweep.seeds):
                return str(Searcher.FINISHED)
            self._ask()
        return {"point": self._describe(self._waiting.popleft())}

    def on_trial_complete(
        self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False
    ) -> None:
        """Do nothing: everything is in the trials' folders."""

    def save(self, checkpoint_path: str) -> None:
        """Do nothing: everything is in the trials' folders."""

    def __getstate__(self) -> dict[str, Any]:
        return {}

    def past(self) -> list[tuple[Values, float | None]]:
        """Return the settings with their mean scores: NaN if all trials failed, None while any trial remains."""
        points, seeds = list(self._points.values()), len(self._config.sweep.seeds)
        found: list[tuple[Values, float | None]] = []
        for start in range(0, len(points), seeds):
            scores = [self._score(point) for point in points[start : start + seeds]]
            ended = [score for score in scores if score is not None]
            known = [score for score in ended if not math.isnan(score)]
            mean = sum(known) / len(known) if known else math.nan
            found.append((points[start].setting, mean if len(ended) == seeds else None))
        return found

    def _score(self, point: TrialSpec) -> float | None:
        """Return a trial's last score: NaN if it failed, None unless it has ended."""
        folder = TrialFolder(self._folder, point.number)
        if point.number not in self._scores and (status := folder.status) in ENDED_STATUSES:
            scores = folder.scores() if status != "failed" else []
            self._scores[point.number] = scores[-1][1] if scores else math.nan
        return self._scores.get(point.number)

    def _ask(self) -> None:
        sweep = self._config.sweep
        index = len(self._points) // len(sweep.seeds)
        # A single stream would restart at a resume and repeat the suggestions of the first session.
        seed = rng.key(sweep.seed, "sampling", extra=f"optuna/{index}")
        found = suggestions(self._config.space, self.past(), seed, sweep.mode)
        for attempt, setting in enumerate(found, start=1):
            try:
                made = trial_specs(self._config, [setting], first=index)
                self._create(made)
            except FlrayError:
                # Options of one method with another's name: not every combination is feasible.
                if attempt == MAX_INFEASIBLE:
                    raise
            else:
                self._points |= {point.number: point for point in made}
                self._waiting.extend(point for point in made if self._score(point) is None)
                return


def _distribution(domain: Domain) -> Any:
    """Return a domain in Optuna's form; of grids and choices the indices of their values."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(domain, Grid | Choice):
        return CategoricalDistribution(range(len(values_of(domain) or ())))
    low, high = bounds(domain)
    if isinstance(domain, RandInt):
        return IntDistribution(low, high - 1)
    return FloatDistribution(low, high, log=isinstance(domain, LogUniform))


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
    known = {path: _distribution(domain) for path, domain in space.items()}
    lists = {path: values_of(d) or () for path, d in space.items() if isinstance(d, Grid | Choice)}
    failed = optuna.trial.TrialState.FAIL
    for setting, score in past:
        if score is None:
            outcome: dict[str, Any] = {"state": optuna.trial.TrialState.RUNNING}
        else:
            outcome = {"state": failed} if math.isnan(score) else {"value": score}
        taken = {
            path: lists[path].index(setting[path]) if path in lists else setting[path]
            for path in space
        }
        study.add_trial(optuna.trial.create_trial(params=taken, distributions=known, **outcome))
    while True:
        asked = study.ask(known)
        given = asked.params
        yield {path: lists[path][given[path]] if path in lists else given[path] for path in space}
        study.tell(asked, state=failed)
