"""Tune callback: record every round in the trial's journal."""

import contextlib
import itertools
import json
import math
import statistics
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from ray.tune import Callback

from flray.config.experiment import Config
from flray.errors import FlrayError, one_line
from flray.federation.ray_backend import nodes
from flray.federation.ray_backend.losses import NODE_DIED, PROBABLE_CAUSE, PROCESS_DIED
from flray.federation.unused import UNUSED
from flray.federation.worker.diagnostics import save_encoded
from flray.metrics import is_lower_better_in
from flray.records import directory
from flray.runs.loop import RoundRecorder
from flray.runs.progress import Progress
from flray.runs.session import EndStatus, RunSession, data_tags, record_data
from flray.tracking.background import Tracker, parent_of
from flray.tuning.reuse import file_digests
from flray.tuning.space import TrialSpec, setting_title
from flray.tuning.trial_store import ENDED_STATUSES, SettingRuns, TrialFolder

# The result of a trial's step, with Tune's own values.
Report = dict[str, Any]


class Standing:
    """The status of a sweep: its trials' statuses and scores so far.

    Parameters
    ----------
    sweep : Path
        The sweep's folder; trials that ended before are read from there.
    points : mapping of str to TrialSpec
        The trials by number; new ones may be added while the sweep runs.
    settings : mapping, optional
        Those of ``sweep``, whose ``mode`` counts.
    """

    def __init__(
        self,
        sweep: Path,
        points: Mapping[str, TrialSpec],
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        self._points, self._settings = points, settings
        # The status, score and metric of each trial, and the title and key of its setting: titles
        # agree if only the later digits of a number differ.
        self._trials: dict[str, tuple[str, float, str, tuple[str, str]]] = {}
        for number in points:
            with contextlib.suppress(FlrayError):  # a search creates some folders later
                folder = TrialFolder(sweep, number)
                metric = str(folder.identity.get("metric") or "")
                # One that was killed is said to run.
                status = folder.status if folder.status in ENDED_STATUSES else "waiting"
                self.add(number, status, folder.last_score(), metric)

    def add(self, number: str, status: str, score: float, metric: str) -> None:
        """Record a trial's status and its score (NaN if it has none)."""
        point = self._points[number]
        self._trials[number] = status, score, metric, (setting_title(point), point.key)

    def line(self) -> str:
        """Return the numbers of ended, running and failed trials, and the best setting."""
        found = Counter(status for status, *_ in self._trials.values())
        ended = sum(found[status] for status in ENDED_STATUSES)
        parts = [f"{ended} of {len(self._points)} trials ended", f"{found['running']} running"]
        parts += [f"{found['failed']} failed"] if found["failed"] else []
        best = self.best()
        return ", ".join(parts) + (f"; best so far: {best}" if best else "")

    def best(self) -> str:
        """Return the best setting of those that ended; empty while none has.

        Scores of different metrics say nothing of each other: with global and clients' own models in
        one sweep, that is the best by each.
        """
        ended = {
            number: (score, metric, setting)
            for number, (status, score, metric, setting) in self._trials.items()
            if status == "finished" and not math.isnan(score)
        }
        compared = {n: one for n, one in ended.items() if self._points[n].phase != "tuning"}
        found: dict[str, dict[tuple[str, str], list[float]]] = {}
        for score, metric, setting in (compared or ended).values():
            found.setdefault(metric, {}).setdefault(setting, []).append(score)
        if len(found) == 1:
            return self._best(*found.popitem())
        return "; ".join(
            f"by {metric}: {self._best(metric, settings)}"
            for metric, settings in sorted(found.items())
        )

    def _best(self, metric: str, settings: Mapping[tuple[str, str], list[float]]) -> str:
        """Return the best of settings by the mean of their scores."""
        sign = -1 if is_lower_better_in(self._settings, metric) else 1
        (title, _), scores = max(
            settings.items(), key=lambda item: (sign * statistics.fmean(item[1]), item[0])
        )
        mean = statistics.fmean(scores)
        return f"{title}, {mean:.4f} ({len(scores)} seed{'s' if len(scores) > 1 else ''})"


class TuneTrial(Protocol):
    """A trial as Tune sees it, which has no types; its text is its number."""

    config: dict[str, Any]
    status: str
    last_result: Report | None
    error_file: str | None


class TrialRecorder(Callback):  # type: ignore[misc]
    """Tune's callback in the driver.

    Parameters
    ----------
    sweep : Path
        The sweep's folder.
    config : Config
        The sweep.
    points : mapping of str to TrialSpec
        The trials by number; new ones may be added while the sweep runs.
    left : int
        Remaining rounds if no trial stops early.
    tracker : Tracker or None
        Sender of the journals.
    progress : Progress
        The display.
    joined : bool
        Whether others may use the same Ray.
    """

    def __init__(
        self,
        sweep: Path,
        config: Config,
        points: Mapping[str, TrialSpec],
        left: int,
        tracker: Tracker | None,
        progress: Progress,
        joined: bool = False,
    ) -> None:
        self._config = config
        self._idle = time.monotonic() if joined else math.inf  # since then no trial has run
        self._sweep, self._points, self._tracker, self._progress = sweep, points, tracker, progress
        self._parent = directory.read(sweep)
        self._sessions: dict[str, RunSession] = {}
        self._own: dict[str, RoundRecorder] = {}
        self._settings = SettingRuns(sweep, config, points)
        self._unused: set[str] = set()
        self._done: dict[str, int] = {}
        self._metrics: dict[str, str] = {}
        self._standing = Standing(sweep, points, config.sweep.model_dump())
        self._best = ""
        self._left = left
        self._begun: float | None = None
        self._rounds_run = 0

    def __getstate__(self) -> dict[str, Any]:
        """Return no state: Tune pickles its callbacks, and this one's state is in the folder."""
        return {}

    def on_step_end(self, iteration: int, trials: list[TuneTrial], **info: object) -> None:
        """Notify the user, once, if no trial has room."""
        waiting = next((trial for trial in trials if trial.status == "PENDING"), None)
        if waiting is None or any(trial.status == "RUNNING" for trial in trials):
            self._idle = max(self._idle, time.monotonic())
        elif time.monotonic() > self._idle + nodes.WAIT_SECONDS:
            self._idle = math.inf
            self._progress.tell(
                nodes.no_room(f"trial {waiting}", waiting.config["point"]["bundles"])
            )

    def on_trial_start(
        self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: object
    ) -> None:
        """Open the trial's journal, once."""
        number = str(trial)
        if number in self._sessions:
            return
        self._begun = (
            self._begun or time.monotonic()
        )  # the start of the first processes says nothing about the rest
        point, folder = self._points[number], TrialFolder(self._sweep, number)
        session = self._sessions[number] = folder.begin(point, self._parent, self._config)
        self._own[number] = RoundRecorder(
            session.journal,
            point.experiment,
            name=point.label,
            group=f"{self._config.experiment.name} {self._sweep.name}",
            metric=self._config.sweep.metric,
            say=lambda line: self._progress.tell(f"trial {number}: {line}"),
        )
        self._own[number].begin()
        setting = self._settings.open(number)
        self._done[number] = max((event["round"] for event in session.journal.rounds()), default=0)
        self._left -= self._done[number]
        if self._tracker is not None:
            self._tracker.register(setting, parent_dir=self._sweep)
            self._tracker.register(folder.path, parent_dir=parent_of(folder.path))
        self._progress.trial_started(number, point.label, self._done[number])
        self._stands(number, "running", math.nan)

    def on_trial_result(
        self,
        iteration: int,
        trials: list[TuneTrial],
        trial: TuneTrial,
        result: Report,
        **info: object,
    ) -> None:
        """Record the rounds of a step."""
        number, done = str(trial), int(result["training_iteration"])
        point, recorder = self._points[number], self._own[number]
        report = json.loads(result["report"])
        self._metrics[number] = report["metric"]
        for line in report["lines"]:
            if line not in self._unused:  # which is said once, and not of every seed
                self._progress.tell(f"trial {number}: {line}")
        self._unused |= {line for line in report["lines"] if line.startswith(UNUSED)}
        self._save_diagnostics(number, report)
        # Rounds of the trial's checkpoint that the journal lacks, and then those of the step: a
        # checkpoint is written before its rounds are reported.
        rounds = report["rounds"]
        newest = enumerate(rounds, start=done - len(rounds) + 1)
        for round_, metrics in itertools.chain(report["carried"], newest):
            self._left -= recorder.round(round_, metrics)
            self._settings.add(number, round_, metrics)
        self._done[number] = max(self._done[number], done)
        if not rounds:
            return
        recorder.journal.sync()
        self._rounds_run += len(rounds)
        pace = (time.monotonic() - (self._begun or 0.0)) / self._rounds_run
        self._progress.round(
            number,
            point.label,
            done,
            point.experiment.rounds,
            float(result["score"]),
            pace * max(0, self._left),
        )

    def _save_diagnostics(self, number: str, report: Mapping[str, Any]) -> None:
        """Save diagnostics for the report's figures."""
        folder = TrialFolder(self._sweep, number).path
        if held := report.get(directory.PARTITION):
            directory.save_partition(held, folder)
            record_data(self._sessions[number].journal, held)
            self._settings.data(number, held)
            self._sessions[number].journal.tags(data_tags(held))
        for name in (directory.INITIAL_DIAGNOSTICS, directory.FINAL_DIAGNOSTICS):
            if report.get(name):
                save_encoded(report[name], folder / name)

    def on_trial_complete(
        self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: object
    ) -> None:
        """Record that a trial is finished, was stopped early, or failed at once."""
        result = trial.last_result or {}
        report = json.loads(result["report"]) if "report" in result else {}
        rounds = self._points[str(trial)].experiment.rounds
        if report.get("failure"):
            self._end(trial, "failed", failure=report["failure"])
        elif report.get("paused"):
            self._end(trial, "interrupted")
        elif report.get("sha256") or int(result.get("training_iteration", 0)) >= rounds:
            left = file_digests(TrialFolder(self._sweep, str(trial)).path)
            gpus = report.get("gpus", [])
            self._end(trial, "finished", sha256=report.get("sha256"), gpus=gpus, **left)
        else:
            self._end(trial, "stopped")

    def on_trial_recover(
        self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: object
    ) -> None:
        """Notify the user that a trial crashed and is retried."""
        reason = _reason(trial)
        if NODE_DIED in reason:
            self._progress.tell(
                f"trial {trial} lost its node; it goes on elsewhere from its last checkpoint"
            )
            return
        self._progress.tell(
            f"trial {trial} crashed ({reason}); it is tried again from its last checkpoint"
        )

    def on_trial_error(
        self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: object
    ) -> None:
        """Record that a trial crashed for the last time."""
        if str(trial) not in self._sessions:  # its process ended each time before it had begun
            self.on_trial_start(iteration, trials, trial)
        self._end(trial, "failed", failure=_reason(trial))

    def close(self) -> None:
        """End the journals of trials that were interrupted."""
        for own in self._own.values():
            own.end("interrupted")
        for session in self._sessions.values():
            with contextlib.suppress(OSError):
                session.journal.end("KILLED")
            session.journal.close()
        self._sessions.clear()
        self._settings.close()

    def _end(self, trial: TuneTrial, status: EndStatus, **values: Any) -> None:
        number = str(trial)
        session = self._sessions.pop(number, None)
        if session is None:
            return
        self._own.pop(number).end(status)
        point, done = self._points[number], self._done[number]
        folder = TrialFolder(self._sweep, number)
        folder.end(session, status, rounds=done, metric=self._metrics.get(number), **values)
        session.journal.close()
        if status == "interrupted":  # it goes on when what it waits for is decided
            self._stands(number, "waiting", math.nan)
            return
        self._left -= point.experiment.rounds - done
        if values.get("failure"):
            self._progress.tell(
                f"trial {number} ({point.label}) failed: {values['failure'].splitlines()[0]}"
            )
        score = folder.last_score(done)
        self._progress.trial_done(number, point.label, status, done, score)
        self._stands(number, status, score)

    def _stands(self, number: str, status: str, score: float) -> None:
        self._standing.add(number, status, score, self._metrics.get(number, ""))
        self._progress.standing(self._standing.line())
        best = self._standing.best()
        if best != self._best:  # for those who look from elsewhere
            self._best = best
            directory.update(self._sweep, best=best)


def _reason(trial: TuneTrial) -> str:
    """Return the latest error of a trial in one line, read from Tune's error file on this machine."""
    text = ""
    if trial.error_file is not None:
        with contextlib.suppress(OSError):
            text = Path(trial.error_file).read_text(encoding="utf-8", errors="replace")
    lines = [line.strip() for line in text.rpartition("\nFailure # ")[2].splitlines()]
    said = [line for line in lines if line]
    dead = next((line for line in said if NODE_DIED in line), None)
    if dead is None and any(PROCESS_DIED in line for line in said):
        return f"its process has died: {PROBABLE_CAUSE}"
    return one_line(dead or said[-1]) if said else "unknown error"
