"""Costs of each setting: rounds to a target, bytes, seconds, memory."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from flray.config.arms import PREFIX
from flray.metrics.direction import is_share, lower_is_better
from flray.metrics.summary import rounds_to_target
from flray.results import measures
from flray.results.result_set import ResultSet, Trial

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
        Of the primary metric, as it was tracked: a share between 0 and 1, anything else as it is.
    rounds : float
        First round that reaches the target, mean over the seeds that do; infinite where none does.
    reached, seeds : int
        How many seeds reach it, of how many.
    up, down : float
        Total bytes, from and to the clients.
    seconds, round_seconds : float
        Total training time, and the median of a round.
    memory : float
        Peak, bytes: of tensors on a GPU, or without one by a client process.
    share : bool
        Whether the target is a share.
    """

    label: str
    group: str
    target: float
    rounds: float
    reached: int
    seeds: int
    up: float
    down: float
    seconds: float
    round_seconds: float
    memory: float
    share: bool = True


def costs(source: ResultSet, target: float | None = None) -> list[Cost]:
    """Return the costs of every setting, in the order of the trials.

    Parameters
    ----------
    source : ResultSet
        The sweep.
    target : float, optional
        Between 0 and 1; default: `SHARE` of the best final mean of the group (settings with the
        same arms apart from the methods).
    """
    found = []
    for group, settings in group_trials(source).items():
        curves = {
            label: [measures.series(trial) for trial in trials]
            for label, trials in settings.items()
        }
        finals = [
            np.mean([one.iloc[-1] if len(one) else math.nan for one in seeds])
            for seeds in curves.values()
        ]
        finite = [float(final) for final in finals if np.isfinite(final)]
        goal = target if target is not None else SHARE * max(finite, default=math.nan)
        for label, trials in settings.items():
            lower = lower_is_better(trials[0].metric)
            firsts = [rounds_to_target(one, goal, lower) for one in curves[label]]
            reached = [first for first in firsts if math.isfinite(first)]
            seconds = [s for trial in trials for s in trial.history.get("time/round", ())]
            memory = [measures.peak_memory(trial) for trial in trials]
            found.append(
                Cost(
                    label,
                    group,
                    goal,
                    float(np.mean(reached)) if reached else math.inf,
                    len(reached),
                    len(firsts),
                    _mean_total(trials, "bytes/up"),
                    _mean_total(trials, "bytes/down"),
                    _mean_total(trials, "time/round"),
                    float(np.median(seconds)) if seconds else math.nan,
                    max((one for one in memory if not math.isnan(one)), default=math.nan),
                    is_share(trials[0].metric),
                )
            )
    return found


def _mean_total(trials: list[Trial], name: str) -> float:
    return float(np.mean([measures.total(trial, name) for trial in trials]))


def group_trials(source: ResultSet) -> dict[str, dict[str, list[Trial]]]:
    """Return the trials that ended a round by group and label.

    The axis of the table's rows (without arms: the method) makes the labels, everything else the
    groups.
    """
    axes, paper = source.axes, source.paper
    rows = paper.rows if paper is not None and paper.rows in axes else next(iter(axes), "")
    column = f"{PREFIX}{rows}"
    groups: dict[str, dict[str, list[Trial]]] = defaultdict(lambda: defaultdict(list))
    for trial in source.trials:
        if len(trial.history):
            label, group = source.label(trial), ""
            if axes:
                label = str(trial.setting.get(column, trial.method))
                group = source.label(trial, without=column)
            groups[group][label].append(trial)
    return {group: dict(settings) for group, settings in groups.items()}
