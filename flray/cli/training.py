"""Commands that train: run, tune, resume."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flray.cli.arguments import (
    Address,
    AsJson,
    ConfigFile,
    OutputFolder,
    Overrides,
    PluginFiles,
    RunName,
    command,
)
from flray.errors import one_line
from flray.startup import gc_disabled

if TYPE_CHECKING:
    from flray.results.sweep import SweepResult

commands = typer.Typer()


@command(commands, "run", "flray run demo.yaml algorithm=fedprox local.lr=0.05")
def run_command(
    file: ConfigFile, overrides: Overrides = None, address: Address = None, as_json: AsJson = False
) -> None:
    """Run one federation."""
    from flray.cli import display
    from flray.config import loader

    display.to_stderr(as_json)

    config = loader.load(file, overrides or ())  # before torch: a mistake is told at once
    loader.check_single(config, file)
    with gc_disabled("flray.runs.runner"):
        from flray.runs import runner

    with display.RunProgress() as progress:
        result = runner.start(config, address=address, progress=progress)
    display.show_result(result, as_json)


@command(commands, "tune", "flray tune quickstart sweep.seeds=[0]")
def tune_command(
    file: ConfigFile,
    overrides: Overrides = None,
    address: Address = None,
    smoke: bool = False,
    plan: bool = False,
    detect: Annotated[float | None, typer.Option(metavar="DIFFERENCE")] = None,
    as_json: AsJson = False,
) -> None:
    """Run a sweep over the file's space; what sweeps in its output folder have finished is taken over.

    Parameters
    ----------
    file : Path
        the sweep
    overrides : list of str, optional
        settings that replace the file's
    address : str, optional
        a running Ray cluster
    smoke : bool
        only prove that every method runs: two small rounds, on noise where data are missing
    plan : bool
        only list the trials, and which of them other sweeps have finished
    detect : float, optional
        only say how many seeds, trials and hours show such a difference (points of percent), from
        the results beside the file, or the newest sweep of its name
    as_json : bool
        as JSON, for scripts
    """
    from flray.cli import display
    from flray.config import loader, spaces

    display.to_stderr(as_json)

    config = loader.load(file, overrides or ())  # before torch: a mistake is told at once
    with gc_disabled("flray.api"):
        from flray import api as sweeps

    if detect is not None:
        lines = sweeps.detect(config, spaces.locate(file), detect)
        if as_json:
            display.print_json(lines)
            return
        for line in lines:
            typer.echo(one_line(line))
        return
    if plan:
        planned = sweeps.plan(config, address=address, smoke=smoke)
        suggested = config.sweep.samples * max(1, len(config.sweep.seeds))
        display.show_plan(planned, as_json, suggested)
        return
    with display.SweepProgress() as progress:
        result = sweeps.tune(config, address=address, progress=progress, smoke=smoke)
    _show_sweep(result, progress.has_values, as_json, spaces.locate(file))


def _show_sweep(
    result: SweepResult, has_values: bool, as_json: bool = False, file: Path | None = None
) -> None:
    """Show the rest of a sweep's result; a sweep without results ends like a failed run."""
    from flray.cli import display
    from flray.results.verify import agreement

    if as_json:
        display.print_json(display.sweep_values(result))
    else:
        if not has_values:  # it had ended before
            display.show_values(result)
        display.show_places(result)
        kept = file.with_suffix(".results.csv") if file is not None else None
        if kept is not None and kept.is_file() and (line := agreement(result.data, kept)):
            typer.echo(line)
    if result.all_failed:
        raise typer.Exit(1)


@command(commands, "resume", "flray resume demo rounds=200")
def resume_command(
    target: RunName,
    settings: Annotated[list[str] | None, typer.Argument(metavar="[rounds=N]")] = None,
    address: Address = None,
    output: OutputFolder = "runs",
    plugin: PluginFiles = None,
    other_cpu: Annotated[bool, typer.Option("--other-hardware", "--other-cpu")] = False,
    other_code: bool = False,
    as_json: AsJson = False,
) -> None:
    """Continue an interrupted run or sweep, to the same bits, or a finished run with more rounds.

    Parameters
    ----------
    target : str
        the run
    settings : list of str, optional
        more rounds for a run, as if it had begun with them
    address : str, optional
        a running Ray cluster
    output : str
        folder of runs and sweeps
    plugin : list of str, optional
        Python files that replace those of the settings
    other_cpu : bool
        continue even if the CPU or the GPUs here compute other last bits than those it began on
    other_code : bool
        continue even if your files, flray or a library are not those that it began with
    as_json : bool
        as JSON, for scripts
    """
    with gc_disabled("flray.cli.display", "flray.api"):
        from flray import api
        from flray.cli import display
        from flray.runs import resume_checks, runner

    display.to_stderr(as_json)
    with display.RunProgress() as progress, display.SweepProgress() as sweep_progress:
        result = api.resume(
            target,
            base=output,
            address=address,
            progress=progress,
            sweep_progress=sweep_progress,
            plugins=plugin or (),
            other_cpu=other_cpu,
            other_code=other_code,
            rounds=resume_checks.parse_rounds(settings or ()),
        )
    if isinstance(result, runner.Result):
        display.show_result(result, as_json)
    else:
        _show_sweep(result, sweep_progress.has_values, as_json)
