"""What tuning cost, what it chose, and how flat the optimum was, for each of what is compared."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd

from flray.config.setting_labels import setting_label
from flray.metrics.direction import is_share
from flray.results import measures
from flray.results.result_set import ResultSet, Trial

NEAR = 1.0
"""A setting is as good as the best within so many points of percent."""


@dataclass(frozen=True)
class Tuned:
    """The tuning of one of what is compared.

    Attributes
    ----------
    name : str
        Its name in the table.
    chosen : dict
        The settings that were chosen; empty where none are yet.
    metric : str
        What they were chosen by.
    settings, whole, trials, failed, rounds : int
        Settings that were tried, those of them that ran to the end at every seed, their trials,
        the failed ones, and their rounds.
    seconds : float
        Training time of them all.
    score : float
        Mean of the chosen setting over the seeds; shares in percent.
    near : int
        How many of `whole` are within `NEAR` points of it, itself included; -1 where it is no share.
    edges : tuple of str
        The chosen values that are the lowest or the highest of those that were tried.
    """

    name: str
    chosen: Mapping[str, Any]
    metric: str
    settings: int
    whole: int
    trials: int
    failed: int
    rounds: int
    seconds: float
    score: float
    near: int
    edges: tuple[str, ...] = ()

    @property
    def line(self) -> str:
        """All of it in a line."""
        cost = (
            f"{self.settings} settings tried in {self.trials} trials, {self.rounds} rounds, "
            f"{self.seconds:.0f} s"
        )
        cost += f", {self.failed} failed" if self.failed else ""
        if not self.chosen:
            return f"tuning of {self.name}: {cost}; nothing is chosen yet"
        text = f"tuning of {self.name}: {setting_label(self.chosen)} chosen of {cost}"
        if self.edges:
            text += f"; {' and '.join(self.edges)} tried, so a better value may lie beyond"
        if self.near < 0:
            return f"{text}; {self.metric} {self.score:.4g}"
        return (
            f"{text}; {self.metric} {self.score:.2f}, and {self.near} of {self.whole} that ran to the "
            f"end are within {NEAR:.0f} point of it"
        )


def tuned_settings(source: ResultSet) -> list[Tuned]:
    """Return the tuning of everything that is compared, in the order of the trials."""
    groups: dict[str, list[Trial]] = {}
    for trial in source.tuning:
        groups.setdefault(tuned_name(source, trial), []).append(trial)
    chosen = {tuned_name(source, trial): trial.tuned for trial in source.trials}
    return [_tuned(name, trials, chosen.get(name, {})) for name, trials in groups.items()]


def tuned_name(source: ResultSet, trial: Trial) -> str:
    """Return the name of what a trial was tuned for, or compares."""
    columns = {name for one in source.tuning for name in one.setting}
    varying = [n for n in columns if len({str(one.setting.get(n)) for one in source.tuning}) > 1]
    flat = {name: value for name, value in trial.setting.items() if name in varying}
    return setting_label(flat) or trial.method


def _tuned(name: str, trials: list[Trial], chosen: Mapping[str, Any]) -> Tuned:
    by_setting: dict[str, list[Trial]] = {}
    for trial in trials:
        by_setting.setdefault(str(trial.tuned), []).append(trial)
    seeds = {trial.seed for trial in trials}
    whole = {
        key: math.fsum(map(_score, found)) / len(found)
        for key, found in by_setting.items()
        if len(found) == len(seeds) and all(one.status == "finished" for one in found)
    }
    metric = next((one.score_metric for one in trials if one.score_metric), "")
    best = whole.get(str(dict(chosen)), math.nan)
    share = is_share(metric) and all(0 <= one <= 1 for one in whole.values())
    near = sum(abs(100 * (one - best)) <= NEAR for one in whole.values()) if share else -1
    return Tuned(
        name,
        chosen,
        metric,
        len(by_setting),
        len(whole),
        len(trials),
        sum(one.status == "failed" for one in trials),
        sum(len(one.history) for one in trials),
        math.fsum(s for one in trials if not math.isnan(s := measures.total(one, "time/round"))),
        best * (100.0 if share else 1.0),
        near,
        tuple(_edges(chosen, [trial.tuned for trial in trials])),
    )


def _edges(chosen: Mapping[str, Any], tried: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    tried = list(tried)
    for path, value in chosen.items():
        values = {one.get(path) for one in tried}
        numbers = [x for x in values if isinstance(x, int | float) and not isinstance(x, bool)]
        if len(numbers) == len(values) > 1 and value in (min(numbers), max(numbers)):
            which = "lowest" if value == min(numbers) else "highest"
            yield f"{setting_label({path: value})} is the {which}"


def _score(trial: Trial) -> float:
    return float(trial.history["score"].iloc[-1]) if "score" in trial.history else math.nan


def tuning_frame(source: ResultSet) -> pd.DataFrame:
    """Return a row per trial of the tuning: what it is ``of``, its setting, score and costs."""
    chosen = {tuned_name(source, trial): trial.tuned for trial in source.trials}
    return pd.DataFrame(
        {
            "trial": trial.number,
            "of": tuned_name(source, trial),
            **trial.tuned,
            "seed": trial.seed,
            "status": trial.status,
            "rounds": len(trial.history),
            "score": _score(trial),
            "metric": trial.score_metric,
            "seconds": measures.total(trial, "time/round"),
            "chosen": trial.tuned == chosen.get(tuned_name(source, trial)),
        }
        for trial in source.tuning
    )
