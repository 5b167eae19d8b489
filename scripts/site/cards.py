"""Write a page for every method, data set and suite, from what the code declares of it."""

import importlib
import inspect
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from rst import code, escaped, flow, labelled, list_of_pages, option_table, prose, put, table, title

from flray import functional, registry
from flray.config import suites, yaml_files
from flray.config.yaml_files import read_with_base
from flray.data.inventory import Entry, list_datasets

ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "docs" / "guide" / "benchmarks.md"
WHAT = ("what", "value")
Measured = Mapping[str, list[str]]


def write_cards(folder: Path) -> list[str]:
    """Write the pages and a list of each kind of them; return the names of the lists."""
    measured, pairs, sweeps = _measured(), _reductions(), yaml_files.names()
    methods = registry.algorithms.names()
    papers = suites.files(yaml_files.folder() / "papers")
    parts: dict[str, tuple[str, str, dict[str, Iterable[str]]]] = {
        "algorithms": (
            "Methods",
            "As ``flray list algorithms NAME`` shows them, with their docstrings.",
            {name: _method(name, measured, pairs[name], sweeps.get(name)) for name in methods},
        ),
        "datasets": (
            "Data sets",
            "As ``flray data list`` shows them; DATA is ``$FLRAY_DATA``.",
            {entry.name: _dataset(entry) for entry in list_datasets()},
        ),
        "suites": (
            "Suites",
            "The papers' tables and figures as ``flray list papers`` shows them.",
            {name: _suite(name, path) for name, path in papers.items()},
        ),
    }
    for kind, (heading, about, pages) in parts.items():
        for name, lines in pages.items():
            put(folder / kind / f"{name}.rst", lines, leaf=True)
        links = list_of_pages(f"{kind}/{name}" for name in pages)
        put(folder / f"{kind}.rst", [*title(heading), about, "", *links])
    return list(parts)


def _method(name: str, measured: Measured, pairs: list[str], sweep: Path | None) -> Iterator[str]:
    method, params = registry.algorithms.get(name), registry.algorithms.params(name)
    module = importlib.import_module(method.__module__)
    yield from (*labelled("algorithm", name), *prose(module.__doc__), *prose(method.__doc__))
    yield from (*title("Settings", "-"), *option_table(params))
    for preset in getattr(params, "presets", ()):
        values = ", ".join(f"{option}: {value}" for option, value in preset.values.items())
        yield f"- preset ``{preset.name}``: {escaped(values)} ({escaped(preset.source)})"
    yield from ("", *title("What it sends and needs", "-"), *_declared(name, method, measured))
    named = dict.fromkeys(re.findall(r"\bfunctional\.(\w+)", inspect.getsource(module)))
    formulas = [formula for formula in named if formula in functional.__all__]
    if formulas:
        yield from title("Formulas", "-")
        for formula in formulas:
            summary = prose(inspect.getdoc(getattr(functional, formula)))[0]
            yield f"- :py:obj:`flray.functional.{formula}`: {summary}"
        yield ""
    if pairs:
        yield from title("Reductions", "-")
        yield from ("The tests hold it to be the same, bit for bit, in these cases:", "")
        yield from (*(f"- {line}" for line in pairs), "")
    if sweep:
        yield from title("A sweep around the paper's settings", "-")
        yield from (f"``flray tune {name}``", "", *code(sweep.read_text("utf-8"), "yaml"))
    yield f"Class: :py:obj:`{method.__module__}.{method.__qualname__}`"


def _declared(name: str, method: Any, measured: Measured) -> Iterator[str]:
    shared = method.shared if isinstance(method.shared, str) else "by its settings"
    rows = [
        ("shared and averaged", f"``{shared}``"),
        ("weights of the mean", method.weighting),
        ("needs", ", ".join(sorted(method.needs)) or "nothing"),
        ("models evaluated", ", ".join(method.views)),
        ("`aggregation.block` adds up weights", method.adds_up()),
    ]
    if name in measured:
        time, _, *sent = measured[name][:4]
        traffic = f"{' and '.join(sent)} (FedAvg {' and '.join(measured['fedavg'][2:4])})"
        rows.append(("measured, MiB down and up", traffic))
        rows.append(("measured, time of a round", f"{time} of FedAvg's"))
    yield from table(WHAT, rows)
    if name in measured:
        yield from ("How this was measured: :doc:`/docs/guide/benchmarks`.", "")


def _measured() -> Measured:
    """Return the rows of the table of all methods in the benchmarks, by method."""
    lines = MEASURED.read_text(encoding="utf-8").splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    names = registry.algorithms.names()
    return {name: cells for name, *cells in rows if len(cells) == 7 and name in names}


def _reductions() -> Mapping[str, list[str]]:
    """Return what each method equals at which settings, from the rows of the tests."""
    from tests.algorithms.test_identities import GLOBAL, PERSONAL

    found: dict[str, list[str]] = defaultdict(list)
    for rows, what in ((GLOBAL, "global models"), (PERSONAL, "personal models")):
        for method, other, settings in rows:
            beside = f", with {flow(settings)}" if settings else ""
            line = f"{flow(method)} and {flow(other)}{beside}: the {what}"
            found[method["name"]].append(line)
    return found


def _dataset(entry: Entry) -> Iterator[str]:
    item = registry.datasets.get(entry.name)
    module = importlib.import_module(item.__module__)
    yield from (*labelled("dataset", entry.name), *prose(item.__doc__), *prose(module.__doc__))
    todo = escaped(entry.todo) or "nothing: it comes with flray"
    yield from table(WHAT, [("source", escaped(entry.source)), ("to have it", todo)])
    yield from (*title("Options", "-"), *option_table(registry.datasets.params(entry.name)))
    yield f"Function: :py:obj:`{item.__module__}.{item.__qualname__.split('.<locals>')[0]}`"


def _suite(name: str, path: Path) -> Iterator[str]:
    content: dict[str, Any] = dict(read_with_base(path))
    paper, sweep = content.get("paper") or {}, content.get("sweep") or {}
    yield from labelled("suite", name)
    if paper.get("title"):
        yield from (escaped(str(paper["title"])), "")
    data = (f":ref:`{one} <dataset-{one}>`" for one in suites.data_names(content))
    rows = [
        ("run it", f"``flray tune {name}``, in minutes as ``flray tune {name} --smoke``"),
        ("runs", str(suites.run_count(content))),
        ("data", ", ".join(data)),
        ("seeds", ", ".join(map(str, sweep.get("seeds", (0,))))),
        ("rounds", str(content["experiment"].get("rounds", "by arms"))),
    ]
    yield from table(WHAT, rows)
    only = sweep.get("only") or {}
    for axis, arms in content["arms"].items():
        rows = [
            (escaped(str(arm)), flow(changes) if changes else "the file's own")
            for arm, changes in arms.items()
            if arm in only.get(axis, arms)
        ]
        yield from (*title(f"Arms: {axis}", "-"), *table(("arm", "settings"), rows))
    if paper.get("departures"):
        yield from title("Where it departs from the paper", "-")
        yield from (f"- {escaped(' '.join(str(line).split()))}" for line in paper["departures"])
        yield ""
    text = path.read_text(encoding="utf-8")
    yield from (*title("The file", "-"), *code(text, "yaml"))
    if base := re.search(r"^base: (.+)$", text, re.MULTILINE):
        yield from (f"It stands on ``{base.group(1)}`` in the same folder.", "")
