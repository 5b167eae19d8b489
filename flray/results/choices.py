"""The settings that a sweep chose among, and their scores: for figures, and for the importance of each setting."""

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from flray.config.arms import is_name, setting_label
from flray.metrics import is_share
from flray.results import ResultSet, Trial, measures
from flray.results.build_studies import place_columns

_LOG = 20.0
"""Positive numbers that differ by more than this factor are looked at on a logarithmic scale."""


@dataclass(frozen=True)
class Choices:
    """Settings of one method in one place, which ran to the end.

    Attributes
    ----------
    name : str
        The unit that the settings belong to.
    metric : str
        The metric that they were chosen by.
    columns : tuple of str
        Settings that vary.
    settings : sequence of dict
        A value per column.
    scores : ndarray [n]
        Means over the seeds; shares in percent.
    """

    name: str
    metric: str
    columns: tuple[str, ...]
    settings: Sequence[Mapping[str, Any]]
    scores: NDArray[np.float64]

    def values(self, column: str) -> list[Any]:
        """Return the values of a column, each once, numbers in their order."""
        values = [one[column] for one in self.settings]
        found = {str(one) if isinstance(one, list) else one: one for one in values}.values()
        return sorted(found) if all(map(is_number, found)) else sorted(found, key=str)

    def grids(self) -> Iterator[tuple[str, str, NDArray[np.float64]]]:
        """Yield each pair of columns whose combinations were all run, with the mean scores of these."""
        for row, column in itertools.combinations(self.columns, 2):
            rows, columns = self.values(row), self.values(column)
            cells: dict[tuple[int, int], list[float]] = {}
            for one, score in zip(self.settings, self.scores, strict=True):
                place = rows.index(one[row]), columns.index(one[column])
                cells.setdefault(place, []).append(float(score))
            counts = set(map(len, cells.values()))
            if len(cells) == len(rows) * len(columns) and len(counts) == 1:
                table = np.array(
                    [[np.mean(cells[i, j]) for j in range(len(columns))] for i in range(len(rows))]
                )
                yield row, column, table

    def importance(self) -> dict[str, float]:
        """Return each setting's share of the variance of the scores, the largest first.

        After Hutter, Hoos and Leyton-Brown, "An efficient approach for assessing hyperparameter
        importance", ICML 2014 (fANOVA), as Optuna computes it from a random forest.
        """
        import optuna  # start-up
        from optuna.distributions import CategoricalDistribution, FloatDistribution

        kinds: dict[str, Any] = {}
        for column in self.columns:
            values = self.values(column)
            kinds[column] = (
                FloatDistribution(
                    values[0],
                    values[-1],
                    log=bool(values[0] > 0 and values[-1] / values[0] >= _LOG),
                )
                if all(map(is_number, values))
                else CategoricalDistribution(list(map(str, values)))
            )
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
        for one, score in zip(self.settings, self.scores, strict=True):
            taken = {
                column: float(one[column])
                if isinstance(kind, FloatDistribution)
                else str(one[column])
                for column, kind in kinds.items()
            }
            study.add_trial(
                optuna.trial.create_trial(params=taken, distributions=kinds, value=float(score))
            )
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
        found = optuna.importance.get_param_importances(study, evaluator=evaluator)
        return {name: float(found[name]) for name in sorted(found, key=lambda one: -found[one])}


def is_number(value: object) -> TypeGuard[int | float]:
    """Return whether a value is a number, which a truth value is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


_Tried = dict[str, tuple[Mapping[str, Any], list[Trial]]]
"""By text, the tried settings of a unit, and their trials."""


def choices(source: ResultSet) -> list[Choices]:
    """Return the tried settings of each compared unit that at least two were tried for.

    Parameters
    ----------
    source : ResultSet
        The sweep; if it tunes, its tuning. Trials that were stopped early do not count.
    """
    every = [one for one in source.tuning or source.trials if one.status == "finished"]
    tried = _tried(source, [one for one in every if len(one.history)])
    found = (_choices(name, of) for name, of in tried.items())
    return [one for one in found if one is not None]


def _tried(source: ResultSet, trials: Sequence[Trial]) -> dict[str, _Tried]:
    """Return the settings that trials tried for each compared unit, in their order."""
    groups: dict[str, _Tried] = {}
    varying = source.varying
    fixed = {*place_columns(varying, ""), *filter(is_name, varying)}
    name_of = _tuned_name(source)
    for trial in trials:
        flat = {key: trial.setting[key] for key in varying if key in trial.setting}
        name = source.name_of({k: v for k, v in flat.items() if k in fixed}) or trial.method
        own: Mapping[str, Any] = {key: value for key, value in flat.items() if key not in fixed}
        if source.tuning:
            name, own = name_of(trial), trial.tuned
        groups.setdefault(name, {}).setdefault(str(own), (own, []))[1].append(trial)
    return groups


def _choices(name: str, tried: _Tried) -> Choices | None:
    scores = [float(np.mean([_score(trial) for trial in trials])) for _, trials in tried.values()]
    held = [
        (own, score)
        for (own, _), score in zip(tried.values(), scores, strict=True)
        if math.isfinite(score)
    ]
    first: Mapping[str, Any] = held[0][0] if held else {}
    shared = [key for key in first if all(key in own for own, _ in held)]
    columns = tuple(key for key in shared if len({str(own[key]) for own, _ in held}) > 1)
    if not columns:
        return None
    settings = [{key: own[key] for key in columns} for own, _ in held]
    metric = next(iter(tried.values()))[1][0].score_metric
    return Choices(name, metric, columns, settings, np.array([score for _, score in held]))


def _score(trial: Trial) -> float:
    """Return the score that a trial was chosen by, as in the ranking of its setting."""
    if trial.phase == "tuning":
        return _tuning_score(trial) * (100.0 if is_share(trial.score_metric) else 1.0)
    return measures.value(trial, trial.score_metric)


def tuning_lines(source: ResultSet) -> list[str]:
    """Return a line on the tuning of everything that is compared, in the order of the trials.

    The standard error is of another setting's difference from the chosen one, paired by seed and
    pooled over the settings.
    """
    name_of = _tuned_name(source)
    chosen = {name_of(trial): trial.tuned for trial in source.trials}
    every = _tried(source, source.tuning)
    return [_line(name, tried, chosen.get(name, {})) for name, tried in every.items()]


def _tuned_name(source: ResultSet) -> Callable[[Trial], str]:
    """Return a function that names the unit that a trial tunes or compares."""
    columns = {name for one in source.tuning for name in one.setting}
    varying = {n for n in columns if len({str(one.setting.get(n)) for one in source.tuning}) > 1}
    several = any(one.repetition for one in source.tuning)

    def name_of(trial: Trial) -> str:
        flat = {name: value for name, value in trial.setting.items() if name in varying}
        name = source.name_of(flat) or trial.method
        return f"{name}, tuning {trial.repetition + 1}" if several else name

    return name_of


def _line(name: str, tried: _Tried, chosen: Mapping[str, Any]) -> str:
    trials = [trial for _, of in tried.values() for trial in of]
    rounds = sum(len(one.history) for one in trials)
    seconds = math.fsum(
        s for one in trials if not math.isnan(s := measures.total(one, "time/round"))
    )
    failed = sum(one.status == "failed" for one in trials)
    cost = f"{len(tried)} settings tried in {len(trials)} trials, {rounds} rounds, {seconds:.0f} s"
    cost += f", {failed} failed" if failed else ""
    if not chosen:
        return f"tuning of {name}: {cost}; nothing is chosen yet"
    text = f"tuning of {name}: {setting_label(chosen)} chosen of {cost}"
    if edges := " and ".join(_edges(chosen, [trial.tuned for trial in trials])):
        text += f"; {edges} tried, so a better value may lie beyond"
    seeds = {trial.seed for trial in trials}
    metric = next((one.score_metric for one in trials if one.score_metric), "")
    whole = pd.DataFrame(  # settings that ran to the end at every seed
        {
            key: {one.seed: (100 if is_share(metric) else 1) * _tuning_score(one) for one in found}
            for key, (_, found) in tried.items()
            if len(found) == len(seeds) and all(one.status == "finished" for one in found)
        }
    )
    best = whole.get(str(dict(chosen)), pd.Series(dtype=float))
    text += f"; {metric} {best.mean():.4g}"
    gaps, others = whole.rsub(best, axis=0), whole.shape[1] - 1
    if others < 1 or len(seeds) < 2:
        return f"{text}; how sure that is takes two seeds, and two settings that ran to the end"
    error = math.sqrt(gaps.var().sum() / others / len(seeds))
    near = int((gaps.mean().abs() <= error).sum())
    return (
        f"{text}, and {near} of {whole.shape[1]} that ran to the end are within a standard error "
        f"of it ({error:.2g}, of differences paired by seed)"
    )


def _edges(chosen: Mapping[str, Any], tried: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the chosen values that are the lowest or the highest of those that were tried."""
    for path, value in chosen.items():
        values: list[Any] = [one.get(path) for one in tried]
        low, high = (min(values), max(values)) if all(map(is_number, values)) else (None, None)
        if low != high and value in (low, high):
            which = "lowest" if value == low else "highest"
            yield f"{setting_label({path: value})} is the {which}"


def _tuning_score(trial: Trial) -> float:
    return float(trial.history["score"].iloc[-1]) if "score" in trial.history else math.nan


def tuning_frame(source: ResultSet) -> pd.DataFrame:
    """Return a row per trial of the tuning: what it is ``of``, its setting, score and costs."""
    name_of = _tuned_name(source)
    chosen = {name_of(trial): trial.tuned for trial in source.trials}
    return pd.DataFrame(
        {
            "trial": trial.number,
            "of": (name := name_of(trial)),
            **trial.tuned,
            "seed": trial.seed,
            "status": trial.status,
            "rounds": len(trial.history),
            "score": _tuning_score(trial),
            "metric": trial.score_metric,
            "seconds": measures.total(trial, "time/round"),
            "chosen": trial.tuned == chosen.get(name),
        }
        for trial in source.tuning
    )
