"""Write the generated pages as reStructuredText: settings, commands, what can be named, and every module of flray."""

import ast
import importlib
import inspect
import pkgutil
import re
import types
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import typer
from cards import write_cards
from rst import escaped, labelled, list_of_pages, option_table, plain, put, table, title

import flray
from flray import functional, registry
from flray.cli import main
from flray.config.schema import Setting, settings

ENTRY_POINTS = ("flray.run", "flray.tune")
"""Not imported here: a module ``flray.run`` would hide the function of that name."""
OTHER_KINDS = tuple(kind for kind in registry.ALL if kind not in ("algorithms", "datasets"))
"""Those of which all share a page."""
SETTINGS = """As ``flray list settings`` shows them. In a file they stand below ``experiment:``, except ``arms``,
``space``, ``sweep`` and ``paper``.
"""


def write_pages(folder: Path) -> list[str]:
    """Write the pages into an empty folder and return the names of those that lead to all of them."""
    cards = write_cards(folder)
    kinds = [_component_page(folder, kind) for kind in OTHER_KINDS]
    modules = modules_of_flray()
    for name in modules:
        _module_page(folder, name, [one for one in modules if one.rpartition(".")[0] == name])
    put(folder / "settings.rst", [*title("Settings"), SETTINGS, *_sections()])
    commands = _commands(typer.main.get_command(main.app), "flray")
    put(folder / "commands.rst", [*title("Commands"), *commands])
    return ["settings", "commands", *cards, *kinds, "modules/flray"]


def modules_of_flray() -> list[str]:
    """Return the names of flray's public modules, sorted, packages before what is in them."""
    found = [module.name for module in pkgutil.walk_packages(flray.__path__, "flray.")]
    return sorted(["flray", *(name for name in found if "._" not in name)])


def _module_page(folder: Path, name: str, inside: Iterable[str]) -> None:
    lines = title(name)
    if name in ENTRY_POINTS:
        path = Path(flray.__path__[0], *name.split(".")[1:]).with_suffix(".py")
        text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        lines += [f".. py:module:: {name}", "", *plain(text)]
    elif name == functional.__name__:
        lines += [f".. automodule:: {name}", ""]
        for export in functional.__all__:
            is_class = inspect.isclass(getattr(functional, export))
            lines += [f".. auto{'class' if is_class else 'function'}:: {name}.{export}"]
            lines += ["   :members:", ""] if is_class else [""]
    else:
        shorter = [e for e in functional.__all__ if getattr(functional, e).__module__ == name]
        lines += [f".. automodule:: {name}", "   :members:", "   :show-inheritance:"]
        lines += ["   :ignore-module-all:"]
        lines += [f"   :exclude-members: {', '.join(shorter)}", ""] if shorter else [""]
        lines += _links(importlib.import_module(name), shorter)
    pages = [f"/reference/modules/{one}" for one in inside]
    lines += ["", *(list_of_pages(pages) if pages else ())]
    put(folder / "modules" / f"{name}.rst", lines, leaf=name != flray.__name__)


def _links(module: types.ModuleType, elsewhere: Iterable[str]) -> Iterator[str]:
    """Yield links to what a module hands on, and to what is documented under a shorter name."""
    for export in getattr(module, "__all__", ()):
        item = getattr(module, export)
        home = getattr(item, "__module__", None)
        if not inspect.ismodule(item) and home != module.__name__ and str(home).startswith("flray"):
            yield f"- ``{export}`` is :py:obj:`{home}.{item.__qualname__}`"
    for export in elsewhere:
        yield f"- :py:obj:`{functional.__name__}.{export}`"


def _component_page(folder: Path, kind: str) -> str:
    """Write a page with every registered name of a kind, its options and where it is documented."""
    entries = registry.ALL[kind]
    lines = [*title(kind.capitalize()), f"As ``flray list {kind} NAME`` shows them.", ""]
    for name in entries.names():
        item, params = entries.get(name), entries.params(name)
        where = f"{item.__module__}.{item.__qualname__.split('.<locals>')[0]}"
        summary = (inspect.getdoc(item) or "").split("\n\n")[0]
        lines += [*labelled(entries.kind, name, "-"), *plain(summary), ""]
        lines += [f":py:obj:`{where}`", "", *option_table(params), ""]
    put(folder / f"{kind}.rst", lines)
    return kind


def _sections() -> Iterator[str]:
    """Yield a table of each section's settings."""
    for path, about, rows in settings():
        if rows:
            yield from (*title(path or "the file", "-"), *plain(about), "")
            yield from table(("setting", "default", "allowed", "meaning"), map(_cells, rows))


def _cells(row: Setting) -> tuple[str, ...]:
    allowed = re.sub(r"flray list (\w+)", r":doc:`\1`", escaped(row.allowed))
    default = row.default if row.default in ("", "required") else f"``{row.default}``"
    return f"``{row.path}``", default, allowed, escaped(row.meaning)


def _commands(command: Any, name: str) -> Iterator[str]:
    context = click.Context(command, info_name=name, terminal_width=100, max_content_width=100)
    yield from (*title(name, "-"), ".. code-block:: text", "")
    yield from (f"    {line}" for line in command.get_help(context).splitlines())
    yield ""
    for child, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, f"{name} {child}")
