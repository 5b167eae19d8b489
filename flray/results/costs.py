"""What each setting costs: rounds to a target, bytes, seconds, memory."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from flray.config.arms import PREFIX
from flray.results import measures
from flray.results.load import ResultSet, Trial

SHARE = 0.9
"""The default target: this share of the best setting's final mean."""


@dataclass(frozen=True)
class Cost:
    """Means over the seeds of a setting.

    Attributes
    ----------
    label, group : str
        The setting, and the group within which targets are the same.
    target : float
        Of the method's own measure, between 0 and 1 (a loss: as it is).
    rounds : float
        First round that reaches the target; infinite where a seed never does.
    up, down : float
        Bytes in all, from and to the clients.
    seconds, round_seconds : float
        Training time in all, and median of a round.
    memory : float
        The most held, bytes: of tensors on a GPU, or without one by a client process.
    """

    label: str
    group: str
    target: float
    rounds: float
    up: float
    down: float
    seconds: float
    round_seconds: float
    memory: float


def costs(source: ResultSet, target: float | None = None) -> list[Cost]:
    """Return the costs of every setting, in the order of the trials.

    Parameters
    ----------
    source : Source
        The sweep.
    target : float, optional
        Between 0 and 1; default: `SHARE` of the best final mean of the group (settings with the
        same arms apart from the methods).
    """
    found = []
    for group, settings in group_trials(source).items():
        finals = [np.mean([_final(trial) for trial in trials]) for trials in settings.values()]
        finite = [float(final) for final in finals if np.isfinite(final)]
        goal = target if target is not None else SHARE * max(finite, default=math.nan)
        for label, trials in settings.items():
            reached = [_rounds_to_target(trial, goal) for trial in trials]
            up, down, seconds = (
                float(np.mean([_total(trial, name) for trial in trials]))
                for name in ("bytes/up", "bytes/down", "time/round")
            )
            found.append(
                Cost(
                    label, group, goal, float(np.mean(reached)), up, down, seconds, *_median(trials)
                )
            )
    return found


def group_trials(source: ResultSet) -> dict[str, dict[str, list[Trial]]]:
    """Return the trials that ended a round by group and label.

    The axis of the table's rows (without arms: the method) makes the labels, everything else the
    groups.
    """
    axes = source.axes
    rows = (
        source.paper.rows
        if source.paper is not None and source.paper.rows in axes
        else next(iter(axes), "")
    )
    rows = f"{PREFIX}{rows}" if rows else "algorithm"
    groups: dict[str, dict[str, list[Trial]]] = defaultdict(lambda: defaultdict(list))
    for trial in source.trials:
        if len(trial.history):
            if axes:
                label, group = (
                    str(trial.setting.get(rows, trial.method)),
                    source.label(trial, without=rows),
                )
            else:
                label, group = source.label(trial), ""
            groups[group][label].append(trial)
    return {group: dict(settings) for group, settings in groups.items()}


def _final(trial: Trial) -> float:
    values = measures.series(trial, "auto")
    return float(values.iloc[-1]) if len(values) else math.nan


def _rounds_to_target(trial: Trial, goal: float) -> float:
    values = measures.series(trial, "auto")
    lower = measures.lower_is_better(trial.metric)
    reached = values[values <= goal] if lower else values[values >= goal]
    return float(reached.index[0]) if len(reached) else math.inf


def _total(trial: Trial, name: str) -> float:
    return float(trial.history[name].sum()) if name in trial.history else math.nan


def _median(trials: list[Trial]) -> tuple[float, float]:
    rounds = [value for trial in trials for value in trial.history.get("time/round", ())]
    memory = [measures.memory(trial) for trial in trials]
    return float(np.median(rounds)) if rounds else math.nan, max(
        (m for m in memory if m == m), default=math.nan
    )
