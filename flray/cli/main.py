"""The command line: parse, call, print; and the commands that train: run, tune, resume.

A user's mistake is one line on stderr and exit code 2.
"""

from __future__ import annotations

import gc
import io
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flray import errors
from flray.cli import commands as others
from flray.cli.arguments import (
    Address,
    AsJson,
    ConfigFile,
    OutputFolder,
    Overrides,
    PluginFiles,
    RunName,
    command,
    refuse_together,
)
from flray.process import InterruptedRunError, discard_output, own_version, signals_as_interrupt

if TYPE_CHECKING:
    from flray.results.sweep import SweepResult


commands = typer.Typer()


@command(commands, "run", "flray run demo.yaml algorithm=fedprox local.lr=0.05")
def run_command(
    file: ConfigFile, overrides: Overrides = None, address: Address = None, as_json: AsJson = False
) -> None:
    """Run one federation."""
    from flray import bits
    from flray.cli import display
    from flray.config import loader
    from flray.ray_session import ray_ahead

    config = loader.load(file, overrides or ())  # before torch: a mistake is told at once
    loader.check_single(config, file)
    bits.prepare(config.experiment)
    with ray_ahead(config.experiment.resources.executor == "ray", address, "flray.runs.runner"):
        from flray.runs import runner

        display.show_result(runner.start(config, address=address, progress=True), as_json)


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
    from flray import bits
    from flray.cli import display
    from flray.config import loader, yaml_files
    from flray.ray_session import ray_ahead

    refuse_together("--detect", detect is not None, ("--plan", plan), ("--smoke", smoke))

    config = loader.load(file, overrides or ())  # before torch: a mistake is told at once
    bits.prepare(config.experiment)
    if detect is None and not plan:
        with ray_ahead(True, address, "flray.api"):
            from flray import api as sweeps

            progress = display.SweepProgress()
            result = sweeps.tune(config, address=address, progress=progress, smoke=smoke)
        _show_sweep(result, progress.has_values, as_json, yaml_files.locate(file))
        return
    from flray import api as sweeps

    if detect is not None:
        lines = sweeps.detect(config, yaml_files.locate(file), detect)
        if as_json:
            display.print_json(lines)
            return
        for line in lines:
            typer.echo(errors.one_line(line))
        return
    planned = sweeps.plan(config, address=address, smoke=smoke)
    display.show_plan(planned, as_json, config.sweep.samples * max(1, len(config.sweep.seeds)))


def _show_sweep(
    result: SweepResult, has_values: bool, as_json: bool = False, file: Path | None = None
) -> None:
    """Show the rest of a sweep's result; a sweep without results ends like a failed run."""
    from flray.cli import display
    from flray.results.verify import agreement

    if as_json:
        rows = json.loads(result.summary.to_json(orient="records", double_precision=15))
        found = {"sweep": str(result.folder), "conclusions": result.conclusions, "settings": rows}
        display.print_json(found)
    else:
        if not has_values:  # it had ended before
            display.console.print(result.table())
        display.show_places(result)
        kept = file.with_suffix(".results.csv") if file is not None else None
        if kept is not None and kept.is_file():
            try:
                line = agreement(result.data, kept)
            except errors.FlrayError as error:  # the sweep has ended well all the same
                line = str(error)
            if line:
                typer.echo(errors.one_line(line))
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
        another number of rounds for a run, as if it had begun with it
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
    from flray import api
    from flray.cli import display
    from flray.runs import resume_checks, runner

    sweep_progress = display.SweepProgress()
    result = api.resume(
        target,
        base=output,
        address=address,
        progress=True,
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


app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Which federated-learning method works under this data heterogeneity, at which settings, and how sure are we?",
    epilog="Example: flray run demo.yaml local.lr=0.05; each command's own --help has one.",
)
app.add_typer(commands)
app.add_typer(others.commands)
app.add_typer(others.data_commands, name="data")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"flray {own_version()}")
        raise typer.Exit


@app.callback()
def all_commands(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_show_version, is_eager=True, help="print flray's version"
        ),
    ] = False,
) -> None:
    """Options of all commands; the help text is the app's."""


# typer brings a click of its own or uses the one that is installed, depending on its version.
UsageError: type[Exception] = typer.BadParameter.__bases__[0]


def main(command: str | None = None) -> None:
    """Entry point.

    Parameters
    ----------
    command : str, optional
        The one command that this process is for: ``python -m flray.tune``. Without it the first
        argument names one.
    """
    # Imports make millions of objects and next to no garbage: Python would look for it a thousand times.
    gc.set_threshold(50_000)
    for name in ("stdin", "stdout", "stderr"):  # a service may have closed them
        if getattr(sys, name) is None:
            nothing = Path(os.devnull).open("r" if name == "stdin" else "w")  # noqa: SIM115
            setattr(sys, name, nothing)
    if isinstance(
        sys.stdout, io.TextIOWrapper
    ):  # a locale may have no sign for ± or a user's names
        sys.stdout.reconfigure(errors="replace")
    module = getattr(sys.modules.get("__main__"), "__spec__", None)
    typed = Path(sys.argv[0]).name
    if module is not None:
        typed = f"python -m {module.name.removesuffix('.__main__')}"
    code = invoke(sys.argv[1:], command, typed, alone=True)
    gc.freeze()  # no search at exit: a second or two with torch, Ray and MLflow
    sys.exit(code)


def invoke(
    arguments: list[str], command: str | None = None, typed: str = "flray", alone: bool = False
) -> int:
    """Run a command line.

    Parameters
    ----------
    arguments : list of str
        The words that were typed after the command's name.
    command : str, optional
        The command that the arguments are for, if they do not name it themselves.
    typed : str
        The command's name as it was typed, for usage lines.
    alone : bool
        Whether the process runs nothing else, so that it may be restarted if `flray.bits`
        needs that.

    Returns
    -------
    int
        0, 1 for a failed run, 2 for a mistake, 3 for explained differences of ``flray verify``,
        130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP.
    """
    if sys.platform == "win32":  # no SIGHUP, no resource module, no folders that can be synced
        typer.echo("flray: it runs on Linux and macOS; on Windows install it in WSL 2", err=True)
        return 2
    with signals_as_interrupt() as stop:
        try:
            return stop.code(_invoke(arguments, command, typed, alone))
        except KeyboardInterrupt:  # asked again while it stops
            return stop.code(130)
        finally:
            if (display := sys.modules.get("flray.cli.display")) is not None:
                display.to_stderr(False)  # another command of this process may print its own way


def _at_home(word: str) -> str:
    """Return an option whose value is in the home folder, which shells leave as it is: ``--to=~/x``."""
    option, found, rest = word.partition("=~/")
    return f"{option}={Path.home() / rest}" if found and word.startswith("--") else word


def _invoke(arguments: list[str], command: str | None, typed: str, alone: bool) -> int:
    try:
        parser = typer.main.get_command(app)
        if command is not None:
            parser = parser.commands[command]  # type: ignore[attr-defined]
        words = list(map(_at_home, arguments))
        ended = parser.main(words, prog_name=typed, standalone_mode=False)
        if ended == 130:  # typer's own word for Ctrl-C
            raise KeyboardInterrupt
        return ended if isinstance(ended, int) else 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else 0
    except (KeyboardInterrupt, typer.Abort):
        typer.echo("stopped", err=True)
        return 130
    except UsageError as error:
        return _usage_error(error, typed)
    except InterruptedRunError as error:
        typer.echo(str(error), err=True)
        return error.code
    except errors.MethodError as error:
        typer.echo("\n".join(map(errors.one_line, str(error).split("\n"))), err=True)
        return 1
    except errors.FlrayError as error:
        if alone and type(error).__name__ == "StartAgainError":
            from flray.bits import (
                start_again,  # it takes the settings' models, which --help needs not
            )

            start_again()
        typer.echo(f"flray: {error}", err=True)
        return 1 if isinstance(error, errors.RunFailedError) else 2
    except (MemoryError, RuntimeError) as error:
        if str(error).startswith("Symlink loop"):  # Python 3.11 has no OSError for it
            typer.echo(errors.one_line(f"flray: {error}; name another file"), err=True)
            return 2
        if not errors.memory_is_short(error):
            raise
        what = f"{errors.brief(error)}; smaller data, network or batches"
        typer.echo(f"flray: out of memory: {what}", err=True)
        return 2
    except BrokenPipeError:
        discard_output([1])
        return 1
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        what = f"a file: {errors.brief(error)}"
        if errors.disk_is_full(error):
            what = f"no space left on the disk{where}; make room, then go on with flray resume"
        typer.echo(errors.one_line(f"flray: {what}"), err=True)
        return 1


def _usage_error(error: Any, typed: str) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":  # its text is the whole help
        error.show()
    else:
        path = error.ctx.command_path if error.ctx is not None else typed
        line = f"flray: {error.format_message()} (usage: {path} --help)"
        typer.echo(errors.one_line(line), err=True)
    return 2


if __name__ == "__main__":
    main()
