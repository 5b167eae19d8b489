"""Settings among which a sweep chose, with what they reached: for pictures, and how much each setting matters."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from flray.config.setting_labels import is_name, setting_label
from flray.metrics.direction import is_share
from flray.results import measures
from flray.results.build_studies import place_columns
from flray.results.result_set import ResultSet, Trial
from flray.results.tuned import tuned_name

_LOG = 20.0
"""Positive numbers that differ by more than this factor are looked at on a logarithmic scale."""


@dataclass(frozen=True)
class Choices:
    """Settings of one method in one place, which ran to the end.

    Attributes
    ----------
    name : str
        What they are settings of.
    metric : str
        What they were chosen by.
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
        found = dict.fromkeys(one[column] for one in self.settings)
        return sorted(found) if all(map(is_number, found)) else sorted(found, key=str)

    def grids(self) -> Iterator[tuple[str, str, NDArray[np.float64]]]:
        """Yield each two columns of which all combinations were run, with the mean scores of these."""
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
                FloatDistribution(values[0], values[-1], log=is_logarithmic(values))
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


def is_number(value: object) -> bool:
    """Return whether a value is a number, which a truth value is not."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_logarithmic(values: Sequence[Any]) -> bool:
    """Return whether sorted numbers span so much that their logarithms are looked at."""
    return bool(values[0] > 0 and values[-1] / values[0] >= _LOG)


def choices(source: ResultSet) -> list[Choices]:
    """Return the settings that were tried of everything that is compared, where at least two were.

    Parameters
    ----------
    source : ResultSet
        The sweep; of one that tunes, its tuning. Trials that were stopped early are left out.
    """
    groups: dict[str, dict[str, tuple[dict[str, Any], list[Trial]]]] = {}
    varying = source.varying()
    fixed = {*place_columns(varying, ""), *filter(is_name, varying)}
    for trial in source.tuning or source.trials:
        if trial.status != "finished" or not len(trial.history):
            continue
        if source.tuning:
            name, own = tuned_name(source, trial), dict(trial.tuned)
        else:
            flat = {key: trial.setting[key] for key in varying if key in trial.setting}
            name = setting_label({k: v for k, v in flat.items() if k in fixed}) or trial.method
            own = {key: value for key, value in flat.items() if key not in fixed}
        _, trials = groups.setdefault(name, {}).setdefault(str(own), (own, []))
        trials.append(trial)
    found = (_choices(name, list(tried.values())) for name, tried in groups.items())
    return [one for one in found if one is not None]


def _choices(name: str, tried: Sequence[tuple[dict[str, Any], list[Trial]]]) -> Choices | None:
    metric = tried[0][1][0].score_metric
    scores = [float(np.mean([_score(trial) for trial in trials])) for _, trials in tried]
    held = [
        (own, score) for (own, _), score in zip(tried, scores, strict=True) if math.isfinite(score)
    ]
    if len(held) < 2:
        return None
    shared = [key for key in held[0][0] if all(key in own for own, _ in held)]
    columns = tuple(key for key in shared if len({str(own[key]) for own, _ in held}) > 1)
    if not columns:
        return None
    settings = [{key: own[key] for key in columns} for own, _ in held]
    return Choices(name, metric, columns, settings, np.array([score for _, score in held]))


def _score(trial: Trial) -> float:
    """Return what a trial was chosen by, as its setting's rank had it."""
    if trial.phase == "tuning":
        score = float(trial.history["score"].iloc[-1]) if "score" in trial.history else math.nan
        return score * (100.0 if is_share(trial.score_metric) else 1.0)
    return measures.value(trial, trial.score_metric)
