"""Costs of a sweep's settings: rounds to a target, steps, bytes, seconds, memory."""

import math
from collections import defaultdict
from dataclasses import dataclass

import numpy as np

from flray.metrics import is_share, rounds_to_target
from flray.results import ResultSet, Trial
from flray.results.build_studies import place_and_name
from flray.results.measures import peak_memory, series, total

SHARE = 0.9
"""The default target: this share of the best setting's final mean."""


@dataclass(frozen=True)
class Cost:
    """Means over the seeds of a setting, without those that it failed at unless it failed at all.

    Attributes
    ----------
    label, group : str
        The setting, and its place, whose settings share a target.
    target : float
        The target of the primary metric, as tracked: shares are between 0 and 1.
    rounds : float
        First round that reaches the target, mean over the seeds that do; infinite if none does.
    reached, seeds : int
        The number of seeds that reach it, and the number of all.
    steps : float
        All clients' optimiser steps, which differ if a method sets the lengths of its phases.
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
    steps: float
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
        As shown: of a share in percent. Default: `SHARE` of the best final mean of the place; what is
        better lower has to come down to that mean divided by `SHARE`. Of a mean below zero it is the
        other way round.
    """
    found = []
    for group, settings in group_trials(source).items():
        whole = {
            label: [one for one in trials if one.status != "failed"] or trials
            for label, trials in settings.items()
        }
        finals = [
            float(np.mean([one.iloc[-1] if len(one) else math.nan for one in map(series, trials)]))
            for trials in whole.values()
        ]
        finite = [final for final in finals if math.isfinite(final)]
        first = next(iter(whole.values()))[0]
        lower, scale = first.lower, 100 if is_share(first.metric) else 1
        best = (min if lower else max)(finite, default=math.nan)
        # The share of a value below zero, such as R2, would be better than the value.
        near = best / SHARE if lower == (best > 0) else best * SHARE
        goal = near if target is None else target / scale
        for label, trials in whole.items():
            firsts = [rounds_to_target(series(one), goal, lower) for one in settings[label]]
            reached = [first for first in firsts if math.isfinite(first)]
            seconds = [s for trial in trials for s in trial.history.get("time/round", ())]
            memory = [peak_memory(trial) for trial in trials]
            found.append(
                Cost(
                    label,
                    group,
                    goal,
                    float(np.mean(reached)) if reached else math.inf,
                    len(reached),
                    len(firsts),
                    _mean_total(trials, "train/steps"),
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
    return float(np.mean([total(trial, name) for trial in trials]))


def group_trials(source: ResultSet) -> dict[str, dict[str, list[Trial]]]:
    """Return the trials that ended a round by place and setting, as they are compared."""
    groups: dict[str, dict[str, list[Trial]]] = defaultdict(lambda: defaultdict(list))
    for trial in source.trials:
        if len(trial.history):
            place, name = place_and_name(source, trial)
            groups[place][name].append(trial)
    return {place: dict(settings) for place, settings in groups.items()}
