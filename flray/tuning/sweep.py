"""The driver of a sweep, ``flray tune`` and ``flray resume``, and its end: tables, report and the parent run's tags."""

import contextlib
import io
import logging
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pandas as pd
from rich.console import Console

from flray import bits
from flray.config import suites
from flray.config.arms import flatten_setting
from flray.config.experiment import Config, Experiment, choice_line, idle_line
from flray.data.loading import forget_of_user
from flray.errors import ConfigError, RunFailedError, nearest
from flray.federation.ray_backend.placement import open_cluster
from flray.files import write_atomically
from flray.ray_session import chosen_address, joined, local_resources
from flray.records import Journal, directory, read_events
from flray.records.mirror import mirrored
from flray.results import ResultSet, Trial
from flray.results.build_studies import compared_names
from flray.results.choices import tuning_frame
from flray.results.formatting import csv_text
from flray.results.sweep import TEST, SweepResult
from flray.runs import resume_checks
from flray.runs.code import Code
from flray.runs.identity import code_of, run_identity
from flray.runs.progress import Progress
from flray.runs.session import (
    NOTE,
    RunSession,
    list_files,
    record_held,
    recording_failure,
    tracking,
)
from flray.tracking.background import Tracker, run_directories
from flray.tuning import space
from flray.tuning.phases import Batch, Phases, has_reached, metric_of
from flray.tuning.resources import TrialResources
from flray.tuning.reuse import FinishedTrial, FinishedTrials, Sought, undo_half
from flray.tuning.trial_store import (
    ENDED_STATUSES,
    TrialFolder,
    complete_settings,
    retry_failed,
    suggested_settings,
    trial_folders,
)

MOST_IN_FULL = 500
"""Trials of a sweep up to which MLflow gets every round."""
STARTING_SECONDS = 5.0
"""The import of MLflow waits so long: it takes two seconds, as long as the trials' processes import torch."""
REPORT = "report"
RESULTS, SUMMARY, TABLE, TUNING = "results.csv", "summary.csv", "table.txt", "tuning.csv"
_NOTE_LENGTH = 4000
CURVES = "curves.csv"
"""A row per trial and round."""


def rounds_between(trials: int, experiment: Experiment) -> int:
    """Return every which round of a sweep's trials goes to MLflow: of many trials few, but evaluated ones."""
    chosen, parts = experiment.tracking.every, -(-trials // MOST_IN_FULL)
    return chosen or (1 if parts <= 1 else parts * experiment.evaluation.every)


def _check_reference(config: Config, points: Sequence[space.TrialSpec]) -> None:
    """Refuse a reference that is not one of the compared settings."""
    reference = config.sweep.reference
    if reference is None:
        return
    trials = [
        Trial(
            point.number,
            flatten_setting(point.setting if point.compared is None else point.compared),
            point.seed,
            "waiting",
            "",
            pd.DataFrame(),
            point.experiment.algorithm.name,
            Path(),
        )
        for point in points
    ]
    source = ResultSet(config.experiment.name, trials, config.model_dump(mode="json"))
    names = compared_names(source)
    if reference not in names:
        raise ConfigError(
            "sweep.reference",
            repr(reference),
            f"one of what is compared: {', '.join(names)}{nearest(reference, names)}",
        )


def _ended(folder: Path) -> int:
    """Return how many trials of a sweep have ended."""
    return sum(trial.status in ENDED_STATUSES for trial in trial_folders(folder))


class Sweep:
    """A sweep from its checked configuration to its result; `flray.api` drives it.

    Parameters
    ----------
    config : Config
        The sweep.
    address : str or None
        A Ray cluster.
    progress : Progress
        The display.
    stack : ExitStack
        Closes opened resources.

    Attributes
    ----------
    other_gpus : bool
        Whether trials may continue on other GPUs than they began on.
    code : dict
        The code of all trials that are known before the start; see `flray.runs.identity.code_of`.
    """

    def __init__(
        self, config: Config, address: str | None, progress: Progress, stack: contextlib.ExitStack
    ) -> None:
        self._config, self._progress, self._stack = config, progress, stack
        self._address = chosen_address(address, self._progress.tell)
        self._points: dict[str, space.TrialSpec] = {}
        self._phases: Phases | None = None
        self._others = FinishedTrials(
            config.experiment.output, self._progress.tell, empty=not config.sweep.reuse
        )
        self._connected = False
        self.other_gpus = False
        self.code: Code = {}

    @property
    def _total(self) -> int:
        sweep = self._config.sweep
        if self._phases is not None:
            return self._phases.most
        return sweep.samples * len(sweep.seeds) if sweep.search == "optuna" else len(self._points)

    def check(self, folder: Path | None = None) -> None:
        """Build the trials and reject infeasible ones, before anything is created."""
        forget_of_user()
        bits.require(self._config.experiment)
        sweep = self._config.sweep
        if sweep.search == "optuna":
            known = suggested_settings(folder, len(sweep.seeds)) if folder is not None else []
        else:
            known = space.enumerate_settings(self._config) if sweep.tune is None else []
        if sweep.tune is not None or sweep.until is not None:
            self._phases = Phases(self._config, known)
            probes = list(self._phases.probes())
        else:
            self._points = {point.number: point for point in space.trial_specs(self._config, known)}
            probes = list(self._points.values())
            if sweep.search == "optuna":  # it has suggested none so far, or not the largest batch
                probes += space.trial_specs(self._config, [space.first_values(self._config.space)])
        if known or self._phases is not None:
            _check_reference(self._config, probes)
        # A cluster to join determines the resources; our own Ray is started after all checks, or at
        # once if GPUs have to be measured.
        here = local_resources()
        self._joined = self._address is not None or joined()
        early = self._joined or here["GPU"] > 0
        self._available = available = self._connect() if early else here
        metrics = {"sweep.metric": sweep.metric}
        if sweep.tune is not None:
            metrics["sweep.tune.metric"] = sweep.tune.metric
        searching = sweep.search == "optuna"
        self._resources = TrialResources(
            available, self._total, sweep.concurrency, metrics, searching
        )
        self._resources.check(probes)
        self.code = code_of(*(point.experiment for point in probes))

    def drive(self, folder: Path, labels: Mapping[str, str] | None = None) -> SweepResult:
        """Run the remaining trials, finish the parent run, and return the result."""
        config, experiment = self._config, self._config.experiment
        content = config.model_dump(mode="json")
        lines = suites.stand_in_line(content), choice_line(content), idle_line(config)
        for line in filter(None, lines):
            self._progress.tell(line)
        # Tune writes the trials' checkpoints to the address itself, from whichever node they are
        # on.
        if remote := directory.remote_uri(folder, experiment.output):
            self._stack.enter_context(
                mirrored(folder, remote, self._progress.tell, leave=(directory.TUNE,))
            )
        every = rounds_between(self._total, experiment)
        # For `flray sync` every as it is sent here.
        settings = resume_checks.settings_text(config, "sweep") | {"tracking.every": str(every)}
        session = RunSession(
            folder,
            experiment,
            name=f"{experiment.name} {folder.name}",
            # Names of arms are the user's own words, not names of parameters.
            params={key: v for key, v in settings.items() if not key.startswith("arms.")},
            tags={**space.sweep_tags(config), "flray.kind": "sweep"},
            labels=labels,
        )
        self._stack.callback(session.journal.close)
        self._create(folder, list(self._points.values()), self._progress.tell)
        if failed := retry_failed(folder):
            self._progress.tell(
                f"failed trials of a tuning are not run again ({failed}): its choice is compared already"
            )
        begun = iter(run_directories(folder)[1:])
        uri, notify = experiment.tracking.uri, self._progress.tell
        if uri is not None and every != (experiment.tracking.every or 1):
            notify(
                f"{self._total} trials: MLflow gets every {every}. round of each and the last, the journals have all "
                "(tracking.every=1 sends all)"
            )
        # With many trials a server has more to take at the end.
        with (
            tracking(
                folder, uri, notify, begun, 60 + 0.3 * self._total, every, STARTING_SECONDS
            ) as tracker,
            recording_failure(session),
        ):
            try:
                self._run(folder, tracker)
                # Those that were taken over since the beginning have not run here.
                for child, parent in run_directories(folder)[1:] if tracker is not None else ():
                    tracker.register(child, parent_dir=parent)
                self._progress.end()
                result = finish(folder, session.journal, self._progress.values)
                add_report(folder, session.journal)
            finally:
                self._progress.end()
            session.end("finished", tracked_as="FAILED" if result.all_failed else None)
        return result

    def find(self) -> list[tuple[space.TrialSpec, FinishedTrial | None]]:
        """Return the trials, each with the finished one of another sweep that would be taken over for it."""
        first = next(self._batches(Path(os.devnull)), None)  # a sweep of which nothing is there
        points = first.points if first is not None else ()
        return [(point, next(self._others.same(self._sought(point)), None)) for point in points]

    def courses(self, points: Sequence[space.TrialSpec]) -> dict[str, str]:
        """Return by number how each of these trials, the only ones left, would be run, in words."""
        self._resources.replan(len(points), self._available)
        return {point.number: str(self._resources.plan(point.experiment)) for point in points}

    def _batches(self, folder: Path) -> Iterator[Batch]:
        """Yield the batches of trials to run; each batch may depend on the results of the ones before."""
        if self._phases is None:
            yield Batch(tuple(self._points.values()), None, "")
            return
        while (batch := self._phases.next(folder)) is not None:
            yield batch

    def _sought(self, point: space.TrialSpec) -> Sought:
        experiment = point.experiment
        data = self._resources.dataset(experiment).fingerprint
        identity = run_identity(experiment, metric_of(self._config, point), data)
        return Sought(identity, self._resources.gpus(experiment), code_of(experiment))

    def _create(
        self, folder: Path, points: Sequence[space.TrialSpec], notify: Callable[[str], None]
    ) -> None:
        """Create the folders of trials, and take over what other sweeps have finished of them."""
        taken: list[str] = []
        for point in points:
            trial, sought = TrialFolder(folder, point.number), self._sought(point)
            trial.create(point, self._config, sought.identity, sought.code)
            undo_half(trial)
            if trial.status == "waiting" and not (trial.path / directory.JOURNAL).exists():
                found = self._others.take(trial, point, sought, folder, self._config)
                taken += [found.name.rpartition("/")[0]] if found else []
        if taken:
            notify(
                f"{len(taken)} of {len(points)} trials are taken over from {', '.join(dict.fromkeys(taken))}, which "
                "finished them (sweep.reuse=false runs everything)"
            )

    def _run(self, folder: Path, tracker: Tracker | None) -> None:
        """Run the unfinished trials in Tune."""
        import ray

        from flray.tuning.callback import TrialRecorder
        from flray.tuning.tuner import MAX_ATTEMPTS, quiet_ray, run_trials

        over = _ended(folder)
        self._progress.begin(self._total, over)
        with quiet_ray():
            for batch in self._batches(folder):
                if batch.line:
                    self._progress.tell(batch.line)
                points = self._points
                if self._phases is not None:
                    self._points = {point.number: point for point in batch.points}
                    self._create(folder, batch.points, self._progress.tell)
                    known = self._phases.points
                    points = {n: p for n, p in known.items() if TrialFolder(folder, n).exists}
                    self._progress.ended(_ended(folder))
                left = sum(not has_reached(folder, p, batch.until) for p in batch.points)
                if self._config.sweep.search == "optuna":
                    left = self._total - over
                if not left:
                    continue
                if not self._connected:
                    self._connect()
                for line in self._resources.replan(left, ray.cluster_resources()):
                    self._progress.tell(line)
                recorder = TrialRecorder(
                    folder,
                    self._config,
                    points,
                    left * (batch.until or self._config.experiment.rounds),
                    tracker,
                    self._progress,
                    self._joined,
                )
                try:
                    exhausted = run_trials(
                        self._config,
                        folder,
                        self._resources,
                        self._points,
                        lambda points: self._create(folder, points, lambda line: None),
                        recorder,
                        until=batch.until,
                        other_gpus=self.other_gpus,
                        joined=self._address is not None,
                    )
                finally:
                    recorder.close()
                reached = [has_reached(folder, p, batch.until) for p in self._points.values()]
                fewer = self._phases is None and len(reached) < self._total
                if not all(reached) or (fewer and not exhausted):
                    raise KeyboardInterrupt  # Tune has recorded it, and let the trials end their steps
                if fewer:
                    self._progress.tell(
                        f"sweep.samples: {len(reached)} of {self._total} trials were run, because the search found no "
                        f"further setting in {MAX_ATTEMPTS} suggestions; the space may have no more"
                    )
        if not any(trial.identity.get("phase") != "tuning" for trial in trial_folders(folder)):
            reasons = [f.identity.get("failure") for f in trial_folders(folder)]
            first = next((str(reason).splitlines()[0] for reason in reasons if reason), "unknown")
            raise RunFailedError(
                f"{folder}: no setting of any arm ran to the end, so there is nothing to compare; the "
                f"first failure: {first}"
            )

    def start_ray(self) -> None:
        """Start Ray before anything is created, unless other sweeps have finished every trial."""
        trials = self.find()
        if not self._connected and not (trials and all(finished for _, finished in trials)):
            self._connect()

    def _connect(self) -> Mapping[str, float]:
        self._connected = True
        return open_cluster(
            self._stack, self._config.experiment, self._address, self._progress.tell
        )


def finish(
    folder: Path, journal: Journal, show: Callable[[SweepResult], None] = lambda result: None
) -> SweepResult:
    """Write the tables of a sweep whose trials have all ended, and attach them to its runs.

    Parameters
    ----------
    folder : Path
        The sweep's folder.
    journal : Journal
        The parent run's.
    show : callable, optional
        Called once the tables are written.
    """
    result = SweepResult(folder)
    _write(folder, {RESULTS: result.results, SUMMARY: result.summary})
    text = io.StringIO()
    Console(file=text, width=200, highlight=False, markup=False, emoji=False, soft_wrap=True).print(
        result.table()
    )
    write_atomically(folder / TABLE, text.getvalue().encode(), keep_name=False)
    show(result)
    for trial in trial_folders(folder):
        _list_trial(trial)
        record_held(journal, trial.path)
    tuning = {TUNING: tuning_frame(result.data)} if result.data.tuning else {}
    _write(folder, {CURVES: result.curves, **tuning})
    for name in (directory.CONFIG, RESULTS, SUMMARY, CURVES, TABLE, *tuning):
        journal.artifact(name)
    statuses = result.results["status"].value_counts()
    best, tags = result.best, {"score": "score", "score.std": "score_std", "test": TEST}
    journal.tags(
        {
            **{f"trials.{name}": str(int(statuses.get(name, 0))) for name in ENDED_STATUSES},
            **{
                f"best.{name}": f"{best[key]:.6g}"
                for name, key in tags.items()
                if not math.isnan(best.get(key, math.nan))
            },
        }
    )
    complete_settings(folder)
    journal.tags({NOTE: _note(result)})
    label = result.label(result.summary.iloc[0])
    journal.tags({"best": label, "best.metric": ", ".join(result.metrics)})
    return result


def _write(folder: Path, tables: Mapping[str, pd.DataFrame]) -> None:
    for name, table in tables.items():
        write_atomically(folder / name, csv_text(table).encode(), keep_name=False)


def _note(result: SweepResult) -> str:
    """Return the description that MLflow shows of a sweep: its conclusions and its table, as Markdown."""
    lines = [f"- {line}" for line in result.conclusions]
    lines += ["", f"| setting | {', '.join(result.metrics)} | seeds |", "|:--|--:|--:|"]
    for _, row in result.summary.iterrows():
        spread = "" if math.isnan(row["score_std"]) else f" ± {row['score_std']:.4f}"
        label = result.label(row).replace("|", "\\|")
        lines.append(f"| {label} | {row['score']:.4f}{spread} | {int(row['seeds'])} |")
    while len(text := "\n".join(lines)) > _NOTE_LENGTH:
        lines.pop()
    return text


def add_report(folder: Path, journal: Journal) -> None:
    """Write a sweep's report and list it for MLflow; the sweep finishes even if its report fails."""
    from flray.reporting.build import make  # start-up: scikit-learn and matplotlib, at the end only

    try:
        made = make(folder, folder / REPORT)
    except Exception as error:
        journal.tags({"report.failed": f"{type(error).__name__}: {error}"[:400]})
        return
    for path in (*made.files, *made.pictures):
        place = path.relative_to(folder)
        journal.artifact(place.as_posix(), place.parent.as_posix())


def _list_trial(trial: TrialFolder) -> None:
    """List a trial's files for MLflow, once, with its model if that is wanted."""
    events = read_events(trial.path / directory.JOURNAL)
    if any(one["type"] == "artifact" and one["path"] == directory.CONFIG for one in events):
        return
    with Journal(trial.path / directory.JOURNAL) as journal:
        tracking = directory.read_config(trial.path)["experiment"].get("tracking") or {}
        if tracking.get("model") and trial.status == "finished":
            from flray.runs.export import save_mlflow_models  # torch.fx

            save_mlflow_models(trial.path, journal, logging.getLogger("flray").info)
        list_files(trial.path, journal)
