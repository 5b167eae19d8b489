"""Tables of components, settings, data sets, the clients' samples, and the suites of the papers' tables."""

import itertools
import json
import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.table import Table

from flray import metrics, registry
from flray.cli.arguments import kinds
from flray.cli.display import console, make_table, print_json, show_table
from flray.config import suites
from flray.config.components import PartitionChoice
from flray.config.loader import load
from flray.config.schema import Setting, allowed_values, settings
from flray.config.yaml_files import read_with_base
from flray.errors import DataError, FlrayError, explained, nearest, one_line
from flray.files import write_atomically
from flray.files.tracking_address import at_home


def show_list(what: str, name: str | None, as_json: bool = False) -> None:
    """Print the registered names of a kind, or one with its options.

    Raises
    ------
    FlrayError
        If the kind or the name is unknown.
    """
    if what not in registry.ALL:
        listed = kinds("")
        kind = next((kind for kind, known in registry.ALL.items() if what in known.names()), None)
        meant = nearest(what, listed) if kind is None else f"; did you mean '{kind} {what}'?"
        raise FlrayError(f"nothing called {what!r} to list{meant}; one of {', '.join(listed)}")
    entries = registry.ALL[what]
    if name is None and what == "datasets":
        show_datasets(as_json)
        return
    if name is None:
        methods = what == "algorithms"
        heads = ("method", "shared", "needs", "evaluated") if methods else ("what it is",)
        table = make_table(f"{what} (details: flray list {what} NAME)", ("name", *heads))
        for entry in entries.names():
            item = entries.outline(entry)
            cells = _method_cells(item) if methods else (_first_line(item),)
            table.add_row(f"{entry} (own)" if entries.is_own(entry) else entry, *cells)
        show_table(table, as_json)
        return
    item = entries.outline(name)
    if not as_json:
        console.print(f"{name}: {_first_line(item)}")
    if what == "datasets" and not as_json:
        from flray.data.inventory import list_datasets

        (found,) = [one for one in list_datasets() if one.name == name]
        console.print(f"source: {found.source}")
        console.print("it is here" if found.present else f"to have it: {found.todo}")
    table = make_table("", ("option", "default", "allowed", "meaning", "source"))
    known = PartitionChoice if what == "partitions" else entries  # with the seed of a partition
    options = known.params(name).model_json_schema()
    for option, field in options.get("properties", {}).items():
        required = option in options.get("required", [])
        table.add_row(
            option,
            "(required)" if required else repr(field.get("default")),
            allowed_values(field),
            field.get("description", ""),
            field.get("source", ""),
        )
    if as_json:
        show_table(table, as_json)
        return
    console.print(table if options.get("properties") else "it has no options")
    if what == "algorithms":
        console.print(f"aggregation.block adds up weights: {item.adds_up()}")
    for preset in getattr(entries.params(name), "presets", ()):
        values = ", ".join(f"{option}: {value}" for option, value in preset.values.items())
        console.print(f"preset {preset.name}: {values} ({preset.source})")


def _method_cells(method: Any) -> tuple[str, ...]:
    shared = method.shared if isinstance(method.shared, str) else "by its settings"
    return _summary_line(method), shared, ", ".join(sorted(method.needs)), ", ".join(method.views)


def _summary_line(method: type) -> str:
    """Return the first line of a method's file, or of its class if it extends a method of the same file."""
    is_form = any(base.__module__ == method.__module__ for base in method.__mro__[1:])
    module = getattr(sys.modules.get(method.__module__), "__doc__", None)
    return (not is_form and _first_line(module)) or _first_line(method)


def _first_line(item: Any) -> str:
    text = item if isinstance(item, str) else getattr(item, "__doc__", None)
    return (text or "").strip().partition("\n")[0]


def show_settings(section: str | None, as_json: bool = False) -> None:
    """Print the settings of a YAML file, or those of a section of it.

    Raises
    ------
    FlrayError
        If the section or setting is unknown.
    """
    wanted = (section or "").removeprefix("experiment").removeprefix(".")
    every = [row for _, _, rows in settings() for row in rows]
    rows = [row for row in every if f"{row.path}.".startswith(f"{wanted}." if wanted else "")]
    if not rows:
        known = {row.path for row in every} | {path for path, _, _ in settings()}
        raise FlrayError(
            f"no setting or section {section!r}{nearest(str(section), known)} (flray list settings shows all)"
        )
    title = "settings (KEY=VALUE behind a command, or in a file)"
    show_table(make_table(title, Setting._fields, rows), as_json)


def show_metrics(file: str | None, as_json: bool = False) -> None:
    """Print what ``sweep.metric`` can be: the parts of names, or the names that an experiment measures.

    Parameters
    ----------
    file : str, optional
        The experiment's YAML file.
    as_json : bool
        Whether as JSON: meanings by name.
    """
    if file is None:
        own = registry.metrics
        parts: dict[str, Mapping[str, str]] = {
            "metrics: VIEW/MEASURE (those of an experiment: flray list metrics FILE.yaml)": {
                f"{view}/MEASURE": f"{words}; {'validation' if metrics.is_validation(view) else 'test'} data"
                for view, words in metrics.VIEWS_IN_WORDS.items()
            },
            "MEASURE": metrics.MEASURES_IN_WORDS,
            "MEASURE, where evaluation.metrics names it": {
                name: _first_line(own.outline(name)) for name in own.names()
            },
            "behind a name": metrics.SUFFIXES_IN_WORDS,
            "besides": metrics.OTHERS_IN_WORDS,
        }
    else:
        parts = _metrics_of(Path(file))
    if as_json:
        print_json({name: words for rows in parts.values() for name, words in rows.items()})
        return
    for title, rows in parts.items():
        console.print(make_table(title, ("name", "what it is"), rows.items()))


def _metrics_of(file: Path) -> dict[str, Mapping[str, str]]:
    """Return the metrics that an experiment measures, below their title."""
    from flray.config.experiment import choose_on_validation
    from flray.federation.building import build_spec
    from flray.federation.evaluation import available_metrics

    spec = build_spec(choose_on_validation(load(file)).experiment)
    found = {metrics.AUTO: spec.primary_metric}
    if len(spec.data.validation):
        found[metrics.VALIDATION] = metrics.score_metric(metrics.VALIDATION, spec.primary_metric)
    for name in available_metrics(spec):
        view, measure = name.rsplit("/", 1)
        words = metrics.VIEWS_IN_WORDS.get(view, metrics.VIEWS_IN_WORDS["online/local"])
        found[name] = f"{_measure(measure)}: {words}"
    return {f"metrics of {spec.config.algorithm.name} in {file}": found}


def _measure(name: str) -> str:
    """Return a measure in words, by its name or that of its kind."""
    if name in registry.metrics.names():
        return _first_line(registry.metrics.outline(name))
    if name.removeprefix("top").isdecimal():
        return metrics.MEASURES_IN_WORDS["topK"].partition(" (")[0]
    known = metrics.MEASURES_IN_WORDS
    return known.get(name, known.get(name.partition("_")[0], name)).partition(";")[0]


def show_datasets(as_json: bool = False) -> None:
    """Print every data set with its source, what must be done for it, and whether it is there."""
    from flray.data.inventory import list_datasets
    from flray.data.sources.cache import data_root

    table = make_table(f"datasets; DATA is {data_root()} (details: flray list datasets NAME)")
    table.add_column("name", no_wrap=True)
    for heading in ("what it is", "source", "to have it", "here"):
        table.add_column(heading, overflow="fold")
    for entry in list_datasets():
        what, here = entry.what.removeprefix("Return "), "yes" if entry.present else "no"
        table.add_row(entry.name, what, entry.source, entry.todo, here)
    show_table(table, as_json)


def show_partition(
    file: Path, overrides: list[str], plot: Path | None, split: Path | None, as_json: bool
) -> None:
    """Print the table of a partition, of a file or of a data set by its name, and draw its bubble chart."""
    from flray.data.federated import partition_table
    from flray.data.partitions.given import split_of
    from flray.drawing.canvas import SUFFIXES, save_figure
    from flray.drawing.grids import draw_partition
    from flray.federation import partition_summary
    from flray.federation.building import build_spec
    from flray.federation.manifest import divide

    if plot is not None and plot.suffix.lower() not in SUFFIXES:
        raise DataError(
            f"{plot}: a picture's name ends in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}"
        )
    by_name = str(file) in registry.datasets.names() and not file.is_file()
    whole = {"experiment": {"data": str(file), "model": "linear", "algorithm": "fedavg"}}
    source = whole if by_name else file
    if as_json:
        print_json(_manifests(source, overrides))
        return
    experiment = load(source, overrides).experiment
    data = divide(experiment) if by_name else build_spec(experiment).data
    table = partition_table(data)
    table = table.rename(columns=one_line).map(
        lambda value: one_line(value) if isinstance(value, str) else value
    )
    console.print(table.to_string(index=False))
    console.print(f"partition fingerprint: {data.partition_fingerprint}")

    def draw(path: Path) -> None:
        save_figure(draw_partition(partition_summary(data)), path)

    def save(path: Path) -> None:
        write_atomically(path, json.dumps(split_of(data)).encode())

    for what, path, write in (("chart", plot, draw), ("split", split, save)):
        if path is not None:
            with explained(OSError, f"{path}: cannot be written"):
                write(path)
            console.print(f"{what}: {path}")


def _manifests(source: Path | dict[str, Any], overrides: list[str]) -> list[dict[str, Any]]:
    """Return the manifests of the first seed's runs, one for all arms that have the same."""
    from flray.federation.manifest import digests, divide, manifest
    from flray.tuning.space import enumerate_settings, resolve_sweep, trial_specs

    config = resolve_sweep(load(source, overrides))
    first = config.sweep.model_copy(update={"seeds": config.sweep.seeds[:1]})
    config = config.model_copy(update={"sweep": first})
    # Runs of one division after each other: each is made once, and only one lies in memory.
    parts = {"data", "subset", "partition", "split", "shift", "seed", "participation", "evaluation"}
    specs = [
        (one.experiment.model_dump_json(include=parts), one)
        for one in trial_specs(config, enumerate_settings(config))
    ]
    found: dict[str, dict[str, Any]] = {}
    for _, same in itertools.groupby(sorted(specs, key=lambda pair: pair[0]), lambda pair: pair[0]):
        runs = [spec for _, spec in same]
        data = divide(runs[0].experiment)
        known = digests(data)
        for spec in runs:
            held = {"data": spec.experiment.data.name, **manifest(spec.experiment, data, known)}
            found.setdefault(json.dumps(held), {**held, "runs": []})["runs"].append(spec.setting)
    return list(found.values())


_ABSENT = "*"


@dataclass(frozen=True)
class Suite:
    """One suite.

    Attributes
    ----------
    name, title : str
        ``fedco2/table1`` and its title.
    runs : int
        Settings times seeds.
    data : tuple of str
        Data sets by name.
    problem : str
        Why it cannot be run now; empty if it can.
    absent : mapping of str to str
        Missing data sets, each with a message that tells how to get it.
    """

    name: str
    title: str
    runs: int
    data: tuple[str, ...]
    problem: str
    absent: Mapping[str, str]

    @property
    def availability(self) -> str:
        """Availability of the data, in a word."""
        there = sum(name not in self.absent for name in self.data)
        some = f"{there} of {len(self.data)}" if there else "no"
        return "yes" if there == len(self.data) else some


def list_suites(names: str | None = None) -> Iterator[Suite]:
    """Yield the suites.

    Parameters
    ----------
    names : str, optional
        Only those whose name starts with this.
    """
    for name, path in suites.files().items():
        if not name.startswith(names or ""):
            continue
        content = read_with_base(path)
        title = (content.get("paper") or {}).get("title")
        title = str(title or "the paper's question on data that can be had offline")
        runs, named = suites.run_count(content), tuple(suites.data_names(content))
        choices = suites.data_choices(content)
        absent = {one["name"]: text for one in choices if (text := _missing_data(one))}
        problem = f"without data: {', '.join(absent)}" if absent else ""
        yield Suite(name, title, runs, named, problem, absent)


def show_papers(names: str | None, as_json: bool = False) -> None:
    """Print the suites of the papers' tables: runs, data, and availability of the data."""
    from flray.data.sources.cache import data_root

    known = suites.files()
    if names is not None and not any(name.startswith(names) for name in known):
        raise FlrayError(
            f"no suite {names!r}{nearest(names, known)} (`flray list papers` shows all)"
        )
    if as_json:
        print_json([asdict(suite) for suite in list_suites(names)])
        return
    table = Table(
        title="suites (flray tune SUITE; with --smoke in minutes)",
        title_justify="left",
        caption_justify="left",
        caption=f"{_ABSENT} is not here: see below; DATA is {data_root()}",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("suite", no_wrap=True)
    table.add_column("what it shows")
    table.add_column("runs", justify="right", no_wrap=True)
    table.add_column("data", max_width=33)  # so that a row takes two lines of 120 columns
    table.add_column("here", no_wrap=True)
    messages: dict[str, None] = {}
    for suite in list_suites(names):
        data = ", ".join(f"{n}{_ABSENT if n in suite.absent else ''}" for n in suite.data)
        table.add_row(suite.name, suite.title, str(suite.runs), data, suite.availability)
        messages |= dict.fromkeys(suite.absent.values())
    console.print(table)
    for message in messages:
        console.print(f"- {message}")


def _missing_data(choice: Mapping[str, Any]) -> str:
    """Return how to get a data set that is unknown, or not here; nothing is read or fetched."""
    from flray.data import inventory
    from flray.data.sources.cache import data_root

    name, path = choice["name"], choice.get("path")
    try:
        entry = inventory.entry(name, data_root(), choice)
    except FlrayError as error:
        return str(error)
    if path is not None:
        return "" if Path(at_home(str(path))).exists() else f"{name}: {path} is not on this machine"
    return "" if entry.present else f"{name}: {entry.todo}"
