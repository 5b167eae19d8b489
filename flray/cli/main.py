"""The command line: parse, call, print. A user's mistake is one line on stderr and exit code 2."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flray.errors import FlrayError, MethodError, RunFailedError, disk_is_full, one_line
from flray.interrupts import InterruptedRunError, signals_as_interrupt
from flray.startup import freeze_gc, gc_disabled

if TYPE_CHECKING:
    from flray.results.costs import Cost
    from flray.results.sweep import SweepResult

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Which federated-learning method works under this data heterogeneity, at which settings, and how sure are we?",
    epilog="Example: flray run demo.yaml local.lr=0.05; each command's own --help has one.",
)
data_app = typer.Typer(
    no_args_is_help=True,
    help="Fetch data sets and look at partitions.",
    epilog="Example: flray data show digits-sklearn",
)
app.add_typer(data_app, name="data")


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"flray {metadata.version('flray')}")
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


def _complete(which: str) -> Callable[[str], list[str]]:
    """Return what a shell completes an argument with; see `flray.cli.completion`."""

    def words(incomplete: str) -> list[str]:
        from flray.cli import completion

        found: list[str] = getattr(completion, which)(incomplete)
        return found

    return words


ConfigFile = Annotated[
    Path,
    typer.Argument(
        metavar="FILE.yaml",
        help="the experiment or search space, or the name of one that comes with flray, such as quickstart",
        autocompletion=_complete("files"),
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[KEY=VALUE]...",
        help="settings that replace the file's, for example local.lr=0.05",
        autocompletion=_complete("settings"),
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="as JSON, for scripts")]
RunName = Annotated[
    str,
    typer.Argument(
        metavar="RUN",
        help="its folder, NAME/NUMBER, or NAME for the newest",
        autocompletion=_complete("runs"),
    ),
]
Address = Annotated[
    str | None,
    typer.Option(
        help="a running Ray cluster ('auto' on its head), or local; default: RAY_ADDRESS, else this machine"
    ),
]


@app.command("run", epilog="Example: flray run demo.yaml algorithm=fedprox local.lr=0.05")
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
    if as_json:
        display.print_json(display.result_values(result))
    else:
        display.show_result(result)


@app.command("tune", epilog="Example: flray tune quickstart sweep.seeds=[0]")
def tune_command(
    file: ConfigFile,
    overrides: Overrides = None,
    address: Address = None,
    smoke: Annotated[
        bool,
        typer.Option(
            "--smoke",
            help="only prove that every method runs: two small rounds, on noise where data are missing",
        ),
    ] = False,
    plan: Annotated[
        bool,
        typer.Option(
            "--plan", help="only list the trials, and which of them other sweeps have finished"
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Run a sweep over the file's space; what sweeps in its output folder have finished is taken over."""
    from flray.cli import display
    from flray.config import loader

    display.to_stderr(as_json)

    config = loader.load(file, overrides or ())  # before torch: a mistake is told at once
    with gc_disabled("flray.runs.sweeps"):
        from flray.runs import sweeps

    if plan:
        display.show_plan(sweeps.plan(config, address=address, smoke=smoke))
        return
    with display.SweepProgress() as progress:
        result = sweeps.tune(config, address=address, progress=progress, smoke=smoke)
    _show_sweep(result, progress.has_values, as_json)


def _show_sweep(result: SweepResult, has_values: bool, as_json: bool = False) -> None:
    """Show the rest of a sweep's result; a sweep without results ends like a failed run."""
    from flray.cli import display

    if as_json:
        display.print_json(display.sweep_values(result))
    else:
        if not has_values:  # it had ended before
            display.show_values(result)
        display.show_places(result)
    if result.all_failed:
        raise typer.Exit(1)


@app.command("resume", epilog="Example: flray resume demo rounds=200")
def resume_command(
    target: RunName,
    settings: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[rounds=N]", help="more rounds for a run, as if it had begun with them"
        ),
    ] = None,
    address: Address = None,
    output: Annotated[str, typer.Option(help="folder of runs and sweeps")] = "runs",
    plugin: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE.py",
            help="your own file in place of those that the "
            "run's settings name (may be given several times)",
        ),
    ] = None,
    other_cpu: Annotated[
        bool,
        typer.Option(
            "--other-hardware",
            "--other-cpu",
            help="go on even if the CPU or the GPUs here compute other last bits than those it began on",
        ),
    ] = False,
) -> None:
    """Go on with an interrupted run or sweep, to the same bits; a finished run with more rounds."""
    with gc_disabled("flray.cli.display", "flray.runs.runner"):
        from flray.cli import display
        from flray.runs import directory, extend, runner

    folder = directory.find(target, output)
    rounds = extend.parse_rounds(settings or ())
    if directory.folder_kind(folder) == "run":
        with display.RunProgress() as progress:
            result = runner.resume(
                folder,
                address=address,
                progress=progress,
                plugins=plugin or (),
                other_cpu=other_cpu,
                rounds=rounds,
            )
        display.show_result(result)
    elif rounds is not None:
        raise FlrayError(
            f"{folder}: rounds={rounds}: a sweep keeps its number of rounds; start one with more"
        )
    else:
        from flray.runs import sweeps

        with display.SweepProgress() as sweep_progress:
            swept = sweeps.resume_sweep(
                folder,
                address=address,
                progress=sweep_progress,
                plugins=plugin or (),
                other_cpu=other_cpu,
            )
        _show_sweep(swept, sweep_progress.has_values)


@app.command("report", epilog="Example: flray report demo --to tables")
def report_command(
    target: Annotated[
        str,
        typer.Argument(
            metavar="SWEEP",
            help="a sweep's or run's folder, NAME/NUMBER, NAME for the "
            "newest, with --uri an MLflow experiment, or a file that --keep wrote",
            autocompletion=_complete("runs"),
        ),
    ],
    to: Annotated[
        Path | None, typer.Option(help="folder to write to; default: report/ in the sweep's folder")
    ] = None,
    reach: Annotated[
        float | None,
        typer.Option(
            help="accuracy in percent for rounds-to-target; default: 90 % of the best setting's"
        ),
    ] = None,
    uri: Annotated[
        str | None, typer.Option(help="read from this MLflow address instead of from a folder")
    ] = None,
    output: Annotated[str, typer.Option(help="folder of runs and sweeps")] = "runs",
    keep: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.csv",
            help="also add a row per finished run here, with "
            "versions and SHA-256, to be kept in a repository",
        ),
    ] = None,
    reference: Annotated[
        str | None,
        typer.Option(
            metavar="SETTING",
            help="compare all others with this row of the table; default: sweep.reference, "
            "else all pairs",
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Table beside the printed numbers, costs, figures: here, as Markdown, LaTeX and one HTML page."""
    from flray import reporting
    from flray.cli import display
    from flray.reporting.build import report_file
    from flray.reporting.values import report_values

    display.to_stderr(as_json)
    if target.endswith(".csv"):
        table, files = report_file(Path(target), to, reference)
        costs: Sequence[Cost] = ()
        notice = ""
    else:
        made = reporting.report(
            target,
            to=to,
            target=None if reach is None else reach / 100,
            uri=uri,
            base=output,
            keep=keep,
            reference=reference,
        )
        table, costs, files, notice = made.table, made.costs, made.files, made.notice
    if as_json:
        display.print_json(report_values(table, costs, files))
        return
    display.console.print(reporting.terminal(table, costs))
    if notice:
        typer.echo(notice)
    for path in files:
        typer.echo(str(path))


@app.command("export", epilog="Example: flray export demo --client mnist")
def export_command(
    target: RunName,
    client: Annotated[
        str | None, typer.Option(metavar="NAME", help="a client, for what it is tested with")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="the global model and those of all clients")
    ] = False,
    to: Annotated[
        Path | None, typer.Option(help="folder to write to; default: export/ in the run's folder")
    ] = None,
    output: Annotated[str, typer.Option(help="folder of runs and sweeps")] = "runs",
    plugin: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE.py", help="your own file in place of those of the settings"),
    ] = None,
) -> None:
    """Write trained models as safetensors, with plain PyTorch code that builds them without flray."""
    from flray.runs import directory, export

    folder = directory.find(target, output)
    if directory.folder_kind(folder) != "run":
        raise FlrayError(
            f"{folder}: a sweep has a model for each trial; name one, for example "
            f"{folder.parent.name}/{folder.name}/trials/0000"
        )
    for path in export.export(folder, to, client=client, every=every, plugins=tuple(plugin or ())):
        typer.echo(str(path))


@app.command("ls", epilog="Example: flray ls")
def ls_command(
    output: Annotated[str, typer.Option(help="folder of runs and sweeps")] = "runs",
    watch: Annotated[bool, typer.Option("--watch", help="look again every two seconds")] = False,
    as_json: AsJson = False,
) -> None:
    """Show the runs and sweeps of a folder: status, rounds or trials, value."""
    from flray.cli.runs import show_runs

    if watch and as_json:
        raise FlrayError("--watch: found with --json; use one of them")
    show_runs(output, as_json, watch)


@app.command("compare", epilog="Example: flray compare demo/001 demo/002")
def compare_command(
    first: RunName,
    second: RunName,
    output: Annotated[str, typer.Option(help="folder of runs and sweeps")] = "runs",
    as_json: AsJson = False,
) -> None:
    """Show in which settings two runs or sweeps differ, and their values with intervals."""
    from flray.cli.runs import show_comparison
    from flray.runs import directory

    show_comparison(directory.find(first, output), directory.find(second, output), as_json)


@app.command("rm", epilog="Example: flray rm demo/001")
def rm_command(
    target: RunName,
    yes: Annotated[bool, typer.Option("--yes", help="do not ask")] = False,
    output: Annotated[str, typer.Option(help="folder of runs and sweeps")] = "runs",
) -> None:
    """Remove the folder of a run or sweep; it asks first."""
    from flray.cli.runs import remove

    typer.echo(remove(target, output, yes) or "nothing was removed")


@app.command("sync", epilog="Example: flray sync demo --uri http://127.0.0.1:5000")
def sync_command(
    target: RunName,
    uri: Annotated[
        str | None, typer.Option(help="another tracking server than the one in the run's settings")
    ] = None,
    output: Annotated[str, typer.Option(help="folder of runs and sweeps")] = "runs",
) -> None:
    """Send what could not be sent to MLflow while the run went on."""
    from flray.runs import directory
    from flray.tracking.sync import sync

    folder = directory.find(target, output)
    uri = uri or directory.tracking_uri(folder)
    if uri is None:
        raise FlrayError(
            f"{folder}: tracking.uri is null in its settings; name a server with --uri"
        )
    typer.echo(str(sync(folder, uri)))


@app.command("list", epilog="Example: flray list algorithms fedprox")
def list_command(
    what: Annotated[
        str,
        typer.Argument(
            help="algorithms, augmentations, callbacks, datasets, metrics, models, partitions, samplers or papers",
            autocompletion=_complete("kinds"),
        ),
    ],
    name: Annotated[
        str | None,
        typer.Argument(
            help="one with its options; papers: those that start so; metrics: those of a YAML file",
            autocompletion=_complete("names"),
        ),
    ] = None,
    time: Annotated[
        bool, typer.Option("--time", help="papers: estimate hours from a small timed round")
    ] = False,
    plugins: Annotated[
        list[str] | None,
        typer.Option(
            metavar="FILE.py", help="your own file: what it registers is listed, too, as (own)"
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Show what a YAML file may name, or the suites that make the papers' tables again."""
    if plugins:
        from flray.config.plugins import load_plugins

        load_plugins(plugins)
    if what == "papers":
        from flray.cli.papers import show_papers

        show_papers(name, time, as_json)
    elif what == "metrics":
        from flray.cli.metrics import show_metrics

        show_metrics(name, as_json)
    else:
        from flray.cli.tables import show_list

        show_list(what, name, as_json)


@app.command("schema", epilog="Example: flray schema > schema.json")
def schema_command() -> None:
    """Print the JSON schema of the YAML file, for editors that complete it."""
    from flray.config.loader import schema

    typer.echo(json.dumps(schema(), indent=1))


@app.command("doctor", epilog="Example: flray doctor --gpu")
def doctor_command(
    gpu: Annotated[
        bool,
        typer.Option(
            "--gpu",
            help="check the GPU instead, or without one the CPU: PASS or FAIL for equal bits, memory "
            "and speed; exit code 1 if anything fails",
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show versions, CPUs, GPUs, data and what is missing."""
    from flray.cli import tables

    if not gpu:
        tables.show_doctor(as_json)
    elif not tables.show_gpu_check():
        raise typer.Exit(1)


@data_app.command("get", epilog="Example: flray data get digits5-local")
def data_get(
    name: Annotated[
        str,
        typer.Argument(
            help="a data set, for example digits5-local", autocompletion=_complete("datasets")
        ),
    ],
) -> None:
    """Download a data set into the cache, checked by checksum."""
    from flray.data.fetching import get
    from flray.data.sources.cache import data_root

    get(name, data_root())


@data_app.command("list", epilog="Example: flray data list")
def data_list(as_json: AsJson = False) -> None:
    """Show every data set: its source, what must be done for it, whether it is there."""
    from flray.cli import tables

    tables.show_datasets(as_json)


@data_app.command(
    "show", epilog="Example: flray data show demo.yaml partition=domains --plot partition.png"
)
def data_show(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE.yaml|NAME",
            help="an experiment, or a data set by its name",
            autocompletion=_complete("files_and_datasets"),
        ),
    ],
    overrides: Overrides = None,
    plot: Annotated[
        Path | None, typer.Option(help="write a bubble chart of the partition here (PNG)")
    ] = None,
) -> None:
    """Show who holds which samples under a file's partition, or the samples of each domain of a data set."""
    from flray.cli import tables

    tables.show_partition(file, overrides or [], plot)


def main(command: str | None = None) -> None:
    """Entry point.

    Parameters
    ----------
    command : str, optional
        The one command that this process is for: ``python -m flray.tune``. Without it the first
        argument names one.
    """
    module = getattr(sys.modules.get("__main__"), "__spec__", None)
    typed = (
        f"python -m {module.name.removesuffix('.__main__')}"
        if module is not None
        else Path(sys.argv[0]).name
    )
    code = invoke(sys.argv[1:], command, typed, alone=True)
    freeze_gc()
    sys.exit(code)


def invoke(
    arguments: list[str], command: str | None = None, typed: str = "flray", alone: bool = False
) -> int:
    """Run a command line.

    Parameters
    ----------
    arguments : list of str
        What was typed after the command's name.
    command : str, optional
        The command that the arguments are for, where they do not name it themselves.
    typed : str
        The command's name as it was typed, for usage lines.
    alone : bool
        Whether the process is there for this only, and may be started again where `flray.bits`
        needs it.

    Returns
    -------
    int
        0, 1 for a failed run, 2 for a mistake, 130 for Ctrl-C, 143 for SIGTERM, 129 for SIGHUP.
    """
    if sys.platform == "win32":  # no SIGHUP, no resource module, no folders that can be synced
        typer.echo("flray: it runs on Linux and macOS; on Windows install it in WSL 2", err=True)
        return 2
    with signals_as_interrupt() as stop:
        try:
            return stop.code(_invoke(arguments, command, typed, alone))
        finally:
            if (display := sys.modules.get("flray.cli.display")) is not None:
                display.to_stderr(False)  # another command of this process may print its own way


def _invoke(arguments: list[str], command: str | None, typed: str, alone: bool) -> int:
    try:
        parser = typer.main.get_command(app)
        if command is not None:
            parser = parser.commands[command]  # type: ignore[attr-defined]
        ended = parser.main(arguments, prog_name=typed, standalone_mode=False)
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
        return 130
    except MethodError as error:
        typer.echo(str(error), err=True)
        return 1
    except FlrayError as error:
        if alone and type(error).__name__ == "StartAgainError":
            from flray.bits import (
                start_again,  # it takes the settings' models, which --help needs not
            )

            start_again()
        typer.echo(f"flray: {error}", err=True)
        return 1 if isinstance(error, RunFailedError) else 2
    except OSError as error:
        if not disk_is_full(error):
            raise
        where = f" ({error.filename})" if error.filename else ""
        typer.echo(
            one_line(
                f"flray: no space left on the disk{where}; make room, then go on with flray resume"
            ),
            err=True,
        )
        return 1


def _usage_error(error: Any, typed: str) -> int:
    if type(error).__name__ == "NoArgsIsHelpError":  # its text is the whole help
        error.show()
    else:
        path = error.ctx.command_path if error.ctx is not None else typed
        typer.echo(one_line(f"flray: {error.format_message()} (usage: {path} --help)"), err=True)
    return 2


if __name__ == "__main__":
    main()
