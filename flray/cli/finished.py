"""Commands for finished runs and sweeps: report, export, ls, compare, rm, sync."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from flray.cli.arguments import (
    AsJson,
    OutputFolder,
    Overrides,
    PluginFiles,
    RunName,
    command,
    complete,
)
from flray.errors import FlrayError, one_line
from flray.startup import gc_disabled

if TYPE_CHECKING:
    from flray.results.measures import Cost
    from flray.results.verify import Verdict

commands = typer.Typer()


@command(commands, "report", "flray report demo --to tables")
def report_command(
    target: Annotated[str, typer.Argument(metavar="SWEEP", autocompletion=complete("runs"))],
    to: Path | None = None,
    reach: float | None = None,
    uri: str | None = None,
    output: OutputFolder = "runs",
    keep: Annotated[Path | None, typer.Option(metavar="FILE.csv")] = None,
    reference: Annotated[str | None, typer.Option(metavar="SETTING")] = None,
    as_json: AsJson = False,
) -> None:
    """Table beside the printed numbers, costs, figures: here, as Markdown, LaTeX and one HTML page.

    Parameters
    ----------
    target : str
        a sweep's or run's folder, NAME/NUMBER, NAME for the newest, with --uri an MLflow experiment, or
        a file that --keep wrote (its tables alone)
    to : Path, optional
        folder to write to; default: report/ in the sweep's folder
    reach : float, optional
        accuracy in percent for rounds-to-target; default: 90 % of the best setting's
    uri : str, optional
        read from this MLflow address instead of from a folder
    output : str
        folder of runs and sweeps
    keep : Path, optional
        also add a row per finished run here, with versions and SHA-256 (a file of a repository)
    reference : str, optional
        compare all others with this row of the table; default: sweep.reference, else all pairs
    as_json : bool
        as JSON, for scripts
    """
    from flray import reporting
    from flray.cli import display
    from flray.reporting.build import report_file, report_values

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
        typer.echo(one_line(notice))
    for path in files:
        typer.echo(one_line(str(path)))


@command(commands, "verify", "flray verify search_spaces/quickstart.results.csv --rows 3")
def verify_command(
    file: Annotated[Path, typer.Argument(metavar="FILE.csv")],
    overrides: Overrides = None,
    rows: Annotated[int | None, typer.Option(min=1)] = None,
    as_json: AsJson = False,
) -> None:
    """Run rows of kept results again: exit code 0 for the same bits, 3 for explained differences, 1 for others.

    Parameters
    ----------
    file : Path
        results that report --keep wrote
    overrides : list of str, optional
        settings that replace those of the rows
    rows : int, optional
        so many, evenly spread over the file; default: all
    as_json : bool
        as JSON, for scripts
    """
    from flray.cli import display

    display.to_stderr(as_json)
    with gc_disabled("flray.results.verify"):
        from flray.results.verify import verify

    def tell(verdict: Verdict) -> None:
        display.console.print(f"{verdict.row}: {verdict.text}")

    verdicts = verify(file, rows, overrides or (), progress=display.RunProgress, tell=tell)
    if as_json:
        display.print_json([verdict._asdict() for verdict in verdicts])
    found = Counter(verdict.kind for verdict in verdicts)
    display.console.print(
        f"{len(verdicts)} rows: {found['same']} with the same bits, {found['other']} with others that are explained, "
        f"{found['unexplained']} with a difference that nothing explains"
    )
    if found["unexplained"] or found["other"]:
        raise typer.Exit(1 if found["unexplained"] else 3)


@command(commands, "export", "flray export demo --client mnist")
def export_command(
    target: RunName,
    client: Annotated[str | None, typer.Option(metavar="NAME")] = None,
    every: Annotated[bool, typer.Option("--all")] = False,
    to: Path | None = None,
    output: OutputFolder = "runs",
    plugin: PluginFiles = None,
) -> None:
    """Write trained models as safetensors, with plain PyTorch code that builds them without flray.

    Parameters
    ----------
    target : str
        the run
    client : str, optional
        a client, with the model that it is tested with
    every : bool
        the global model and those of all clients
    to : Path, optional
        folder to write to; default: export/ in the run's folder
    output : str
        folder of runs and sweeps
    plugin : list of str, optional
        Python files that replace those of the settings
    """
    from flray.records import directory
    from flray.runs import export

    folder = directory.find(target, output)
    if directory.folder_kind(folder) != "run":
        raise FlrayError(
            f"{folder}: a sweep has a model for each trial; name one, for example "
            f"{folder.parent.name}/{folder.name}/trials/0000"
        )
    for path in export.export(folder, to, client=client, every=every, plugins=tuple(plugin or ())):
        typer.echo(one_line(str(path)))


@command(commands, "ls", "flray ls")
def ls_command(output: OutputFolder = "runs", watch: bool = False, as_json: AsJson = False) -> None:
    """Show the runs and sweeps of a folder: status, rounds or trials, value.

    Parameters
    ----------
    output : str
        folder of runs and sweeps
    watch : bool
        look again every two seconds
    as_json : bool
        as JSON, for scripts
    """
    from flray.cli.runs import show_runs

    if watch and as_json:
        raise FlrayError("--watch: found with --json; use one of them")
    show_runs(output, as_json, watch)


@command(commands, "compare", "flray compare demo/001 demo/002")
def compare_command(
    first: RunName, second: RunName, output: OutputFolder = "runs", as_json: AsJson = False
) -> None:
    """Show the settings that differ between two runs or sweeps, and both values with intervals."""
    from flray.cli.comparison import show_comparison
    from flray.records import directory

    show_comparison(directory.find(first, output), directory.find(second, output), as_json)


@command(commands, "rm", "flray rm demo/001")
def rm_command(target: RunName, yes: bool = False, output: OutputFolder = "runs") -> None:
    """Remove the folder of a run or sweep; it asks first.

    Parameters
    ----------
    target : str
        the run
    yes : bool
        do not ask
    output : str
        folder of runs and sweeps
    """
    from flray.cli.runs import remove

    typer.echo(one_line(remove(target, output, yes) or "nothing was removed"))


@command(commands, "sync", "flray sync demo --uri http://127.0.0.1:5000")
def sync_command(target: RunName, uri: str | None = None, output: OutputFolder = "runs") -> None:
    """Upload pending tracking data to MLflow.

    Parameters
    ----------
    target : str
        the run
    uri : str, optional
        another tracking server than the one in the run's settings
    output : str
        folder of runs and sweeps
    """
    from flray.records import directory
    from flray.tracking.background import sync

    folder = directory.find(target, output)
    uri = uri or directory.tracking_uri(folder)
    if uri is None:
        raise FlrayError(
            f"{folder}: tracking.uri is null in its settings; name a server with --uri"
        )
    sent = sync(folder, uri)
    runs = f"{sent.runs} run{'s' * (sent.runs != 1)}"
    typer.echo(one_line(f"{sent.events} events of {runs} sent to {', '.join(sent.uris)}"))
    for line in sent.notices:
        typer.echo(one_line(line))
