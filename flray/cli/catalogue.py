"""Commands that list components, settings, data sets and this machine: list, schema, doctor, data."""

import json
from pathlib import Path
from typing import Annotated

import typer

from flray.cli.arguments import AsJson, Overrides, command, complete

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
    what: Annotated[str, typer.Argument(autocompletion=complete("kinds"))],
    name: Annotated[str | None, typer.Argument(autocompletion=complete("names"))] = None,
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
    if what == "papers":
        from flray.cli.papers import show_papers

        show_papers(name, as_json)
    else:
        from flray.cli import tables

        if what == "metrics":
            tables.show_metrics(name, as_json)
        elif what == "settings":
            tables.show_settings(name, as_json)
        else:
            tables.show_list(what, name, as_json)


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
        passed = True
        for check, good, text in check_gpu():
            display.console.print(f"{'PASS' if good else 'FAIL'}  {check}: {text}")
            passed = passed and good
        raise typer.Exit(0 if passed else 1)
    table = display.make_table("flray doctor", "what", "found")
    for row in diagnose():
        table.add_row(*row)
    display.show_table(table, as_json)


@command(data_commands, "get", "flray data get digits5-local")
def data_get(name: Annotated[str, typer.Argument(autocompletion=complete("datasets"))]) -> None:
    """Download a data set into the cache, checked by checksum.

    Parameters
    ----------
    name : str
        a data set, for example digits5-local
    """
    from flray.data.inventory import get
    from flray.data.sources.cache import data_root

    get(name, data_root())


@command(data_commands, "list", "flray data list")
def data_list(as_json: AsJson = False) -> None:
    """Show every data set: its source, what must be done for it, whether it is there."""
    from flray.cli import tables

    tables.show_datasets(as_json)


@command(data_commands, "show", "flray data show demo.yaml partition=domains --plot partition.png")
def data_show(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE.yaml|NAME", autocompletion=complete("files_and_datasets")),
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
        write a bubble chart of the partition here (PNG)
    split : Path, optional
        write the numbers of each client's samples here, for other tools and for partition: {name: file}
    as_json : bool
        as JSON, of every run of a sweep's first seed: each client's samples with SHA-256, classes,
        weight, steps, and rounds
    """
    from flray.cli import tables

    tables.show_partition(file, overrides or [], plot, split, as_json)
