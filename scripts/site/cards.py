"""Write a page for every method, data set and suite, from what the code declares of it."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rst import code, escaped, list_of_pages, option_table, prose, put, table, title

from flray import functional, registry
from flray.config import spaces, suites
from flray.config.yaml_files import read_with_base
from flray.data.inventory import list_datasets

ROOT = Path(__file__).parents[2]
MEASURED = ROOT / "docs" / "guide" / "benchmarks.md"


def write_methods(folder: Path) -> None:
    """Write a page for every method, and their list: ``algorithms.rst`` and ``algorithms/``."""
    names = registry.algorithms.names()
    measured, pairs = _measured(), _reductions()
    for name in names:
        put(folder / "algorithms" / f"{name}.rst", _method(name, measured, pairs), leaf=True)
    put(
        folder / "algorithms.rst",
        [
            *title("Methods"),
            "As ``flray list algorithms NAME`` shows them, with their docstrings.",
            "",
            *list_of_pages(f"algorithms/{name}" for name in names),
        ],
    )


def _method(
    name: str, measured: Mapping[str, tuple[str, ...]], pairs: Mapping[str, list[str]]
) -> Iterator[str]:
    method = registry.algorithms.get(name)
    params = registry.algorithms.params(name)
    module = importlib.import_module(method.__module__)
    yield from (f".. _algorithm-{name}:", "", *title(name))
    yield from (*prose(module.__doc__), *prose(method.__doc__))
    yield from (*title("Settings", "-"), *option_table(params))
    for preset in getattr(params, "presets", ()):
        values = ", ".join(f"{option}: {value}" for option, value in preset.values.items())
        yield f"- preset ``{preset.name}``: {escaped(values)} ({escaped(preset.source)})"
    yield from ("", *title("What it sends and needs", "-"), *_declared(name, method, measured))
    formulas = _formulas(module)
    if formulas:
        yield from title("Formulas", "-")
        for formula in formulas:
            summary = prose(inspect.getdoc(getattr(functional, formula)))[0]
            yield f"- :py:obj:`flray.functional.{formula}`: {summary}"
        yield ""
    if name in pairs:
        yield from (
            *title("Reductions", "-"),
            "The tests hold it to be the same, bit for bit, in these cases:",
            "",
            *(f"- {line}" for line in pairs[name]),
            "",
        )
    known = spaces.names()
    if name in known:
        yield from (
            *title("A sweep around the paper's settings", "-"),
            f"``flray tune {name}``",
            "",
        )
        yield from code(known[name].read_text(encoding="utf-8"), "yaml")
    yield f"Class: :py:obj:`{method.__module__}.{method.__qualname__}`"


def _declared(name: str, method: Any, measured: Mapping[str, tuple[str, ...]]) -> Iterator[str]:
    shared = method.shared if isinstance(method.shared, str) else "by its settings"
    rows = [
        ("shared and averaged", f"``{shared}``"),
        ("weights of the mean", method.weighting),
        ("needs", ", ".join(sorted(method.needs)) or "nothing"),
        ("models evaluated", ", ".join(method.views)),
        ("`aggregation.block` adds up weights", method.adds_up()),
    ]
    if name in measured:
        time, _, down, up, *_ = measured[name]
        rows += [
            (
                "measured, MiB down and up",
                f"{down} and {up} (FedAvg {' and '.join(measured['fedavg'][2:4])})",
            ),
            ("measured, time of a round", f"{time} of FedAvg's"),
        ]
    yield from table(("what", "value"), rows)
    if name in measured:
        yield from ("How this was measured: :doc:`/docs/guide/benchmarks`.", "")


def _measured() -> dict[str, tuple[str, ...]]:
    """Return the rows of the table of all methods in the benchmarks, by method."""
    rows: dict[str, tuple[str, ...]] = {}
    for line in MEASURED.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 8 and cells[0] in registry.algorithms.names():
            rows[cells[0]] = tuple(cells[1:])
    return rows


def _formulas(module: Any) -> list[str]:
    """Return the papers' formulas that a method's file names, in its order."""
    tree = ast.parse(inspect.getsource(module))
    used = [
        node.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id == "functional"
    ]
    return [name for name in dict.fromkeys(used) if name in functional.__all__]


def _reductions() -> dict[str, list[str]]:
    """Return what each method equals at which settings, from the rows of the tests."""
    from tests.algorithms.test_identities import GLOBAL, PERSONAL

    found: dict[str, list[str]] = {}
    for rows, what in ((GLOBAL, "global models"), (PERSONAL, "personal models")):
        for method, other, settings in rows:
            beside = f", with {_inline(settings)}" if settings else ""
            found.setdefault(method["name"], []).append(
                f"{_inline(method)} and {_inline(other)}{beside}: the {what}"
            )
    return found


def _inline(value: Mapping[str, Any]) -> str:
    """Return a mapping in YAML's one-line form; a component without options by its name."""
    if set(value) == {"name"}:
        return f"``{value['name']}``"
    return f"``{_flow(value)}``"


def _flow(value: Any) -> str:
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_flow, value))}]"
    return (
        "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    )


def write_datasets(folder: Path) -> None:
    """Write a page for every data set, and their list: ``datasets.rst`` and ``datasets/``."""
    entries = list_datasets()
    for entry in entries:
        item = registry.datasets.get(entry.name)
        module = importlib.import_module(item.__module__)
        where = item.__qualname__.split(".<locals>")[0]
        put(
            folder / "datasets" / f"{entry.name}.rst",
            [
                f".. _dataset-{entry.name}:",
                "",
                *title(entry.name),
                *prose(item.__doc__),
                *prose(module.__doc__),
                *table(
                    ("what", "value"),
                    [
                        ("source", escaped(entry.source)),
                        ("to have it", escaped(entry.todo) or "nothing: it comes with flray"),
                    ],
                ),
                *title("Options", "-"),
                *option_table(registry.datasets.params(entry.name)),
                f"Function: :py:obj:`{item.__module__}.{where}`",
            ],
            leaf=True,
        )
    put(
        folder / "datasets.rst",
        [
            *title("Data sets"),
            "As ``flray data list`` shows them; DATA is ``$FLRAY_DATA``.",
            "",
            *list_of_pages(f"datasets/{entry.name}" for entry in entries),
        ],
    )


def write_suites(folder: Path) -> None:
    """Write a page for every suite of the papers' tables, and their list: ``suites.rst`` and ``suites/``."""
    files = suites.files(spaces.folder() / "papers")
    for name, path in files.items():
        put(folder / "suites" / f"{name}.rst", _suite(name, path), leaf=True)
    put(
        folder / "suites.rst",
        [
            *title("Suites"),
            "The papers' tables and figures as ``flray list papers`` shows them.",
            "",
            *list_of_pages(f"suites/{name}" for name in files),
        ],
    )


def _suite(name: str, path: Path) -> Iterator[str]:
    content: dict[str, Any] = dict(read_with_base(path))
    paper = content.get("paper") or {}
    yield from (f".. _suite-{name}:", "", *title(name))
    if paper.get("title"):
        yield from (escaped(str(paper["title"])), "")
    sweep = content.get("sweep") or {}
    data = ", ".join(f":ref:`{one} <dataset-{one}>`" for one in suites.data_names(content))
    rows = [
        ("run it", f"``flray tune {name}``, in minutes as ``flray tune {name} --smoke``"),
        ("runs", str(suites.run_count(content))),
        ("data", data),
        ("seeds", ", ".join(map(str, sweep.get("seeds", (0,))))),
        ("rounds", str(content["experiment"].get("rounds", "by arms"))),
    ]
    yield from table(("what", "value"), rows)
    only = sweep.get("only") or {}
    for axis, arms in content["arms"].items():
        yield from (*title(f"Arms: {axis}", "-"),)
        yield from table(
            ("arm", "settings"),
            [
                (escaped(str(arm)), f"``{_flow(changes)}``" if changes else "the file's own")
                for arm, changes in arms.items()
                if arm in only.get(axis, arms)
            ],
        )
    if paper.get("departures"):
        yield from title("Where it departs from the paper", "-")
        yield from (f"- {escaped(' '.join(str(line).split()))}" for line in paper["departures"])
        yield ""
    yield from (*title("The file", "-"), *code(path.read_text(encoding="utf-8"), "yaml"))
    base = re.search(r"^base: (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    if base:
        yield from (f"It stands on ``{base.group(1)}`` in the same folder.", "")
