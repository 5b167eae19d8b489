"""The table behind ``flray list papers``: each suite's runs, the availability of its data, and its hours."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from flray import registry
from flray.config import suites
from flray.config.yaml_files import read_with_base
from flray.data import inventory
from flray.data.sources.cache import data_root
from flray.errors import FlrayError, nearest

if TYPE_CHECKING:
    from flray.config.experiment import Experiment
    from flray.tuning.space import TrialSpec

_SUBSETS, _BATCH = (96, 192), 48
"""Training samples per domain (or per client, where a partition names the number of clients) of the timed rounds, and
their largest batch."""
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
    hours : float or None
        Of all runs one after another on this machine; None if not timed.
    """

    name: str
    title: str
    runs: int
    data: tuple[str, ...]
    problem: str
    hours: float | None = None
    absent: Mapping[str, str] = field(default_factory=dict)

    @property
    def availability(self) -> str:
        """Availability of the data, in a word."""
        there = sum(name not in self.absent for name in self.data)
        some = f"{there} of {len(self.data)}" if there else "no"
        return "yes" if there == len(self.data) else some

    @property
    def messages(self) -> list[str]:
        """Missing data, with remedies."""
        if self.absent or not self.problem:
            return list(self.absent.values())
        return [f"{self.name}: {self.problem}"]


def list_suites(names: str | None = None, timed: bool = False) -> Iterator[Suite]:
    """Yield the suites.

    Parameters
    ----------
    names : str, optional
        Only those whose name starts with this.
    timed : bool
        Run small rounds of every runnable suite, to estimate its hours.
    """
    for name, path in suites.files().items():
        if names is None or name.startswith(names):
            yield _describe(name, path, timed)


def show_papers(names: str | None, timed: bool, as_json: bool = False) -> None:
    """Print the suites of the papers' tables: runs, data, availability of the data, and hours."""
    from flray.cli.display import console, print_json

    known = suites.files()
    if names is not None and not any(name.startswith(names) for name in known):
        raise FlrayError(
            f"no suite {names!r}{nearest(names, known)} (`flray list papers` shows all)"
        )
    if as_json:
        print_json([asdict(suite) for suite in list_suites(names, timed)])
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
    if timed:
        table.add_column("hours", justify="right", no_wrap=True)
    messages: dict[str, None] = {}
    with console.status("") as status:
        for suite in list_suites(names, timed):
            data = ", ".join(f"{n}{_ABSENT if n in suite.absent else ''}" for n in suite.data)
            hours = [] if not timed else ["" if suite.hours is None else f"{suite.hours:.2g}"]
            cells = suite.name, suite.title, str(suite.runs), data, suite.availability
            table.add_row(*cells, *hours)
            messages |= dict.fromkeys(suite.messages)
            status.update(f"{suite.name} is looked at")
    console.print(table)
    console.print(
        f"hours: {_processor()} hours of all runs one after another on this machine, from two small "
        "rounds of each method; good to a factor of two"
        if timed
        else "hours: flray list papers NAME --time, for example flray list papers fedskc/local --time"
    )
    for message in messages:
        console.print(f"- {message}")


def _describe(name: str, path: Path, timed: bool) -> Suite:
    content = read_with_base(path)
    title = (content.get("paper") or {}).get("title")
    title = str(title or "the paper's question on data that can be had offline")
    runs, named = suites.run_count(content), tuple(suites.data_names(content))
    missing = suites.unknown_names(content)
    if missing:
        lost = {
            word.removeprefix("data "): f"{name} needs {word}, which is unknown here"
            for word in missing
        }
        return Suite(name, title, runs, named, f"unknown here: {', '.join(missing)}", absent=lost)
    data = {one["name"]: json.dumps(one) for one in suites.data_choices(content)}
    absent = {data_set: text for data_set, key in data.items() if (text := _missing_data(key))}
    problem, hours = f"without data: {', '.join(absent)}" if absent else "", None
    if timed and not absent:
        try:
            hours = estimate_hours(_trials(path))
        except FlrayError as error:  # too few samples for the partition
            problem = f"no estimate: {str(error).splitlines()[0]}"
    return Suite(name, title, runs, named, problem, hours, absent)


def _trials(path: Path) -> list[TrialSpec]:
    """Return the trials of a suite; this takes seconds, so that lists of suites do without it."""
    from flray.config.loader import load
    from flray.tuning.space import enumerate_settings, resolve_sweep, trial_specs

    config = resolve_sweep(load(path))
    return list(trial_specs(config, enumerate_settings(config)))


def estimate_hours(trials: list[TrialSpec]) -> float:
    """Return the hours of all runs of a sweep one after another, from two small rounds of each method on each data set.

    A round's seconds are taken to be a constant (public data, aggregation) plus a part that grows
    with the training samples it goes through; few samples and twice as many give both. One-time
    costs, such as pre-training, and differences between options of one method are ignored.
    """
    from flray.federation.building import dataset_for

    pace: dict[str, tuple[float, float]] = {}
    seconds = 0.0
    for trial in trials:
        one = trial.experiment
        key = f"{one.algorithm.name} {one.data.model_dump_json()} {one.model.model_dump_json()}"
        if key not in pace:
            (few, short), (many, long) = (_time_small_run(one, subset) for subset in _SUBSETS)
            slope = max(0.0, (long - short) / (many - few))
            pace[key] = max(0.0, short - slope * few), slope or long / many
        constant, slope = pace[key]
        size = sum(len(domain.train_y) for domain in dataset_for(one).domains)
        seconds += one.rounds * (constant + slope * size * one.local.epochs)
    return seconds / 3600


def _time_small_run(experiment: Experiment, subset: int) -> tuple[float, float]:
    """Return the clients' training samples in a small run, and the seconds of its second round."""
    from flray.federation.building import build_spec
    from flray.federation.federation import inline_federation

    local = experiment.local.model_copy(
        update={"epochs": 1, "batch_size": min(_BATCH, experiment.local.batch_size)}
    )
    most = subset * max(1, int(experiment.partition.options.get("clients", 1)))
    spec = build_spec(experiment.model_copy(update={"subset": most, "rounds": 2, "local": local}))
    federation = inline_federation(spec, lambda line: None)
    try:
        federation.step()  # the first round also loads and compiles
        begun = time.perf_counter()
        federation.step()
        seconds = time.perf_counter() - begun
        return float(sum(len(client.train) for client in spec.data.clients)), seconds
    finally:
        federation.close()


def _processor() -> str:
    import torch

    return "GPU" if torch.cuda.is_available() else "CPU"


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
