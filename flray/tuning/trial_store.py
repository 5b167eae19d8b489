"""A sweep's folder: a run folder per trial, all that a resume needs, and a run in MLflow for each setting.

The run of a setting stands between the sweep and its seeds, with the mean of their curves and the
deviation.
"""

import itertools
import math
import statistics
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from flray.config.experiment import Config
from flray.config.sweep import Sweep
from flray.errors import FlrayError
from flray.metrics import VIEWS
from flray.records import JOURNAL, Journal, directory, read_events, rounds_of
from flray.runs.code import Code
from flray.runs.session import EndStatus, RunSession, identity_tags, record_data, record_held
from flray.tracking.background import SETTINGS
from flray.tuning.space import (
    TrialSpec,
    Values,
    setting_key,
    setting_params,
    setting_tags,
    setting_title,
    trial_number,
)

TERMINAL_STATUSES = ("finished", "stopped")
"""Statuses in run.json of trials that need not run again."""
ENDED_STATUSES = (*TERMINAL_STATUSES, "failed")
STD = "seed_std"
"""Behind a metric's name: its standard deviation over seeds (n - 1), beside their mean under the name itself."""
_COSTS = ("bytes/up", "bytes/down", "time/round")
_BESIDES = ("score", "train/loss", *_COSTS)
Rounds = dict[int, dict[str, float]]


class TrialFolder:
    """The folder of one trial.

    Parameters
    ----------
    sweep : Path
        The sweep's folder.
    name : str
        The trial's number.
    """

    def __init__(self, sweep: Path, name: str) -> None:
        self.sweep, self.number = sweep, name
        self.path = sweep / directory.TRIALS / name

    def create(
        self,
        point: TrialSpec,
        config: Config,
        identity: Mapping[str, str] | None = None,
        code: Code | None = None,
    ) -> None:
        """Create the folder if missing; ``run.json`` is written last, so a folder with one is complete.

        Parameters
        ----------
        point : TrialSpec
            The trial.
        config : Config
            The sweep.
        identity : mapping, optional
            What the trial is known by, see `flray.runs.identity`. A trial that began under another
            one, as with a plug-in that was changed since, is known by none.
        code : dict, optional
            The code that it is run by; see `flray.runs.identity.code_of`.
        """
        if directory.folder_kind(self.path) is not None:
            held = self.identity
            if held["status"] not in TERMINAL_STATUSES and held.get("identity") != identity:
                began = (self.path / JOURNAL).exists()
                changes = {"identity": None} if began else {"identity": identity, "code": code}
                directory.update(self.path, **changes)
            return
        self.path.mkdir(parents=True, exist_ok=True)
        # Nothing of what lays out the sweep: `flray run` takes the file as it is.
        alone = Sweep(seeds=(point.seed,), metric=config.sweep.metric, mode=config.sweep.mode)
        directory.save_config(self.path, Config(experiment=point.experiment, sweep=alone))
        directory.write(
            self.path,
            "run",
            {
                **directory.new_identity(point.experiment.resources.bits),
                "status": "waiting",
                "number": point.number,
                "setting": point.setting,
                "seed": point.seed,
                "rounds_planned": point.experiment.rounds,
                "phase": point.phase,
                **({} if point.compared is None else {"compared": point.compared}),
                **({"repetition": point.repetition} if point.repetition else {}),
                "identity": None if identity is None else dict(identity),
                "code": code,
            },
        )

    @property
    def exists(self) -> bool:
        """Whether it has been created."""
        return (self.path / "run.json").is_file()

    def stop(self) -> None:
        """Record that a paused trial does not continue; one that failed stays failed."""
        if self.status in ENDED_STATUSES:
            return
        with Journal(self.path / JOURNAL) as journal:
            journal.tags({"trial.status": "stopped", "stopped_early": "true"})
            journal.end("FINISHED")
        directory.update(self.path, status="stopped")

    @property
    def identity(self) -> directory.TrialRecord:
        """The content of ``run.json``.

        Raises
        ------
        FlrayError
            If it is damaged.
        """
        return directory.read_trial(self.path)

    @property
    def status(self) -> directory.RunStatus:
        """waiting, running, finished, stopped (early) or failed."""
        return self.identity["status"]

    def begin(self, point: TrialSpec, parent: Mapping[str, Any], sweep: Config) -> RunSession:
        """Start or resume the trial."""
        return RunSession(
            self.path,
            point.experiment,
            name=f"{setting_title(point)} · seed {point.seed}",
            tags={**setting_tags(sweep, point), "trial": point.number},
            params=setting_params(point),
            parent=begin_setting(self.sweep, point, parent, sweep),
            failure=None,
        )

    def end(self, session: RunSession, status: EndStatus, **values: Any) -> None:
        """Record the trial's end."""
        failure = (values.get("failure") or "").partition("\n")[0]
        known = {"model.sha256": values.get("sha256"), "failure": failure}
        session.journal.tags(
            {
                "trial.status": status,
                "stopped_early": str(status == "stopped").lower(),
                **{name: text for name, text in known.items() if text},
            }
        )
        session.end(status, **values)

    def rounds(self) -> Rounds:
        """Return the metrics of every recorded round."""
        return rounds_of(read_events(self.path / JOURNAL))

    def rounds_recorded(self) -> int:
        """Return the last round before the journal's first gap."""
        there = self.rounds()
        return next(round_ for round_ in itertools.count(1) if round_ not in there) - 1

    def scores(self) -> list[tuple[int, float]]:
        """Return round and score of every recorded round."""
        return [
            (number, metrics["score"])
            for number, metrics in self.rounds().items()
            if not math.isnan(metrics.get("score", math.nan))
        ]

    def last_score(self, done: float = math.inf) -> float:
        """Return the last score of the first `done` rounds; NaN if they have none."""
        return next(
            (score for round_, score in reversed(self.scores()) if round_ <= done), math.nan
        )


def trial_folders(sweep: Path) -> list[TrialFolder]:
    """Return the trials' complete folders, in order."""
    found = (path.parent.name for path in (sweep / directory.TRIALS).glob("*/run.json"))
    return [TrialFolder(sweep, name) for name in sorted(found, key=lambda name: (len(name), name))]


def retry_failed(sweep: Path) -> int:
    """Have failed trials run again, except those of a tuning whose choice is compared already.

    Otherwise a setting that was not chosen could become the best, and be compared at the seeds that remain.

    Returns
    -------
    int
        The number of trials that stay failed.
    """

    def unit(record: directory.TrialRecord) -> tuple[object, object]:
        return record.get("compared"), record.get("repetition")

    records = {folder.path: folder.identity for folder in trial_folders(sweep)}
    compared = [unit(one) for one in records.values() if one.get("phase") != "tuning"]
    failed = {path: one for path, one in records.items() if one["status"] == "failed"}
    again = [
        path
        for path, one in failed.items()
        if one.get("phase") != "tuning" or unit(one) not in compared
    ]
    for path in again:
        directory.update(path, status="waiting")
    return len(failed) - len(again)


def suggested_settings(sweep: Path, seeds: int) -> list[Values]:
    """Return the settings of a sweep's trial folders in order: a search's suggestions before it was killed.

    Raises
    ------
    FlrayError
        If a folder in between is missing.
    """
    settings: list[Values] = []
    for position, folder in enumerate(trial_folders(sweep)):
        if folder.number != trial_number(position):
            raise FlrayError(
                f"{sweep / directory.TRIALS}: the folder of trial {trial_number(position)} is missing; restore it"
            )
        if position % seeds == 0:
            settings.append(folder.identity["setting"])
    return settings


def begin_setting(sweep: Path, point: TrialSpec, parent: Mapping[str, Any], config: Config) -> str:
    """Begin the run of a trial's setting, or take it up again, and return its unique name."""
    uid, folder = f"{parent['uid']}-{point.key}", sweep / SETTINGS / point.key
    # A kill before the first event leaves an empty journal, whose run has yet to be named.
    if (events := read_events(folder / JOURNAL)) and events[-1]["type"] != "end":
        return uid
    with Journal(folder / JOURNAL) as journal:
        journal.start(
            uid=uid,
            experiment=config.experiment.tracking.experiment,
            parent=parent["uid"],
            name=setting_title(point),
            tags={**identity_tags(sweep), **setting_tags(config, point), "flray.kind": "setting"},
            params={name: v for name, v in setting_params(point).items() if name != "seed"},
        )
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

    def open(self, trial: str) -> Path:
        """Open the run of a trial's setting, which has begun, and return its folder."""
        key = self._points[trial].key
        folder = self._sweep / SETTINGS / key
        if key not in self._journals:
            self._journals[key] = Journal(folder / JOURNAL)
        for member in self._members(trial):
            if member not in self._rounds:
                self._rounds[member] = _recorded(TrialFolder(self._sweep, member))
        return folder

    def add(self, trial: str, round_: int, metrics: Mapping[str, float]) -> None:
        """Take in a round of a trial."""
        # As in the journal, a round stays as it was first recorded: one that is run again after a
        # kill took another time.
        self._rounds.setdefault(trial, {}).setdefault(round_, _compared(metrics))
        members = self._members(trial)
        whole = [self._rounds[m][round_] for m in members if round_ in self._rounds.get(m, {})]
        enough = self._points[trial].phase == "tuning" or len(members) >= self._seeds
        if self._live and enough and len(whole) == len(members):
            journal = self._journals[self._points[trial].key]
            journal.record_round(round_, mean_and_deviation(whole))

    def data(self, trial: str, held: Mapping[str, Any]) -> None:
        """Record the data set of a trial for its setting; all seeds have the same."""
        record_data(self._journals[self._points[trial].key], held)

    def close(self) -> None:
        """Close the journals; a setting without an end event may continue later."""
        for journal in self._journals.values():
            journal.close()
        self._journals.clear()

    def _members(self, trial: str) -> list[str]:
        key = self._points[trial].key
        return [number for number, point in self._points.items() if point.key == key]


def complete_settings(sweep: Path) -> None:
    """End the runs of a sweep's settings.

    A seed that ended before others keeps its last values, so that the last means are those of the table. One
    that failed counts for its rounds alone.

    Parameters
    ----------
    sweep : Path
        The sweep's folder, whose trials have all ended.
    """
    members: dict[str, list[TrialFolder]] = {}
    for trial in trial_folders(sweep):
        held = trial.identity
        key = setting_key(held["setting"], held.get("phase", "comparison"))
        members.setdefault(key, []).append(trial)
    for path in sorted((sweep / SETTINGS).glob(f"*/{JOURNAL}")):
        events = read_events(path)
        if events and events[-1]["type"] == "end":
            continue
        known = rounds_of(events)
        trials = members.get(path.parent.name, [])
        begun = {trial: found for trial in trials if (found := _recorded(trial))}
        every = sorted({round_ for found in begun.values() for round_ in found})
        rounds = [_to_the_end(trial, found, every) for trial, found in begun.items()]
        with Journal(path) as journal:
            for trial in trials:
                record_held(journal, trial.path)
            for round_ in every:
                values = mean_and_deviation([one[round_] for one in rounds if round_ in one])
                if known.get(round_) != values:  # a failed seed may have been repaired
                    journal.record_round(round_, values, replace=True)
            journal.tags({"seeds": str(len(rounds))})
            journal.end("FINISHED" if rounds else "FAILED")


def _to_the_end(trial: TrialFolder, found: Rounds, every: Iterable[int]) -> Rounds:
    """Return a trial's rounds and its last values in later ones, but for costs, and unless it failed."""
    last = {n: value for n, value in found[max(found)].items() if n not in _COSTS}
    return found if trial.status == "failed" else dict.fromkeys(every, last) | found


def mean_and_deviation(seeds: list[dict[str, float]]) -> dict[str, float]:
    """Return the mean of each metric over seeds, and its sample deviation under ``NAME/seed_std``.

    A metric that is not a finite number at every seed has neither, because a round was not evaluated
    or a seed's loss diverged.
    """
    found: dict[str, float] = {}
    for name in seeds[0]:
        values = [one.get(name, math.nan) for one in seeds]
        if all(map(math.isfinite, values)):
            found[name] = statistics.fmean(values)
            if len(values) > 1:
                found[f"{name}/{STD}"] = statistics.stdev(values)
    return found


def _compared(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return the metrics that settings are compared by: means over clients, and costs."""
    return {
        name: value
        for name, value in metrics.items()
        if name in _BESIDES or name.rpartition("/")[0] in VIEWS
    }


def _recorded(trial: TrialFolder) -> Rounds:
    """Return a trial's rounds with the metrics that settings are compared by."""
    return {number: _compared(metrics) for number, metrics in trial.rounds().items()}
