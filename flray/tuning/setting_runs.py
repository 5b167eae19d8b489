"""A run in MLflow for each setting of a sweep, between it and its seeds: curves of their mean and deviation."""

from __future__ import annotations

import hashlib
import json
import math
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from flray.config.experiment import Config
from flray.metrics.names import VIEWS
from flray.records import directory
from flray.records.events import JOURNAL, read_events
from flray.records.journal import Journal
from flray.runs.session import identity_tags, record_data, record_held
from flray.tracking.sync import SETTINGS
from flray.tuning import naming
from flray.tuning.space import TrialSpec

STD = "seed_std"
"""Behind a metric's name: its standard deviation over seeds (n - 1), beside their mean under the name itself."""
_BESIDES = ("score", "train/loss", "bytes/up", "bytes/down", "time/round")
TRIALS = "trials"
Rounds = dict[int, dict[str, float]]


def setting_key(setting: Mapping[str, Any], phase: str) -> str:
    """Return the name of the folder of a setting's run: the same for all its seeds, and after a resume."""
    text = json.dumps([setting, phase], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def begin_setting(sweep: Path, point: TrialSpec, parent: Mapping[str, Any], config: Config) -> str:
    """Begin the run of a trial's setting, or take it up again, and return its unique name."""
    key = setting_key(point.setting, point.phase)
    uid = f"{parent['uid']}-{key}"
    folder = sweep / SETTINGS / key
    if (folder / JOURNAL).exists():
        events = read_events(folder / JOURNAL)
        if not events or events[-1]["type"] != "end":
            return uid
    settings = directory.flatten_settings(point.experiment.model_dump(mode="json"))
    with Journal(folder / JOURNAL) as journal:
        began = journal.start(
            uid=uid,
            experiment=config.experiment.tracking.experiment,
            parent=parent["uid"],
            name=naming.setting_title(point),
            tags={
                **identity_tags(sweep),
                **naming.tags(config, point.experiment),
                **naming.phase_tags(point),
                "setting": naming.setting_title(point),
                "flray.kind": "setting",
            },
            params={
                **naming.varied_params(point.setting),
                **{name: value for name, value in settings if name != "seed"},
            },
        )
        if not began:
            journal.resume()
    return uid


class SettingRuns:
    """The curves of a sweep's settings while it runs: a round is recorded when all seeds have done it.

    Where seeds are added as long as nothing is decided, the curves come at the end.

    Parameters
    ----------
    sweep : Path
        The sweep's folder.
    config : Config
        The sweep.
    points : mapping of str to TrialSpec
        The trials by number; new ones may be added while the sweep runs.
    """

    def __init__(self, sweep: Path, config: Config, points: Mapping[str, TrialSpec]) -> None:
        self._sweep, self._points = sweep, points
        self._live = config.sweep.until is None
        self._seeds = len(config.sweep.seeds)
        self._journals: dict[str, Journal] = {}
        self._rounds: dict[str, Rounds] = {}
        self._keys: dict[str, str] = {}

    def open(self, trial: str) -> Path:
        """Open the run of a trial's setting, which has begun, and return its folder."""
        key = self._key(trial)
        folder = self._sweep / SETTINGS / key
        if key not in self._journals:
            self._journals[key] = Journal(folder / JOURNAL)
        for member in self._members(trial):
            if member not in self._rounds:
                self._rounds[member] = _recorded(self._sweep, member)
        return folder

    def add(self, trial: str, round_: int, metrics: Mapping[str, float]) -> None:
        """Take in a round of a trial."""
        # As in the journal, a round stays as it was first recorded: one that is run again after a
        # kill took another time.
        self._rounds.setdefault(trial, {}).setdefault(round_, _compared(metrics))
        members = self._members(trial)
        found = [self._rounds.get(member, {}).get(round_) for member in members]
        whole = [one for one in found if one is not None]
        enough = self._points[trial].phase == "tuning" or len(members) >= self._seeds
        if self._live and enough and len(whole) == len(members):
            self._journals[self._key(trial)].record_round(round_, mean_and_deviation(whole))

    def data(self, trial: str, held: Mapping[str, Any]) -> None:
        """Record the data set of a trial for its setting; all seeds have the same."""
        record_data(self._journals[self._key(trial)], held)

    def close(self) -> None:
        """Close the journals; a setting without an end event may continue later."""
        for journal in self._journals.values():
            journal.close()
        self._journals.clear()

    def _key(self, trial: str) -> str:
        if trial not in self._keys:
            point = self._points[trial]
            self._keys[trial] = setting_key(point.setting, point.phase)
        return self._keys[trial]

    def _members(self, trial: str) -> list[str]:
        key = self._key(trial)
        return [number for number in self._points if self._key(number) == key]


def complete_settings(sweep: Path) -> None:
    """End the runs of a sweep's settings: rounds that not all seeds have done are means over those that have.

    Parameters
    ----------
    sweep : Path
        The sweep's folder, whose trials have all ended.
    """
    members: dict[str, list[Path]] = {}
    for path in sorted((sweep / TRIALS).glob("*/run.json")):
        held = directory.read(path.parent)
        key = setting_key(held.get("setting", {}), held.get("phase", "comparison"))
        members.setdefault(key, []).append(path.parent)
    for path in sorted((sweep / SETTINGS).glob(f"*/{JOURNAL}")):
        events = read_events(path)
        if events and events[-1]["type"] == "end":
            continue
        known = {e["round"]: e["metrics"] for e in events if e["type"] == "round"}
        trials = members.get(path.parent.name, [])
        rounds = [found for trial in trials if (found := _recorded(sweep, trial.name))]
        with Journal(path) as journal:
            for trial in trials:
                record_held(journal, trial)
            for round_ in sorted({round_ for found in rounds for round_ in found}):
                values = mean_and_deviation([one[round_] for one in rounds if round_ in one])
                if known.get(round_) != values:  # a failed seed may have been repaired
                    journal.record_round(round_, values, replace=True)
            journal.tags({"seeds": str(len(rounds))})
            journal.end("FINISHED" if rounds else "FAILED")


def mean_and_deviation(seeds: list[dict[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over seeds, and its sample deviation under ``NAME/seed_std``.

    A metric that is not a finite number at every seed has neither, because a round was not evaluated
    or a seed's loss diverged.
    """
    return dict(_over_seeds(seeds))


def _over_seeds(seeds: list[dict[str, float]]) -> Iterator[tuple[str, float]]:
    for name in seeds[0]:
        values = [one[name] for one in seeds if name in one]
        if not all(map(math.isfinite, values)):
            continue
        yield name, statistics.fmean(values)
        if len(values) > 1:
            yield f"{name}/{STD}", statistics.stdev(values)


def _compared(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that settings are compared by: means over clients, and costs."""
    return {
        name: value
        for name, value in metrics.items()
        if name in _BESIDES or name.rpartition("/")[0] in VIEWS
    }


def _recorded(sweep: Path, trial: str) -> Rounds:
    """Return the rounds in a trial's journal."""
    return {
        event["round"]: _compared(event["metrics"])
        for event in read_events(sweep / TRIALS / trial / JOURNAL)
        if event["type"] == "round"
    }
