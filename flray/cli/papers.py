"""The table behind ``flray list papers``: each suite's runs, and the availability of its data."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache

from rich import box
from rich.table import Table

from flray import registry
from flray.cli.display import console, print_json
from flray.config import suites
from flray.config.yaml_files import read_with_base
from flray.data import inventory
from flray.data.sources.cache import data_root
from flray.errors import FlrayError, nearest

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
        if missing := suites.unknown_names(content):
            absent = {
                word.removeprefix("data "): f"{name} needs {word}, which is unknown here"
                for word in missing
            }
            problem = f"unknown here: {', '.join(missing)}"
        else:
            data = {one["name"]: json.dumps(one) for one in suites.data_choices(content)}
            absent = {one: text for one, key in data.items() if (text := _missing_data(key))}
            problem = f"without data: {', '.join(absent)}" if absent else ""
        yield Suite(name, title, runs, named, problem, absent)


def show_papers(names: str | None, as_json: bool = False) -> None:
    """Print the suites of the papers' tables: runs, data, and availability of the data."""
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
        caption=f"{_ABSENT} is not here: see below",
        box=box.SIMPLE_HEAD,
    )
    table.add_column("suite", no_wrap=True)
    table.add_column("what it shows")
    table.add_column("runs", justify="right", no_wrap=True)
    table.add_column("data", max_width=33)  # so that a row takes two lines of 120 columns
    table.add_column("here", no_wrap=True)
    messages: dict[str, None] = {}
    with console.status("") as status:
        for suite in list_suites(names):
            data = ", ".join(f"{n}{_ABSENT if n in suite.absent else ''}" for n in suite.data)
            table.add_row(suite.name, suite.title, str(suite.runs), data, suite.availability)
            messages |= dict.fromkeys(suite.absent.values())
            status.update(f"{suite.name} is looked at")
    console.print(table)
    for message in messages:
        console.print(f"- {message}")


@cache
def _missing_data(choice: str) -> str:
    """Return the data set's own message if the files of a choice (JSON) are missing."""
    options = json.loads(choice)
    name = options.pop("name")
    if "path" not in options and inventory.entry(name, data_root()).present:
        return ""
    try:
        registry.datasets.get(name)(data_root(), **options)
    except FlrayError as error:
        return str(error).splitlines()[0]
    return ""
