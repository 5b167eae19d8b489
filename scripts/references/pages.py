"""Write the reference's pages as reStructuredText: settings, what can be named, commands, and every module of flray."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import re
import types
import typing
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import typer
from pydantic import BaseModel

import flray
from flray import functional, registry
from flray.cli import main, tables
from flray.config.experiment import Component, Config

ENTRY_POINTS = ("flray.run", "flray.tune")
"""Not imported here: a module ``flray.run`` would hide the function of that name."""


def write_pages(folder: Path) -> None:
    """Write ``index.rst`` and all that it leads to.

    Parameters
    ----------
    folder : Path
        An empty folder.
    """
    kinds = [_component_page(folder, kind) for kind in registry.ALL]
    modules = modules_of_flray()
    for name in modules:
        _module_page(folder, name, [one for one in modules if one.rpartition(".")[0] == name])
    _put(
        folder / "settings.rst",
        [
            *_title("Settings"),
            "What a YAML file may hold: path, default, what is allowed, "
            "meaning. Paths on the command line are relative to ``experiment``.",
            "",
            *_sections("", Config),
        ],
    )
    _put(
        folder / "commands.rst",
        [*_title("Commands"), *_commands(typer.main.get_command(main.app), "flray")],
    )
    _put(
        folder / "index.rst",
        [
            *_title("flray"),
            *_plain(flray.__doc__),
            "",
            "README.md and docs/guide lead from installing to a data set, a network and a method of one's own.",
            "",
            *_toctree(["settings", "commands", *kinds, "modules/flray"], depth=1),
            ":ref:`All names <genindex>`, :ref:`all modules <modindex>`",
        ],
    )


def modules_of_flray() -> list[str]:
    """Return the names of flray's public modules, sorted, packages before what is in them."""
    found = ["flray"]
    for module in pkgutil.walk_packages(flray.__path__, "flray."):
        if not any(part.startswith("_") for part in module.name.split(".")):
            found.append(module.name)
    return sorted(found)


def _module_page(folder: Path, name: str, inside: Iterable[str]) -> None:
    lines = _title(name)
    if name in ENTRY_POINTS:
        lines += [f".. py:module:: {name}", "", *_plain(_docstring(name))]
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
    pages = [f"/modules/{one}" for one in inside]
    _put(
        folder / "modules" / f"{name}.rst",
        [*lines, "", *(_toctree(pages, depth=1) if pages else ())],
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
    lines = [*_title(kind.capitalize()), f"As ``flray list {kind} NAME`` shows them.", ""]
    for name in entries.names():
        item, params = entries.get(name), entries.params(name)
        lines += [
            f".. _{entries.kind}-{name}:",
            "",
            *_title(name, "-"),
            *_plain(_summary(item)),
            "",
            f":py:obj:`{item.__module__}.{item.__qualname__.split('.<locals>')[0]}`",
            "",
            *_options(params),
        ]
        for preset in getattr(params, "presets", ()):
            values = ", ".join(f"{option}: {value}" for option, value in preset.values.items())
            lines += [f"- preset ``{preset.name}``: {_escaped(values)} ({_escaped(preset.source)})"]
        lines += [""]
    _put(folder / f"{kind}.rst", lines)
    return kind


def _summary(item: Any) -> str:
    """Return the first paragraph of a docstring; of a method also the line that names its paper."""
    module = importlib.import_module(item.__module__)
    paper = [(module.__doc__ or "").strip().splitlines()[0], ""] if inspect.isclass(item) else []
    first = inspect.getdoc(item) or ""
    return "\n".join([*paper, first.split("\n\n")[0]])


def _options(params: type[BaseModel]) -> list[str]:
    schema = params.model_json_schema()
    required = schema.get("required", [])
    rows = [
        (
            f"``{option}``",
            "required" if option in required else f"``{field.get('default')!r}``",
            *map(
                _escaped,
                (
                    tables.allowed_values(field),
                    field.get("description", ""),
                    field.get("source", ""),
                ),
            ),
        )
        for option, field in schema.get("properties", {}).items()
    ]
    return _table(("option", "default", "allowed", "meaning", "source"), rows)


def _sections(path: str, model: type[BaseModel]) -> Iterator[str]:
    """Yield a table of a model's settings, then those of the models within it."""
    rows, inner = [], []
    properties = model.model_json_schema().get("properties", {})
    for name, field in model.model_fields.items():
        whole, parts = f"{path}{name}", _models(field.annotation)
        plain = [part for part in parts if not issubclass(part, Component)]
        if len(parts) == 1 and plain:
            inner.append((f"{whole}.", plain[0]))
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
        ) or _escaped(tables.allowed_values(properties[name]))
        meaning = field.description or " ".join(
            (inspect.getdoc(part) or "").split("\n\n")[0] for part in plain[:1]
        )
        rows.append((f"``{whole}``", shown, allowed, _escaped(meaning)))
    if rows:
        yield from (
            *_title(path.rstrip(".") or "the file", "-"),
            *_plain(inspect.getdoc(model)),
            "",
        )
        yield from _table(("setting", "default", "allowed", "meaning"), rows)
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
    yield from (*_title(name, "-"), ".. code-block:: text", "")
    yield from (f"    {line}" for line in command.get_help(context).splitlines())
    yield ""
    for child, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, f"{name} {child}")


def _title(text: str, line: str = "=") -> list[str]:
    return [text, line * len(text), ""]


def _plain(text: str | None) -> list[str]:
    return inspect.cleandoc(text or "").splitlines()


def _toctree(pages: Iterable[str], depth: int) -> list[str]:
    return [".. toctree::", f"   :maxdepth: {depth}", "", *(f"   {page}" for page in pages), ""]


def _table(headings: Iterable[str], rows: Iterable[tuple[str, ...]]) -> list[str]:
    lines = [".. list-table::", "   :header-rows: 1", ""]
    found = list(rows)
    for row in (tuple(headings), *found):
        lines += [
            f"   {'* -' if index == 0 else '  -'} {' '.join(cell.split())}"
            for index, cell in enumerate(row)
        ]
    return [*lines, ""] if found else ["It has no options.", ""]


def _escaped(text: str) -> str:
    """Return text in which no character means anything to reStructuredText; names in backticks stay so."""
    return re.sub(r"([\\*|])|_(?![A-Za-z0-9])", lambda found: f"\\{found.group()}", text)


def _put(path: Path, lines: Iterable[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
