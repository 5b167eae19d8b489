"""Write the generated pages as reStructuredText: settings, commands, what can be named, and every module of flray."""

import ast
import importlib
import inspect
import pkgutil
import types
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import typer
from cards import write_cards
from pydantic import BaseModel
from rst import escaped, labelled, list_of_pages, option_table, plain, put, table, title

import flray
from flray import functional, registry
from flray.cli import main, tables
from flray.config.components import Component
from flray.config.experiment import Config

ENTRY_POINTS = ("flray.run", "flray.tune")
"""Not imported here: a module ``flray.run`` would hide the function of that name."""
OTHER_KINDS = tuple(kind for kind in registry.ALL if kind not in ("algorithms", "datasets"))
"""Those of which all share a page."""
SETTINGS = (
    "What a YAML file may hold: path, default, what is allowed, meaning. Paths on the command line "
    "are relative to ``experiment``.",
    "",
)


def write_pages(folder: Path) -> list[str]:
    """Write the pages into an empty folder and return the names of those that lead to all of them."""
    cards = write_cards(folder)
    kinds = [_component_page(folder, kind) for kind in OTHER_KINDS]
    modules = modules_of_flray()
    for name in modules:
        _module_page(folder, name, [one for one in modules if one.rpartition(".")[0] == name])
    put(folder / "settings.rst", [*title("Settings"), *SETTINGS, *_sections("", Config)])
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
        lines += [*labelled(entries.kind, name, "-"), *plain(_summary(item)), ""]
        lines += [f":py:obj:`{where}`", "", *option_table(params), ""]
    put(folder / f"{kind}.rst", lines)
    return kind


def _summary(item: Any) -> str:
    """Return the first paragraph of a docstring."""
    return (inspect.getdoc(item) or "").split("\n\n")[0]


def _sections(path: str, model: type[BaseModel]) -> Iterator[str]:
    """Yield a table of a model's settings, then those of the models within it."""
    rows, inner = [], []
    properties = model.model_json_schema().get("properties", {})
    for name, field in model.model_fields.items():
        whole, parts = f"{path}{name}", _models(field.annotation)
        sections = [part for part in parts if not issubclass(part, Component)]
        if len(parts) == 1 and sections:
            inner.append((f"{whole}.", sections[0]))
            continue
        shown = f"``{properties[name]['default']!r}``" if "default" in properties[name] else ""
        components = [part for part in parts if issubclass(part, Component)]
        allowed = " or ".join(f":doc:`{part.registry.kind}s`" for part in components)
        meaning = field.description or " ".join(map(_summary, sections[:1]))
        shown = "required" if field.is_required() else shown
        allowed = allowed or escaped(tables.allowed_values(properties[name]))
        rows.append((f"``{whole}``", shown, allowed, escaped(meaning)))
    if rows:
        yield from (*title(path.rstrip(".") or "the file", "-"), *plain(inspect.getdoc(model)), "")
        yield from table(("setting", "default", "allowed", "meaning"), rows)
    for prefix, part in inner:
        yield from _sections(prefix, part)


def _models(annotation: Any) -> list[type[BaseModel]]:
    """Return the pydantic models an annotation is made of."""
    if inspect.isclass(annotation) and typing.get_origin(annotation) is None:
        return [annotation] if issubclass(annotation, BaseModel) else []
    found: list[type[BaseModel]] = []
    for part in typing.get_args(annotation):
        found += [model for model in _models(part) if model not in found]
    return found


def _commands(command: Any, name: str) -> Iterator[str]:
    context = click.Context(command, info_name=name, terminal_width=100, max_content_width=100)
    yield from (*title(name, "-"), ".. code-block:: text", "")
    yield from (f"    {line}" for line in command.get_help(context).splitlines())
    yield ""
    for child, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, f"{name} {child}")
