"""The driver of a sweep: ``flray tune`` and, after any interruption, ``flray resume``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from flray import bits, resume_checks, rundir, suites
from flray.config import Config
from flray.federation.cluster import local_resources, ray_session
from flray.importing import importing
from flray.loading import load
from flray.mirror import mirrored
from flray.stopping import resumable
from flray.sweeping import Pbt
from flray.tracking.address import check, redacted
from flray.tracking.journal import Journal
from flray.tracking.tracker import Tracker
from flray.tuning import naming
from flray.tuning.finishing import finish
from flray.tuning.preparing import Preparation
from flray.tuning.progress import Silence, SweepProgress
from flray.tuning.result import SweepResult
from flray.tuning.space import Point, points, resolved, settings
from flray.tuning.trials import OVER, TRIALS, TUNE, TrialFolder, folders, suggested


def tune(source: str | Path | Mapping[str, Any], overrides: Iterable[str] = (), *, address: str | None = None,
         progress: SweepProgress | None = None, smoke: bool = False, **replaced: Any) -> SweepResult:
    """Run a sweep.

    Parameters
    ----------
    source : path or mapping
        A YAML file with ``experiment``, ``space`` and ``sweep``, or its content.
    overrides : iterable of str
        ``key=value``, as on the command line.
    address : str, optional
        A running Ray cluster; without it Ray is started on this machine.
    progress : SweepProgress, optional
        How to show what happens; nothing is shown without.
    smoke : bool
        Only prove that everything runs; see `flray.suites.smoke`.
    **replaced
        Parts of the experiment to replace, for example ``rounds=5``.

    Raises
    ------
    FlrayError
        If a setting or a data file is wrong; then nothing has been created.
    InterruptedRunError
        If the user stopped it; the message says how to go on.
    """
    config = load(source, [*overrides, *replaced.items()])
    config = resolved(suites.smoke(config) if smoke else config)
    with contextlib.ExitStack() as stack:
        sweep = _Sweep(config, address, progress or Silence(), stack)
        sweep.check()
        if config.experiment.tracking.uri is not None:
            check(config.experiment.tracking.uri)
        with rundir.made(config.experiment.output, config.experiment.name) as folder:
            rundir.save_config(folder, config)
            rundir.write(folder, "sweep", {**rundir.new_identity(config.experiment.resources.bits),
                                           "settings": resume_checks.settings_text(config, "sweep")})
        with resumable(folder):
            return sweep.drive(folder)


def resume(folder: Path, *, address: str | None = None, progress: SweepProgress | None = None,
           plugins: Sequence[str] = (), other_cpu: bool = False) -> SweepResult:
    """Continue an interrupted sweep, or return the result of a finished one. Failed trials are tried again.

    Parameters
    ----------
    folder : Path
        The sweep's folder.
    address : str, optional
        As in `tune`.
    progress : SweepProgress, optional
        As in `tune`.
    plugins : sequence of str
        Your own files in place of those that the settings name; see `flray.resume_checks.load_config`.
    other_cpu : bool
        As in `flray.running.resume`.

    Raises
    ------
    FlrayError
        If the sweep's files are damaged, its CPU or settings have changed, or another process runs it.
    InterruptedRunError
        If the user stopped it again.
    """
    config = resolved(resume_checks.load_config(folder, plugins))
    resume_checks.check_unchanged(folder, config)
    with contextlib.ExitStack() as stack:
        sweep = _Sweep(config, address, progress or Silence(), stack)
        if rundir.read(folder)["status"] == "finished" and all(f.status in OVER for f in folders(folder)):
            return SweepResult(folder)
        sweep.check(folder)
        labels = resume_checks.check_cpu(folder, other_cpu)
        with resumable(folder):
            return sweep.drive(folder, labels)


class _Sweep:
    """A sweep from its checked configuration to its result.

    Parameters
    ----------
    config : Config
        The sweep.
    address : str or None
        A Ray cluster.
    progress : SweepProgress
        What the user sees.
    stack : ExitStack
        Gives back what was opened.
    """

    def __init__(self, config: Config, address: str | None, progress: SweepProgress, stack: contextlib.ExitStack
                 ) -> None:
        self._config, self._address, self._progress, self._stack = config, address, progress, stack
        self._points: dict[str, Point] = {}
        self._connected = False

    @property
    def _total(self) -> int:
        sweep = self._config.sweep
        return sweep.samples * len(sweep.seeds) if sweep.search == "optuna" else len(self._points)

    def check(self, folder: Path | None = None) -> None:
        """Make the trials and refuse what cannot run, before anything is created."""
        bits.require(self._config.experiment)
        sweep = self._config.sweep
        if sweep.search == "optuna":
            known = suggested(folder, len(sweep.seeds)) if folder is not None else []
        else:
            known = settings(self._config)
        self._points = {point.number: point for point in points(self._config, known)}
        import ray

        # Where a Ray is to be joined its resources count; a Ray of our own is started once all is checked, or at once
        # where GPUs have to be looked at.
        here = local_resources()
        joined = self._address is not None or ray.is_initialized() or here["GPU"] > 0
        available = self._connect() if joined else here
        self._preparation = Preparation(available, self._total, sweep.concurrency, sweep.metric)
        self._preparation.check(self._points.values() if known else self._probes())

    def _probes(self) -> Iterator[Point]:
        """Yield one trial to check where a search has not suggested any yet: the first value of every domain."""
        setting = {path: next(iter(domain.model_dump().values()))[0] for path, domain in self._config.space.items()}
        yield from points(self._config, [setting])

    def drive(self, folder: Path, labels: Mapping[str, str] | None = None) -> SweepResult:
        """Run what is left, finish the parent run, and return the result."""
        identity, experiment = rundir.read(folder), self._config.experiment
        # Tune writes the trials' checkpoints to the address itself, from whichever node they are on.
        self._stack.enter_context(mirrored(
            folder, rundir.mirror_of(folder, experiment.output), self._progress.say, leave=(TUNE,)))
        journal = self._stack.enter_context(Journal(folder / rundir.JOURNAL))
        tags = {f"version.{name}": version for name, version in identity["versions"].items()}
        # The names of arms are the user's own words, which are no names of parameters.
        params = {key: text for key, text in resume_checks.settings_text(self._config, "sweep").items()
                  if not key.startswith("arms.")}
        if not journal.start(uid=identity["uid"], experiment=experiment.tracking.experiment,
                             name=f"{experiment.name} {folder.name}", params=params,
                             tags={**tags, **naming.tags(self._config), "flray.folder": str(folder),
                                   "flray.kind": "sweep"}):
            journal.resume()
        if labels:
            journal.tags(labels)
        rundir.update(folder, status="running")
        for point in self._points.values():
            TrialFolder(folder, point.number).create(point, self._config)
        for trial in folders(folder):
            # The members of a population go on together, for they influence each other.
            if trial.status == "failed" or isinstance(self._config.sweep.scheduler, Pbt):
                rundir.update(trial.path, status="waiting", setting_at_end=None)
        with _tracking(folder, experiment.tracking.uri, self._progress) as tracker:
            try:
                self._run(folder, tracker)
                result = finish(folder, self._config, journal)
            except BaseException as error:
                stopped = isinstance(error, KeyboardInterrupt)
                journal.end("KILLED" if stopped else "FAILED")
                rundir.update(folder, status="interrupted" if stopped else "failed")
                raise
            finally:
                self._progress.end()
            journal.end("FAILED" if result.all_failed else "FINISHED")
            rundir.update(folder, status="finished")
        return result

    def _run(self, folder: Path, tracker: Tracker | None) -> None:
        """Hand the trials that have not ended to Tune."""
        with importing("flray.tuning.recorder", "flray.tuning.session"):
            from flray.tuning.recorder import Recorder
            from flray.tuning.session import Session, quiet_ray

        over = sum(f.status in OVER for f in folders(folder))
        self._progress.begin(self._total, over)
        if over == self._total:
            return
        with quiet_ray():
            if not self._connected:
                self._connect()
            rounds = (self._total - over) * self._config.experiment.rounds
            recorder = Recorder(folder, self._config, self._points, rounds, tracker, self._progress)
            try:
                Session(self._config, folder, self._preparation, self._points).run(recorder)
            finally:
                recorder.close()
        ended = sum(f.status in (*OVER, "failed") for f in folders(folder))
        if ended < self._total:
            raise KeyboardInterrupt  # Tune has taken note of it, and let the trials end their steps

    def _connect(self) -> dict[str, float]:
        self._connected = True
        return self._stack.enter_context(ray_session(self._address, bits.variables(self._config.experiment)))


@contextlib.contextmanager
def _tracking(folder: Path, uri: str | None, progress: SweepProgress) -> Iterator[Tracker | None]:
    """Send the parent's and the trials' journals while the sweep goes on, and what is left at its end."""
    if uri is None:
        yield None
        return
    tracker = Tracker(uri, say=progress.say)
    tracker.register(folder)
    for trial in sorted((folder / TRIALS).glob(f"*/{rundir.JOURNAL}")):
        tracker.register(trial.parent, parent_dir=folder)
    try:
        yield tracker
    finally:
        unsent = tracker.close(timeout=60.0)
        if unsent:
            progress.say(f"{unsent} entries could not be sent to {redacted(uri)}; they are kept: flray sync {folder}")
