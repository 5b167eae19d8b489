"""Write the generated pages as reStructuredText: settings, commands, what can be named, and every module of flray."""

from __future__ import annotations

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
from cards import write_datasets, write_methods, write_suites
from pydantic import BaseModel
from rst import escaped, list_of_pages, option_table, plain, put, table, title

import flray
from flray import functional, registry
from flray.cli import main, tables
from flray.config.components import Component
from flray.config.experiment import Config

ENTRY_POINTS = ("flray.run", "flray.tune")
"""Not imported here: a module ``flray.run`` would hide the function of that name."""
OTHER_KINDS = tuple(kind for kind in registry.ALL if kind not in ("algorithms", "datasets"))
"""Those of which all share a page."""


def write_pages(folder: Path) -> list[str]:
    """Write the pages and return the names of those that lead to all of them.

    Parameters
    ----------
    folder : Path
        An empty folder.
    """
    write_methods(folder)
    write_datasets(folder)
    write_suites(folder)
    kinds = [_component_page(folder, kind) for kind in OTHER_KINDS]
    modules = modules_of_flray()
    for name in modules:
        _module_page(folder, name, [one for one in modules if one.rpartition(".")[0] == name])
    put(
        folder / "settings.rst",
        [
            *title("Settings"),
            "What a YAML file may hold: path, default, what is allowed, "
            "meaning. Paths on the command line are relative to ``experiment``.",
            "",
            *_sections("", Config),
        ],
    )
    put(
        folder / "commands.rst",
        [*title("Commands"), *_commands(typer.main.get_command(main.app), "flray")],
    )
    return ["settings", "commands", "algorithms", "datasets", "suites", *kinds, "modules/flray"]


def modules_of_flray() -> list[str]:
    """Return the names of flray's public modules, sorted, packages before what is in them."""
    found = ["flray"]
    for module in pkgutil.walk_packages(flray.__path__, "flray."):
        if not any(part.startswith("_") for part in module.name.split(".")):
            found.append(module.name)
    return sorted(found)


def _module_page(folder: Path, name: str, inside: Iterable[str]) -> None:
    lines = title(name)
    if name in ENTRY_POINTS:
        lines += [f".. py:module:: {name}", "", *plain(_docstring(name))]
    elif name == functional.__name__:
        lines += [f".. automodule:: {name}", ""]
        for export in functional.__all__:
            what = "class" if inspect.isclass(getattr(functional, export)) else "function"
            lines += [
                f".. auto{what}:: {name}.{export}",
                *(["   :members:"] if what == "class" else []),
                "",
            ]
    else:
        module = importlib.import_module(name)
        elsewhere = [
            export
            for export in functional.__all__
            if getattr(functional, export).__module__ == name
        ]
        lines += [
            f".. automodule:: {name}",
            "   :members:",
            "   :show-inheritance:",
            "   :ignore-module-all:",
            *([f"   :exclude-members: {', '.join(elsewhere)}"] if elsewhere else []),
            "",
        ]
        lines += _links(module, elsewhere)
    pages = [f"/reference/modules/{one}" for one in inside]
    put(
        folder / "modules" / f"{name}.rst",
        [*lines, "", *(list_of_pages(pages) if pages else ())],
        leaf=name != flray.__name__,
    )


def _links(module: types.ModuleType, elsewhere: Iterable[str]) -> Iterator[str]:
    """Yield links to what a module hands on, and to what is documented under a shorter name."""
    for export in getattr(module, "__all__", ()):
        item = getattr(module, export)
        home = getattr(item, "__module__", None)
        if not inspect.ismodule(item) and home != module.__name__ and str(home).startswith("flray"):
            yield f"- ``{export}`` is :py:obj:`{home}.{item.__qualname__}`"
    for export in elsewhere:
        yield f"- :py:obj:`{functional.__name__}.{export}`"


def _docstring(name: str) -> str | None:
    path = Path(flray.__path__[0], *name.split(".")[1:]).with_suffix(".py")
    return ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


def _component_page(folder: Path, kind: str) -> str:
    """Write a page with every registered name of a kind, its options and where it is documented."""
    entries = registry.ALL[kind]
    lines = [*title(kind.capitalize()), f"As ``flray list {kind} NAME`` shows them.", ""]
    for name in entries.names():
        item, params = entries.get(name), entries.params(name)
        lines += [
            f".. _{entries.kind}-{name}:",
            "",
            *title(name, "-"),
            *plain(_summary(item)),
            "",
            f":py:obj:`{item.__module__}.{item.__qualname__.split('.<locals>')[0]}`",
            "",
            *option_table(params),
        ]
        lines += [""]
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
        shown = (
            "required"
            if field.is_required()
            else f"``{properties[name].get('default')!r}``"
            if "default" in properties[name]
            else ""
        )
        allowed = " or ".join(
            f":doc:`{part.registry.kind}s`" for part in parts if issubclass(part, Component)
        ) or escaped(tables.allowed_values(properties[name]))
        meaning = field.description or " ".join(
            (inspect.getdoc(part) or "").split("\n\n")[0] for part in sections[:1]
        )
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
