"""Run a sweep, resume a sweep or a run, and write reports: what the commands do, for Python."""

import contextlib
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from flray.config import suites
from flray.config.experiment import Config
from flray.config.loader import load
from flray.data.inventory import stood_in_for
from flray.errors import FlrayError
from flray.files.tracking_address import check
from flray.process import resume_hint
from flray.records import directory
from flray.results import measures
from flray.results.export import kept_results, read_export
from flray.results.load import load_folder
from flray.results.study import forecast
from flray.results.sweep import SweepResult, build_table
from flray.runs import resume_checks, runner
from flray.runs.progress import Progress, SweepProgress, shown
from flray.runs.runner import Result
from flray.tuning.phases import Phases
from flray.tuning.space import enumerate_settings, resolve_sweep
from flray.tuning.sweep import Sweep
from flray.tuning.trial_store import TERMINAL_STATUSES, trial_folders


class PlannedTrial(NamedTuple):
    """A trial of a sweep that has not begun.

    Attributes
    ----------
    number, label : str
        Its number, and its setting with its seed.
    taken_over : str
        The identical finished trial of another sweep, such as ``demo/001/0003``; empty if the
        trial has to be run.
    phase : {"comparison", "tuning"}
        Whether it is compared, or helps to choose the setting that is compared.
    course : str
        How the trials that have to be run share the machine, and when they are estimated to end.
    """

    number: str
    label: str
    taken_over: str
    phase: str = "comparison"
    course: str = ""


def tune(
    source: str | Path | Mapping[str, Any] | Config,
    overrides: Iterable[str] = (),
    *,
    address: str | None = None,
    progress: Progress | bool | None = None,
    smoke: bool = False,
    **replaced: Any,
) -> SweepResult:
    """Run a sweep and write its report.

    Parameters
    ----------
    source : path or mapping
        A YAML file with ``experiment``, ``space`` and ``sweep``, its content, or a checked
        configuration.
    overrides : iterable of str
        ``key=value``, as on the command line.
    address : str, optional
        A running Ray cluster; without it that of ``RAY_ADDRESS``, or else one that is started on this
        machine.
    progress : Progress or bool, optional
        A display, or whether to show one; without, on a terminal and in a notebook.
    smoke : bool
        Only prove that everything runs; see `flray.config.suites.smoke`.
    **replaced
        Parts of the experiment to replace, for example ``rounds=5``.

    Raises
    ------
    FlrayError
        If a setting or a data file is wrong; then nothing has been created.
    InterruptedRunError
        If the user stopped it; the message tells how to continue.
    """
    config = _resolved(source, overrides, smoke, replaced)
    experiment = config.experiment
    with contextlib.ExitStack() as stack:
        sweep = Sweep(config, address, shown(progress, SweepProgress), stack)
        sweep.check()
        check(experiment.tracking.uri)
        sweep.start_ray()
        with directory.new_folder(experiment.output, experiment.name) as folder:
            resume_checks.begin(folder, "sweep", config, sweep.code)
        with resume_hint(folder):
            return sweep.drive(folder)


def _resolved(
    source: str | Path | Mapping[str, Any] | Config,
    overrides: Iterable[str],
    smoke: bool,
    replaced: Mapping[str, Any],
) -> Config:
    """Return the checked configuration of a sweep."""
    config = load(source, overrides, **replaced)
    if smoke:
        whole = resolve_sweep(config)  # and arms that are wrong are refused as without `smoke`
        one = whole.model_copy(update={"sweep": whole.sweep.model_copy(update={"samples": 1})})
        list(Phases(one, enumerate_settings(one)).probes())
        config = suites.smoke(config, stood_in_for())
    return resolve_sweep(config)


def plan(
    source: str | Path | Mapping[str, Any] | Config,
    overrides: Iterable[str] = (),
    *,
    address: str | None = None,
    smoke: bool = False,
    **replaced: Any,
) -> list[PlannedTrial]:
    """Return the trials that `tune` would make, without running anything.

    Parameters
    ----------
    source : path or mapping
        As in `tune`, as are all others.
    overrides : iterable of str
        ``key=value``, as on the command line.
    address : str, optional
        A running Ray cluster.
    smoke : bool
        See `flray.config.suites.smoke`.
    **replaced
        Parts of the experiment to replace.

    Returns
    -------
    list of PlannedTrial
        In order; of a search, none: it suggests them one by one. Where ``sweep.tune`` or
        ``sweep.until`` decide on further ones, those before the first decision.

    Raises
    ------
    FlrayError
        As `tune`.
    """
    config = _resolved(source, overrides, smoke, replaced)
    with contextlib.ExitStack() as stack:
        sweep = Sweep(config, address, Progress(), stack)
        sweep.check()
        found = sweep.find()
        courses = sweep.courses([point for point, taken in found if taken is None])
        return [
            PlannedTrial(
                p.number,
                p.label,
                "" if taken is None else taken.name,
                p.phase,
                courses.get(p.number, ""),
            )
            for p, taken in found
        ]


def detect(config: Config, file: Path, difference: float) -> list[str]:
    """Return the seeds, trials and hours that a sweep needs to show a difference, by measure.

    Parameters
    ----------
    config : Config
        The sweep.
    file : Path
        Its file. The spread is that of the results kept beside it (``NAME.results.csv``), or of the
        newest sweep of the experiment's name in its output folder.
    difference : float
        In points of percent for shares; see `flray.results.study.forecast`.

    Raises
    ------
    FlrayError
        If such results are missing, or the difference is not a positive number.
    """
    if not 0 < difference < math.inf:
        raise FlrayError(f"--detect: found {difference:g}; a difference above 0, such as 1")
    kept, name = file.with_suffix(".results.csv"), config.experiment.name
    if kept.is_file():
        pilot, source = kept, kept_results(read_export(kept))
    else:
        try:
            pilot = directory.find(name, config.experiment.output)
        except FlrayError:
            raise FlrayError(
                f"--detect: found neither {kept} nor a sweep {name!r} in {config.experiment.output}, whose "
                "seeds show the spread; run a pilot first, with sweep.seeds=[0,1,2]"
            ) from None
        source = load_folder(pilot)
    times = [measures.total(one, "time/round") for one in source.trials if len(one.history)]
    found, seconds = build_table(source).studies, sum(times) / max(1, len(times))
    lines = list(forecast(found, seconds, difference))
    if not lines:
        raise FlrayError(
            f"--detect: found nothing in {pilot} that is compared; a pilot has two settings at two seeds "
            "at least, such as sweep.seeds=[0,1,2]"
        )
    return [f"pilot: {pilot}", *lines]


def resume(
    what: str | Path,
    *,
    base: str | Path = "runs",
    address: str | None = None,
    progress: Progress | bool | None = None,
    sweep_progress: Progress | bool | None = None,
    plugins: Sequence[str] = (),
    other_cpu: bool = False,
    other_code: bool = False,
    rounds: int | None = None,
) -> Result | SweepResult:
    """Continue an interrupted run or sweep, or return the result of a finished one.

    A sweep's failed trials run again, those of a tuning only until its choice is compared.

    Parameters
    ----------
    what : str or Path
        Its folder, name (the newest) or name and number.
    base : str or Path
        Folder of runs and sweeps, for names.
    address : str, optional
        As in `tune`.
    progress, sweep_progress : Progress or bool, optional
        As in `flray.run` (a run) and `tune` (a sweep).
    plugins : sequence of str
        Your files that replace those that the settings name; see
        `flray.runs.resume_checks.load_config`.
    other_cpu : bool
        Continue even if this CPU or GPU computes other bits than the one that it began with.
    other_code : bool
        Continue even if the code is not the one that it began with.
    rounds : int, optional
        Another number of rounds than the run began with; see `flray.runs.runner.resume`.

    Raises
    ------
    FlrayError
        If its files are damaged, its CPU, GPUs, data, code or settings have changed, or another
        process runs it.
    InterruptedRunError
        If the user stopped it again.
    """
    folder = directory.find(str(what), base)
    if folder.resolve().parent.name == directory.TRIALS:
        raise FlrayError(
            f"{folder}: a trial goes on with its sweep: flray resume {folder.parent.parent}"
        )
    shared: dict[str, Any] = {
        "address": address,
        "plugins": plugins,
        "other_cpu": other_cpu,
        "other_code": other_code,
    }
    if directory.folder_kind(folder) == "run":
        return runner.resume(folder, progress=progress, rounds=rounds, **shared)
    if rounds is not None:
        raise FlrayError(
            f"{folder}: rounds={rounds}: a sweep keeps its number of rounds; start one with more"
        )
    return resume_sweep(folder, progress=sweep_progress, **shared)


def resume_sweep(
    folder: Path,
    *,
    address: str | None = None,
    progress: Progress | bool | None = None,
    plugins: Sequence[str] = (),
    other_cpu: bool = False,
    other_code: bool = False,
) -> SweepResult:
    """Continue an interrupted sweep, given its folder; see `resume`."""
    config = resolve_sweep(resume_checks.load_config(folder, plugins))
    resume_checks.check_unchanged(folder, config)
    with contextlib.ExitStack() as stack:
        sweep = Sweep(config, address, shown(progress, SweepProgress), stack)
        if directory.read(folder)["status"] == "finished" and all(
            trial.status in TERMINAL_STATUSES for trial in trial_folders(folder)
        ):
            return SweepResult(folder)
        resume_checks.check_own(folder, config)
        with resume_checks.held(folder):
            sweep.check(folder)
            labels = resume_checks.check_code(folder, sweep.code, other_code)
            labels |= resume_checks.check_cpu(folder, other_cpu)
        sweep.other_gpus = other_cpu
        with resume_hint(folder):
            return sweep.drive(folder, labels)
