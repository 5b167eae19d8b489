"""Commands that train nothing: of components, data and this machine, and of finished runs and sweeps."""

import json
from collections import Counter
from functools import partial
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
    datasets,
    files,
    kinds,
    names,
    refuse_together,
    runs,
)
from flray.errors import FlrayError, explained, one_line

if TYPE_CHECKING:
    from flray.results.verify import Verdict

Plugins = Annotated[
    list[str] | None,
    typer.Option(
        metavar="FILE.py",
        help="your own file: what it registers is there, too (in a list as (own))",
    ),
]
commands = typer.Typer()
data_commands = typer.Typer(
    no_args_is_help=True,
    help="Fetch data sets and look at partitions.",
    epilog="Example: flray data show digits-sklearn",
)


@command(commands, "list", "flray list algorithms fedprox")
def list_command(
    what: Annotated[str, typer.Argument(autocompletion=kinds)],
    name: Annotated[str | None, typer.Argument(autocompletion=names)] = None,
    plugins: Plugins = None,
    as_json: AsJson = False,
) -> None:
    """List the components that a YAML file may name, its settings, or the suites of the papers' tables.

    Parameters
    ----------
    what : str
        algorithms, augmentations, callbacks, datasets, losses, metrics, models, optimizers, partitions,
        samplers, tasks, papers or settings
    name : str, optional
        one with its options; papers: those that start so; metrics: those of a YAML file; settings: a
        section, such as local
    plugins : list of str, optional
        Python files that register components
    as_json : bool
        as JSON, for scripts
    """
    _load(plugins)
    from flray.cli import tables

    lists = {
        "papers": tables.show_papers,
        "metrics": tables.show_metrics,
        "settings": tables.show_settings,
    }
    lists.get(what, partial(tables.show_list, what))(name, as_json)


def _load(plugins: list[str] | None) -> None:
    if plugins:
        from flray.config.start import load_plugins

        load_plugins(plugins)


@command(commands, "schema", "flray schema > schema.json")
def schema_command(plugins: Plugins = None) -> None:
    """Print the JSON schema of the YAML file, for editors that complete it."""
    from flray.config.schema import schema

    _load(plugins)
    typer.echo(json.dumps(schema(), indent=1))


@command(commands, "doctor", "flray doctor --gpu")
def doctor_command(gpu: bool = False, as_json: AsJson = False) -> None:
    """Show versions, CPUs, GPUs, data sets, and missing packages and files.

    Parameters
    ----------
    gpu : bool
        check the GPU instead, or without one the CPU: PASS or FAIL for equal bits, memory and speed;
        exit code 1 if anything fails
    as_json : bool
        as JSON, for scripts
    """
    from flray.cli import display
    from flray.cli.doctor import check_gpu, diagnose

    if gpu:
        found = []
        for check, good, text in check_gpu():
            display.console.print(f"{'PASS' if good else 'FAIL'}  {check}: {text}")
            found.append({"check": check, "passed": good, "found": text})
        if as_json:
            display.print_json(found)
        raise typer.Exit(0 if all(one["passed"] for one in found) else 1)
    table = display.make_table("flray doctor", ("what", "found"), diagnose())
    display.show_table(table, as_json)


@command(data_commands, "get", "flray data get digits5-local")
def data_get(name: Annotated[str, typer.Argument(autocompletion=datasets)]) -> None:
    """Download a data set into the cache, checked by checksum.

    Parameters
    ----------
    name : str
        a data set, for example digits5-local
    """
    from flray.data.inventory import get

    get(name)


@command(data_commands, "list", "flray data list")
def data_list(as_json: AsJson = False) -> None:
    """Show every data set: its source, what must be done for it, whether it is there."""
    from flray.cli import tables

    tables.show_datasets(as_json)


@command(data_commands, "show", "flray data show demo.yaml partition=domains --plot partition.png")
def data_show(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE.yaml|NAME",
            autocompletion=lambda incomplete: [*files(incomplete), *datasets(incomplete)],
        ),
    ],
    overrides: Overrides = None,
    plot: Path | None = None,
    split: Annotated[Path | None, typer.Option(metavar="SPLIT.json")] = None,
    as_json: Annotated[bool, typer.Option("--json")] = False,
) -> None:
    """Show who holds which samples under a file's partition, or the samples of each domain of a data set.

    Parameters
    ----------
    file : Path
        an experiment, or a data set by its name
    overrides : list of str, optional
        settings that replace the file's
    plot : Path, optional
        write a bubble chart of the partition here (PNG, SVG or PDF)
    split : Path, optional
        write the numbers of each client's samples here, for other tools and for partition: {name: file}
    as_json : bool
        as JSON, of every run of a sweep's first seed: each client's samples with SHA-256, classes,
        weight, steps, and rounds
    """
    from flray.cli import tables

    refuse_together("--json", as_json, ("--plot", plot), ("--split", split))
    tables.show_partition(file, overrides or [], plot, split, as_json)


@command(commands, "report", "flray report demo --to tables")
def report_command(
    target: Annotated[str, typer.Argument(metavar="SWEEP", autocompletion=runs)],
    to: Path | None = None,
    reach: float | None = None,
    output: OutputFolder = "runs",
    keep: Annotated[Path | None, typer.Option(metavar="FILE.csv")] = None,
    reference: Annotated[str | None, typer.Option(metavar="SETTING")] = None,
    as_json: AsJson = False,
) -> None:
    """Table beside the printed numbers, costs, figures: here, as Markdown, LaTeX and one HTML page.

    Parameters
    ----------
    target : str
        a sweep's or run's folder, NAME/NUMBER, NAME for the newest, or a file that --keep wrote (its
        tables alone)
    to : Path, optional
        folder to write to; default: report/ in the sweep's folder
    reach : float, optional
        value for rounds-to-target, of an accuracy in percent; default: 90 % of the best setting's
    output : str
        folder of runs and sweeps
    keep : Path, optional
        also add a row per finished run here, with versions and SHA-256 (a file of a repository)
    reference : str, optional
        compare all others with this row of the table; default: sweep.reference, else all pairs
    as_json : bool
        as JSON, for scripts
    """
    from flray.cli import display
    from flray.reporting.build import report, report_values
    from flray.results.formatting import terminal

    made = report(target, to=to, target=reach, base=output, keep=keep, reference=reference)
    if as_json:
        display.print_json(report_values(made))
        return
    display.console.print(terminal(made.table, made.costs))
    if made.notice:
        typer.echo(one_line(made.notice))
    for path in made.files:
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
    from flray.results.verify import verify

    def tell(verdict: "Verdict") -> None:
        display.console.print(f"{verdict.row}: {verdict.text}")

    verdicts = verify(file, rows, overrides or (), progress=True, tell=tell)
    if as_json:
        display.print_json([verdict._asdict() for verdict in verdicts])
    found = Counter(verdict.kind for verdict in verdicts)
    display.console.print(
        f"{len(verdicts)} row{'s' * (len(verdicts) != 1)}: {found['same']} with the same bits, "
        f"{found['other']} with others that are explained, "
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
    crate: Annotated[str | None, typer.Option(metavar="LICENCE")] = None,
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
    crate : str, optional
        with settings, data and history as RO-Crate, under a licence: its SPDX name, such as CC-BY-4.0, or its address
    """
    refuse_together("--all", every, ("--client", client))
    from flray.records import directory
    from flray.runs import export

    folder = directory.find(target, output)
    if directory.folder_kind(folder) != "run":
        raise FlrayError(
            f"{folder}: a sweep has a model for each trial; name one, for example "
            f"{folder.parent.name}/{folder.name}/trials/0001"
        )
    own, place = tuple(plugin or ()), to or folder / "export"
    remedy = "name another folder with --to"
    with explained(OSError, f"{place}: no model can be written here", remedy, FlrayError):
        made = export.export(folder, to, client=client, every=every, plugins=own, crate=crate)
    for path in made:
        typer.echo(one_line(str(path)))


@command(commands, "ls", "flray ls")
def ls_command(output: OutputFolder = "runs", as_json: AsJson = False) -> None:
    """Show the runs and sweeps of a folder: status, rounds or trials, value.

    Parameters
    ----------
    output : str
        folder of runs and sweeps
    as_json : bool
        as JSON, for scripts
    """
    from flray.cli.runs import show_runs

    show_runs(output, as_json)


@command(commands, "compare", "flray compare demo/001 demo/002")
def compare_command(
    first: RunName, second: RunName, output: OutputFolder = "runs", as_json: AsJson = False
) -> None:
    """Show the settings that differ between two runs or sweeps, and both values with intervals."""
    from flray.cli.comparison import show_comparison
    from flray.records import directory

    show_comparison(directory.find(first, output), directory.find(second, output), as_json)


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
